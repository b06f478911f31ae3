"""``verify``: what the parent prepares, what one rank does, and what comes back.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli.errors import UsageError
from agcli.problem import Plan
from agcli.request import Machine, plan_from_payload, plan_payload
from agcli.tuned import agreed
from agcli.verdict import Tolerance, Verdict, tolerance

if TYPE_CHECKING:
    import torch

    from agcli.backends.base import Backend, Engine
    from agcli.compare import Comparison
    from agcli.outcome import Job
    from agcli.rank import RankContext, Reporter

RANK_TARGET = "agcli.verify:run_rank"
GROUP_BYTES = 256 * 2**20  # A, B and C of the launches that go back to back


@dataclass(frozen=True)
class VerifyOptions:
    """How to verify. ``repeat`` counts launches; tolerances are derived where None; ``cores`` are simulated ones."""

    data: str = "normal"
    seed: int = 0
    repeat: int = 1
    rtol: float | None = None
    atol: float | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        if self.data not in ("normal", "integers"):
            raise UsageError(f"data must be normal or integers, got '{self.data}' (--data)")
        if self.repeat < 1:
            raise UsageError(f"there must be at least 1 launch, got {self.repeat} (--repeat)")
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise UsageError(f"{name} must be a finite number of at least 0, got {value} (--{name})")

    def tolerance(self, plan: Plan) -> Tolerance:
        """The tolerance for ``plan``."""
        return tolerance(plan.problem.dtype, plan.problem.k, self.data, self.rtol, self.atol)


def operand_bytes(plan: Plan) -> int:
    """What a rank holds beside symmetric memory: A, B, C, the gathered A, and B in fp32 for the reference."""
    problem = plan.problem
    operands = problem.m * problem.k + problem.k * problem.n + problem.world * problem.m * problem.n
    gathered = problem.world * problem.m * problem.k
    return (operands + gathered) * problem.itemsize + 4 * problem.k * problem.n


def make_job(machine: Machine, plan: Plan, options: VerifyOptions, tuned: Path | None = None) -> Job:
    """What all ranks are told; ``tuned`` is the file whose configuration is to replace the plan's."""
    from agcli.outcome import Job

    payload = plan_payload(plan, machine.backend.name) | {"options": asdict(options)}
    return Job(RANK_TARGET, payload | {"tuned": str(tuned) if tuned is not None else None})


