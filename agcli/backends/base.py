"""What every platform offers. The rest of the product speaks to platforms through these types only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from agcli.chips import Chip
    from agcli.problem import Plan
    from agcli.rank import RankContext


@dataclass(frozen=True)
class Need:
    """One thing a platform needs: what was found, and the cure when it is not as it must be."""

    name: str
    ok: bool
    found: str
    cure: str = ""


class Engine(Protocol):
    """Symmetric memory and launches for one problem on one rank. Created collectively, in one order on all ranks."""

    @property
    def plan(self) -> Plan:
        """The problem, and the blocks and slots by which it is done here, as far as this platform's kernel has them."""

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueue ``c = all_gather(a) @ b`` once; a ``[M, K]``, b ``[K, N]``, c ``[W*M, N]``, of the plan's dtype."""

    def poison(self) -> None:
        """Fill with NaN all symmetric memory that no peer may be writing now."""

    def place(self) -> dict[str, Any]:
        """What a report needs to trace a wrong row of the last ``run``: for slotted kernels ``{"first_slot": int}``."""

    def close(self) -> None:
        """Free the symmetric memory, then raise what launches reported and nobody raised yet. Collective."""


class Backend(Protocol):
    """One platform. The parent process asks only the first group of methods, which start no device.

    A platform may also have ``bench_hooks() -> BenchHooks`` (see ``bench_hooks.py``): a device clock, a vendor's
    operation, graphs and sizes for `bench`; and ``inventory() -> list[tuple[str, str]]``: names, memory and links of
    its devices for `doctor`, within two seconds and without starting one; ``check_plan(plan)``, asked by the parent,
    which raises UsageError for blocks that its kernel cannot take; and, in a rank, ``check_extra(plan, extra, cores)``,
    which raises UsageError or TypeError for a tuned choice's ``extra`` that it cannot (``EngineOptions``).
    """

    name: str

    # -- asked by the parent and by `doctor`; cheap, never raise -------------------------------------------------
    def needs(self) -> list[Need]:
        """All that this platform needs, in the order in which to mend it."""

    def device_count(self) -> int:
        """Devices visible to a new process, without initialising any (0 where the platform is absent)."""

    def chip(self, soc: str | None) -> Chip | None:
        """The chip whose limits count: the one named, else the one present, else the platform's default."""

    # -- called in a rank ----------------------------------------------------------------------------------------
    def start(self, ctx: RankContext) -> None:
        """Select the device, join or create the process group, initialise symmetric memory. Collective."""

    def device(self) -> torch.device:
        """The torch device of this rank's tensors."""

    def describe(self) -> dict[str, str]:
        """Device name, core counts and software versions, for reports."""

    def engine(self, plan: Plan, options: EngineOptions) -> Engine:
        """Allocate for a plan. Collective; what fails on one rank is raised on all."""

    def synchronize(self) -> None:
        """Wait for all queued work of this rank's device and surface its errors."""

    def finish(self) -> None:
        """Undo ``start``; on every path, also after a failure. Destroys only a process group that ``start`` made."""


@dataclass(frozen=True)
class EngineOptions:
    """Choices that belong to a platform rather than to the problem."""

    cores: int | None = None  # simulated AI cores; None: as many as the chip has
    on_progress: Any = None  # callable(done_tiles, total_tiles) of this rank, or None
    extra: dict[str, Any] = field(default_factory=dict)
