"""``smoke``: a fixed list of verifications and one short benchmark, in one start of the ranks.

Every case has every transport of the platform, and over the list both element types meet both transports. The list is
short because on an accelerator each case compiles a kernel of its own.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agcli.bench_plan import BenchPlan
from agcli.problem import Plan, Problem, default_config, make_plan
from agcli.shapes import Shape
from agcli.verify import VerifyOptions

if TYPE_CHECKING:
    from agcli.backends.base import Backend
    from agcli.chips import Chip
    from agcli.rank import RankContext, Reporter

RANK_TARGET = "agcli.smoke:run_rank"
UNITS = 1000  # of progress: what one case counts
SEED = 7
# Small blocks where there are to be several iterations and tiles: with the default ones a launch of this size has one.
_FEW_ROWS = {"block_m": 64, "pvalue": 2}
_TINY = {"block_m": 16, "block_n": 32, "block_k": 32, "pvalue": 2}


@dataclass(frozen=True)
class Case:
    """One verification. ``config`` overrides fields of ``KernelConfig``; ``repeat`` launches go back to back."""

    name: str
    m: int
    n: int
    k: int
    dtype: str = "fp16"
    config: Mapping[str, Any] = field(default_factory=dict)
    data: str = "normal"
    repeat: int = 1

    def plan(self, world: int, chip: Chip | None) -> Plan:
        """The plan on ``world`` ranks. Raises UsageError where ``chip`` cannot take it."""
        problem = Problem(self.m, self.n, self.k, world, self.dtype)
        return make_plan(problem, default_config(chip).with_options(**self.config), chip)

    def options(self, cores: int | None) -> VerifyOptions:
        """How to verify it."""
        return VerifyOptions(self.data, SEED, self.repeat, cores=cores)


# What each case is for: a problem smaller than a tile; nothing that divides anything; a last iteration, last columns
# and a last step of K that are not full; and an odd number of iterations five times over, so that slots change places.
_CASES = (
    Case("small", 64, 64, 64),
    Case("odd", 77, 51, 93, data="integers"),
    Case("tail-m", 300, 256, 256, config=_FEW_ROWS),
    Case("tail-n", 128, 300, 256),
    Case("tail-k", 128, 256, 300),
    Case("back-to-back", 96, 64, 64, config=_TINY, data="integers", repeat=5),
)


def cases(transports: Sequence[str]) -> list[Case]:
    """The list for a platform with these transports, none where it has one way only and so a kernel of its own.

    The first case meets every pair of type and transport, the others take turns; without transports all have both, and
    the platform's own blocks, since those of ``KernelConfig`` are this kernel's.
    """
    found = []
    for number, case in enumerate(_CASES):
        for index, transport in enumerate(transports or ("", "")):
            dtypes = ("fp16", "bf16") if number % 2 == 0 else ("bf16", "fp16")
            for dtype in dtypes if transport and number == 0 else (dtypes[index % 2],):
                name = "-".join(filter(None, (case.name, dtype, transport)))
                config = {**case.config, "transport": transport} if transport else {}
                found.append(Case(name, case.m, case.n, case.k, dtype, config, case.data, case.repeat))
    return found


def sanity_bench(backend: str, world: int, transports: Sequence[str], *, emulated: bool, **settings: Any) -> BenchPlan:
    """One short row of each transport and of torch, so that a report shows that times are in the usual range."""
    shape = Shape(128, 128, 128, "smoke") if emulated else Shape(1024, 4096, 4096, "smoke")
    return BenchPlan(
        backend=backend,
        world=world,
        shapes=(shape,),
        implementations=("fused", "torch"),
        transports=tuple(transports),
        budget_s=1.0,
        warmup=1 if emulated else 10,
        emulated=emulated,
        **settings,
    )


@dataclass(frozen=True)
class SmokePlan:
    """All that the ranks must agree on."""

    cases: tuple[Case, ...]
    bench: BenchPlan

    def to_json(self) -> dict[str, Any]:
        """As the payload of a job; ``from_json`` is the way back."""
        return {"cases": [asdict(case) for case in self.cases], "bench": self.bench.to_json()}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> SmokePlan:
        return SmokePlan(tuple(Case(**case) for case in data["cases"]), BenchPlan.from_json(data["bench"]))


def run_rank(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Worker function of the launcher: ``{"about", "verdicts", "rows"}``, all of it also published as it comes.

    Every rank goes through the whole list, whatever it finds.
    """
    from agcli.backends import get_backend

    plan = SmokePlan.from_json(payload)
    return run(ctx, plan, get_backend(plan.bench.backend))


def run(ctx: RankContext, plan: SmokePlan, backend: Backend) -> dict[str, Any]:
    """``run_rank`` on a given platform."""
    from agcli import bench
    from agcli.verify import verify_plan

    parts = len(plan.cases) + 1
    ctx.phase("start of the backend", waiting=True)
    try:
        backend.start(ctx)
        about = backend.describe()
        ctx.publish({"about": about})
        chip = backend.chip(plan.bench.soc)
        verdicts = []
        for index, case in enumerate(plan.cases):
            part = _Part(ctx, case.name, index, parts)
            found, _ = verify_plan(part, backend, case.plan(ctx.world, chip), case.options(plan.bench.cores))
            verdict = found.to_json()
            verdicts.append(verdict)
            ctx.publish({"case": index, "verdict": verdict})
        timed = bench.measure(_Part(ctx, "bench", parts - 1, parts), plan.bench, backend)
        rows = [asdict(row) for _, done, _ in timed for row in done]
        return {"about": about, "verdicts": verdicts, "rows": rows}
    finally:  # after a failure nothing collective: the others may not come
        backend.finish()


class _Part:
    """One case's view of the rank's context: its phases begin with its name, its progress is a part of the whole."""

    def __init__(self, ctx: Reporter, name: str, index: int, parts: int) -> None:
        self.rank = ctx.rank
        self.local_world = ctx.local_world
        self._ctx = ctx
        self._name = name
        self._index = index
        self._parts = parts

    def phase(self, text: str, waiting: bool = False) -> None:
        """As ``RankContext.phase``."""
        self._ctx.phase(f"{self._name}: {text}", waiting)

    def progress(self, done: int, total: int) -> None:
        """As ``RankContext.progress``, of this part."""
        self._ctx.progress(self._index * UNITS + UNITS * done // max(total, 1), self._parts * UNITS)