def run_rank(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Verify on this rank: ``{"verdict", "describe", "config", "tuned"}``, the last of which tells what was taken.

    Collective, and the same steps whatever a rank finds.
    """
    from agcli.backends import get_backend

    options = VerifyOptions(**payload["options"])
    backend = get_backend(payload["backend"])
    plan = plan_from_payload(payload, backend)
    ctx.phase("start of the backend", waiting=True)
    try:
        backend.start(ctx)
        extra: dict[str, Any] = {}
        note = ""
        if payload["tuned"] is not None:
            choice, note = agreed(Path(payload["tuned"]), backend, plan.problem, plan.chip, None, options.cores)
            plan, extra = choice.plan(plan.problem, plan.chip), choice.extra
        verdict, plan = verify_plan(ctx, backend, plan, options, extra)
        about = {"describe": backend.describe(), "config": asdict(plan.config), "tuned": note}
        return {"verdict": verdict.to_json(), **about}
    finally:  # after a failure nothing collective: the others may not come
        backend.finish()


def verify_plan(
    ctx: Reporter, backend: Backend, plan: Plan, options: VerifyOptions, extra: Mapping[str, Any] | None = None
) -> tuple[Verdict, Plan]:
    """Verify one plan on a backend that is started. Collective, and the same steps whatever a rank finds.

    ``extra`` is what only the platform understands (``EngineOptions``). Also returns the plan as it was carried out.
    """
    from agcli.backends.base import EngineOptions

    ctx.phase("allocation of symmetric memory", waiting=True)
    work = _Work(ctx, backend, plan, options)
    engine = backend.engine(plan, EngineOptions(options.cores, work.on_tiles, dict(extra or {})))
    verdict = work.verify(engine)
    ctx.phase("release of symmetric memory", waiting=True)
    engine.close()
    return verdict, engine.plan


@dataclass
class _Launch:
    """One launch: its operands, its result and where it began."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    first_slot: int | None = None


class _Work:
    """The launches of one rank, and their comparison. Progress counts tiles, those launched and those compared."""

    def __init__(self, ctx: Reporter, backend: Backend, plan: Plan, options: VerifyOptions) -> None:
        self._ctx = ctx
        self._backend = backend
        self._plan = plan
        self._options = options
        self._done_tiles = 0
        self._seconds = 0.0

    def verify(self, engine: Engine) -> Verdict:
        """All repeats, in groups of as many as fit in memory; a group's launches go back to back, without a barrier."""
        from agcli.compare import Comparison

        options = self._options
        comparison = Comparison(engine.plan, options.tolerance(self._plan))
        group = max(1, GROUP_BYTES // _launch_bytes(self._plan))
        for begin in range(0, options.repeat, group):
            numbers = range(begin + 1, min(begin + group, options.repeat) + 1)
            launches = self._launch(engine, numbers)
            for number in numbers:
                self._compare(comparison, launches.pop(0), number)
        name, device = self._backend.describe().get("device", ""), self._backend.device()
        text = f"{device} {name}".strip() if device.index is not None else name or str(device)
        return comparison.verdict(self._ctx.rank, text, self._seconds)

    def _launch(self, engine: Engine, numbers: range) -> list[_Launch]:
        """Launch once for each number; C and the symmetric buffer hold nothing but NaN before each."""
        launches = [self._prepare(number) for number in numbers]
        self._backend.synchronize()
        begin = time.perf_counter()
        for number, launch in zip(numbers, launches, strict=True):
            self._ctx.phase(f"launch {number}", waiting=True)
            engine.poison()
            engine.run(launch.a, launch.b, launch.c)
            launch.first_slot = engine.place().get("first_slot")
            self._advance(self._plan.tiles)
        self._ctx.phase(f"end of launch {numbers[-1]}", waiting=True)
        self._backend.synchronize()
        self._seconds += time.perf_counter() - begin
        return launches

    def _prepare(self, number: int) -> _Launch:
        import torch

        from agcli.inputs import make_inputs

        self._ctx.phase(f"inputs of launch {number}")
        options, device = self._options, self._backend.device()
        a, b = make_inputs(self._plan.problem, options.data, options.seed, number, self._ctx.rank)
        c = torch.full(self._plan.problem.c_shape, float("nan"), dtype=a.dtype, device=device)
        return _Launch(a.to(device), b.to(device), c)

    def _compare(self, comparison: Comparison, launch: _Launch, number: int) -> None:
        from agcli.reference import gather

        self._ctx.phase(f"gathering the reference for launch {number}", waiting=True)
        gathered = gather(launch.a)
        self._ctx.phase(f"comparison of launch {number}")
        plan = self._plan

        def on_rows(rows: int) -> None:
            self._ctx.progress(self._done_tiles + plan.tiles * rows // plan.problem.c_shape[0], self._total_tiles)

        comparison.add(gathered, launch.b, launch.c, launch.first_slot, on_rows)
        self._advance(plan.tiles)

    @property
    def _total_tiles(self) -> int:
        return 2 * self._options.repeat * self._plan.tiles

    def on_tiles(self, done: int, total: int) -> None:
        """Called by an engine that can tell how far the launch in progress is."""
        self._ctx.progress(self._done_tiles + done, self._total_tiles)

    def _advance(self, tiles: int) -> None:
        self._done_tiles += tiles
        self._ctx.progress(self._done_tiles, self._total_tiles)


def _launch_bytes(plan: Plan) -> int:
    problem = plan.problem
    shapes = (problem.a_shape, problem.b_shape, problem.c_shape)
    return problem.itemsize * sum(rows * cols for rows, cols in shapes)
