"""What ranks do in the tests of ``tune``: the search over a stand-in for a platform whose times are made up.

Run in ranks, imported by name.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import torch
from bench_targets import Backend as StandIn
from bench_targets import Engine

from agcli import AllGatherGemm, KernelConfig, tune
from agcli.backends.base import EngineOptions
from agcli.bench_hooks import BenchHooks, Timer
from agcli.errors import UsageError
from agcli.inputs import make_inputs
from agcli.problem import Plan, Problem
from agcli.rank import RankContext
from agcli.reference import all_gather_matmul
from agcli.tune_plan import TunePlan


class MadeUp:
    """Every call takes ``ms`` by this clock."""

    def __init__(self, ms: float) -> None:
        self._ms = ms
        self._calls = 0

    def start(self) -> None:
        pass

    def stop(self) -> None:
        self._calls += 1

    def ms(self) -> list[float]:
        return [self._ms] * self._calls


class Hooks(BenchHooks):
    """A clock that shows the last engine's ``ms``, a little more on rank 1."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.now_ms = 0.0

    def timer(self) -> Timer | None:
        return MadeUp(self.now_ms + 0.001 * self.rank)

    def cache_bytes(self) -> int:
        return 10_000


class Backend(StandIn):
    """Candidates take ``extra["ms"]``; ``extra["fault"]`` says what is wrong with one of them."""

    def __init__(self, ctx: RankContext) -> None:
        super().__init__(ctx, hooks=Hooks(ctx.rank))
        self.ran: list[float] = []

    def engine(self, plan: Plan, options: EngineOptions) -> Engine:
        fault = options.extra.get("fault", "")
        if fault == "refused":
            raise UsageError("too many stages")
        assert isinstance(self.hooks, Hooks)
        self.hooks.now_ms = options.extra.get("ms", 10.0)
        self.ran.append(self.hooks.now_ms)
        rank = self.ctx.rank

        def spoil(_: int, call: int, c: torch.Tensor) -> None:
            if fault == "no compile" and call == 1:
                raise RuntimeError("ub overflow, requires 2 bits\nand a trace")
            if (fault == "wrong" and rank == 1) or (fault == "wrong later" and rank == 0 and call > 4):
                c[0, 0] += 100

        self.fault = spoil
        return Engine(self)


def _run(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    backend = Backend(ctx)
    value = tune.run(ctx, TunePlan.from_json(payload), backend)
    return {**value, "ran": backend.ran, "closed": backend.closed}


def plain(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    return _run(ctx, payload)


def interrupted(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The user presses Ctrl-C once the second-best candidate is known."""
    publish = ctx.publish

    def then_stop(data: Any) -> None:
        publish(data)
        if data["result"]["entry"]["median_ms"] < 6:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)

    ctx.publish = then_stop  # type: ignore[method-assign]
    return _run(ctx, payload)


def operator(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """``AllGatherGemm(tuned=...)`` on the cpu backend."""
    ctx.init_process_group("gloo")
    problem = Problem(40, 64, 64, ctx.world)
    a, b = make_inputs(problem, "integers", 0, 1, ctx.rank)
    with AllGatherGemm(40, 64, 64, backend="cpu", tuned=payload["store"]) as gemm:
        right = torch.equal(gemm(a, b), all_gather_matmul(a, b))
        config, tuned = vars(gemm.plan.config), gemm.tuned
    refusal = ""
    try:
        AllGatherGemm(40, 64, 64, backend="cpu", tuned=payload["store"], config=KernelConfig())
    except UsageError as error:
        refusal = str(error)
    return {"right": right, "config": dict(config), "tuned": tuned, "refusal": refusal}
