"""Configurations that ``tune`` found best: a file of them, and the one for a problem. Imports no torch.

One JSON file per user, or another one. An entry counts only for the backend, chip, world size, dtype and version of
ag-gemm that it was measured with; among those the nearest shape is taken, if it is near.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli import __version__
from agcli.errors import EnvironmentFault, UsageError
from agcli.outputs import write_file
from agcli.problem import Plan, Problem, default_config, make_plan

if TYPE_CHECKING:
    from agcli.backends.base import Backend
    from agcli.chips import Chip

SCHEMA = "ag-gemm-tuned/1"
NEAR = 3.0  # powers of two that M, N and K together may differ by from an entry's: 8 times in one of them


@dataclass(frozen=True)
class Choice:
    """One way to run a problem: fields of ``KernelConfig``, and what only the platform understands, over its defaults.

    Without either it is what runs by default.
    """

    config: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (isinstance(self.config, dict) and isinstance(self.extra, dict)):
            raise TypeError(f"config and extra are not both objects: {self.config!r}, {self.extra!r}")

    def plan(self, problem: Problem, chip: Chip | None) -> Plan:
        """The plan with it. Raises UsageError where ``chip`` cannot take it."""
        return make_plan(problem, default_config(chip).with_options(**self.config), chip)

    @property
    def text(self) -> str:
        """For people."""
        return ", ".join(f"{name} {value}" for name, value in {**self.config, **self.extra}.items()) or "defaults"


@dataclass(frozen=True)
class Entry:
    """The best choice for a problem. Times are medians of one call in milliseconds, on the slowest rank."""

    backend: str
    chip: str
    world: int
    dtype: str
    m: int
    n: int
    k: int
    choice: Choice
    median_ms: float
    default_ms: float
    version: str = __version__
    date: str = ""

    def __post_init__(self) -> None:
        texts = (self.backend, self.chip, self.dtype, self.version, self.date)
        counts = (self.world, *self.shape)
        right = all(isinstance(text, str) for text in texts) and all(isinstance(n, int) and n > 0 for n in counts)
        if not (right and all(isinstance(ms, (int, float)) for ms in (self.median_ms, self.default_ms))):
            raise ValueError(f"no entry is {asdict(self)}")

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N and K."""
        return (self.m, self.n, self.k)

    @property
    def key(self) -> tuple[Any, ...]:
        """What there is one entry of in a file."""
        return (self.backend, self.chip, self.world, self.dtype, *self.shape)

    def distance(self, problem: Problem) -> float:
        """How many powers of two M, N and K together differ by: 512 and 1024 rows are 1 apart."""
        pairs = zip(self.shape, (problem.m, problem.n, problem.k))
        return sum(abs(math.log2(own / other)) for own, other in pairs)

    def to_json(self) -> dict[str, Any]:
        """As JSON data; ``from_json`` is the way back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Entry:
        """The entry that ``to_json`` wrote, without unknown fields. TypeError, KeyError or ValueError if it is none."""
        known = {f.name for f in fields(Entry)}
        return Entry(**{k: v for k, v in data.items() if k in known and k != "choice"}, choice=Choice(**data["choice"]))


def default_store() -> Path:
    """This user's file."""
    from platformdirs import user_data_path

    return user_data_path("ag-gemm") / "tuned.json"


def read(path: Path) -> list[Entry]:
    """All entries of a file; none if there is no file. Raises UsageError if it is not one of ours."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, not {SCHEMA!r}")
        return [Entry.from_json(entry) for entry in data["entries"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be read: {error.strerror or error} (--store)") from error
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UsageError(
            f"{path} is not a file of `ag-gemm tune` ({type(error).__name__}: {error}); remove it, or name another "
            "with --store"
        ) from error


def check_store(path: Path) -> None:
    """Refuse, before a run, a file that is not one of ours. Raises UsageError or EnvironmentFault."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory (--store)")
    read(path)


def check_can_add(path: Path) -> None:
    """Refuse, before a tuning, a file that its results could not go to. Raises UsageError or EnvironmentFault."""
    check_store(path)
    folder = next(folder for folder in path.absolute().parents if folder.exists())
    if not (os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))):
        raise UsageError(f"{path} cannot be written: no permission (--store)")


def add(path: Path, entries: Iterable[Entry]) -> None:
    """Put ``entries`` into a file, in place of those with the same key. Readers see the old file or the new one whole,
    and tunings that end at the same time do not lose each other's entries."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(f"{path.parent} cannot be made: {error.strerror or error} (--store)") from error
    with _locked(path):
        merged = {entry.key: entry for entry in [*read(path), *entries]}
        listed = [merged[key].to_json() for key in sorted(merged)]
        write_file(path, json.dumps({"schema": SCHEMA, "entries": listed}, indent=2) + "\n")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """No other tuning of this user changes the file within."""
    try:
        with open(path.with_name(f".{path.name}.lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise EnvironmentFault(f"{path} cannot be locked: {error.strerror or error} (--store)") from error


def find(entries: Iterable[Entry], backend: str, chip: str, problem: Problem) -> tuple[Entry | None, str]:
    """The entry that counts for ``problem``, and a sentence that says which it is or why there is none."""
    where = f"{chip}, world {problem.world}, {problem.dtype}"
    key = (backend, chip, problem.world, problem.dtype)
    alike = [entry for entry in entries if entry.key[:4] == key]
    current = [entry for entry in alike if entry.version == __version__]
    ignored = len(alike) - len(current)
    others = f" ({ignored} of other versions of ag-gemm ignored)" if ignored else ""
    best = min(current, key=lambda entry: entry.distance(problem), default=None)
    if best is None:
        return None, f"no entry for {where}{others}; defaults used"
    shape = "x".join(map(str, best.shape))
    distance = best.distance(problem)
    if distance > NEAR:
        return None, f"no entry near this shape for {where}, the nearest is {shape}{others}; defaults used"
    nearest = "this shape" if distance == 0 else f"the nearest shape, {shape}"
    return best, f"entry of {nearest} for {where}, {best.date}{others}: {best.choice.text}"


def agreed(
    path: Path, backend: Backend, problem: Problem, chip: Chip | None, group: Any, cores: int | None
) -> tuple[Choice, str]:
    """What rank 0's file says for ``problem``, on every rank alike: the choice and a sentence about it. Collective.

    ``backend`` is started; ``cores`` as in ``EngineOptions``. Raises UsageError on every rank if the file is not one of
    ours.
    """
    import torch.distributed as dist

    from agcli.agreement import NOTE_BYTES, from_first

    note = ""
    if dist.get_rank(group) == 0:
        name = chip.name if chip is not None else backend.describe()["device"]
        try:
            entry, text = find(read(path), backend.name, name, problem)
            note = json.dumps({"choice": asdict(entry.choice) if entry else asdict(Choice()), "text": text})
            if len(note.encode()) > NOTE_BYTES:
                raise UsageError(f"the entry for this problem in {path} is {len(note)} characters long; remove it")
        except (UsageError, EnvironmentFault) as error:
            note = json.dumps({"fault": str(error)})
    said = json.loads(from_first(note, group))
    if "fault" in said:
        raise UsageError(said["fault"])
    choice = Choice(**said["choice"])
    check_extra = getattr(backend, "check_extra", None)
    try:
        plan = choice.plan(problem, chip)
        if check_extra is not None:
            check_extra(plan, choice.extra, cores)
    except (UsageError, TypeError) as error:  # TypeError: no field of the configuration, or not a number
        return Choice(), f"{said['text']}; it does not fit this problem ({error}); defaults used"
    return choice, said["text"]
