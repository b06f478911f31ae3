"""What a benchmark is to do: all that ranks must agree on, decided once by the parent. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agcli.bench_rows import IMPLEMENTATIONS
from agcli.chips import Chip
from agcli.errors import UsageError
from agcli.problem import Plan, Problem, check_contiguous_reach, default_config, make_plan
from agcli.shapes import Shape


@dataclass(frozen=True)
class BenchPlan:
    """Problems, implementations and the way of timing.

    ``transports`` are those to time as ``fused``, one row each; empty where the platform has one way only.
    ``tuned`` is a file of ``ag-gemm tune``, for one more fused row. ``iterations`` is 0 to let rank 0 derive a count
    from ``budget_s`` (seconds a problem). ``config`` overrides fields of ``KernelConfig``. ``emulated``: the times are
    not a chip's, so that no peak is compared.
    """

    backend: str
    world: int
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = ("fp16",)
    implementations: tuple[str, ...] = IMPLEMENTATIONS
    transports: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)
    tuned: str | None = None
    soc: str | None = None
    cores: int | None = None
    budget_s: float = 2.0
    warmup: int = 10
    iterations: int = 0
    warm: bool = False
    host: bool = False
    graph: bool = False
    emulated: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise UsageError(f"the time must be a positive number of seconds, got {self.budget_s:g} (--budget)")

    def to_json(self) -> dict[str, Any]:
        """As the payload of a job; ``from_json`` is the way back."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> BenchPlan:
        lists = {k: tuple(data[k]) for k in ("dtypes", "implementations", "transports")}
        return BenchPlan(**{**data, **lists, "shapes": tuple(Shape(**shape) for shape in data["shapes"])})

    @property
    def problems(self) -> list[tuple[Problem, str]]:
        """Every problem and its shape's name, in the order of the rows. UsageError for a size that makes no problem."""
        return [(Problem(s.m, s.n, s.k, self.world, dtype), s.name) for dtype in self.dtypes for s in self.shapes]

    def fused(self, problem: Problem, chip: Chip | None) -> dict[str, Plan | str]:
        """The fused rows of a problem: the plan of each, or the reason why ``chip`` cannot take it."""
        found: dict[str, Plan | str] = {}
        for transport in self.transports or ("auto",):
            config = default_config(chip).with_options(**{**self.config, "transport": transport})
            name = f"fused-{transport}" if self.transports else "fused"
            try:
                plan = make_plan(problem, config, chip)
                check_contiguous_reach(plan)
                found[name] = plan
            except UsageError as e:
                found[name] = str(e)
        return found

    def check(self, chip: Chip | None, check_platform: Callable[[Plan], None] = lambda plan: None) -> None:
        """Refuse before any rank starts what no transport could run, and what ``check_platform`` refuses.

        Raises UsageError with the first reason.
        """
        for problem, _ in self.problems:
            plans = self.fused(problem, chip) if "fused" in self.implementations else {}
            if plans and all(isinstance(plan, str) for plan in plans.values()):
                raise UsageError(f"{problem.m}x{problem.n}x{problem.k}: {next(iter(plans.values()))}")
            for plan in plans.values():
                if isinstance(plan, Plan):
                    check_platform(plan)


def pick(wanted: Sequence[str], transports: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Implementations and transports that ``--impl`` names; ``fused-store`` picks one transport, ``fused`` all.

    ``pick(["torch", "fused-store"], ["store", "putmem"])`` is ``(("fused", "torch"), ("store",))``. Raises UsageError
    for a name nobody knows.
    """
    known = [*IMPLEMENTATIONS, *(f"fused-{t}" for t in transports)]
    for name in wanted:
        if name not in known:
            raise UsageError(f"unknown implementation '{name}'; known are {', '.join(known)} (--impl)")
    chosen = {name.partition("-")[0] for name in wanted}
    picked = [t for t in transports if f"fused-{t}" in wanted] if "fused" not in wanted else list(transports)
    return tuple(i for i in IMPLEMENTATIONS if i in chosen), tuple(picked)
