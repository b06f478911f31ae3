"""What ranks do in the tests of ``bench``: ``bench.run`` over a stand-in for a platform, with one fault or quirk each.

The stand-in multiplies with torch over gloo. Run in ranks, imported by name.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from agcli import bench
from agcli.backends.base import EngineOptions, Need
from agcli.bench_hooks import BenchHooks, Product, Timer
from agcli.bench_plan import BenchPlan
from agcli.chips import Chip
from agcli.problem import Plan, Problem
from agcli.rank import RankContext
from agcli.reference import all_gather_matmul

Fault = Callable[[int, int, torch.Tensor], None]
"""``fault(rank, call, c)``: calls count from 1."""


class Engine:
    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.calls = 0

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        self.calls += 1
        self.backend.addresses.append(a.data_ptr())
        all_gather_matmul(a, b, out=c)
        self.backend.fault(self.backend.ctx.rank, self.calls, c)

    def poison(self) -> None:
        pass

    def place(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self.backend.closed += 1


class Backend:
    """A platform with one way of transport and no clock of its own, unless ``hooks`` says otherwise."""

    name = "cpu"

    def __init__(self, ctx: RankContext, fault: Fault = lambda *_: None, hooks: BenchHooks | None = None) -> None:
        self.ctx = ctx
        self.fault = fault
        self.hooks = hooks or BenchHooks()
        self.addresses: list[int] = []
        self.closed = 0

    def needs(self) -> list[Need]:
        return []

    def device_count(self) -> int:
        return 64

    def chip(self, soc: str | None) -> Chip | None:
        return None

    def bench_hooks(self) -> BenchHooks:
        return self.hooks

    def start(self, ctx: RankContext) -> None:
        ctx.init_process_group("gloo")

    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> dict[str, str]:
        return {"device": f"stand-in {self.ctx.rank}", "torch": torch.__version__}

    def engine(self, plan: Plan, options: EngineOptions) -> Engine:
        return Engine(self)

    def synchronize(self) -> None:
        pass

    def finish(self) -> None:
        self.ctx.close()


def _run(ctx: RankContext, payload: dict[str, Any], backend: Backend) -> dict[str, Any]:
    value = bench.run(ctx, BenchPlan.from_json(payload), backend)
    return {**value, "addresses": backend.addresses, "closed": backend.closed}


def plain(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    return _run(ctx, payload, Backend(ctx))


def one_is_slow(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    return _run(ctx, payload, Backend(ctx, lambda rank, call, c: time.sleep(1e-3 * (rank == 1))))


def exchanged(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Row blocks of ranks 0 and 1 change places, as if a peer's memory had been taken for the own."""

    def fault(rank: int, call: int, c: torch.Tensor) -> None:
        m = c.shape[0] // ctx.world
        c[: 2 * m] = c[: 2 * m].roll(m, 0)

    return _run(ctx, payload, Backend(ctx, fault))


def wrong_later(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Right when called once, wrong on one rank when calls follow each other, as a race would be."""

    def fault(rank: int, call: int, c: torch.Tensor) -> None:
        if rank == 1 and call > 1:
            c[0, 0] = float("nan")

    return _run(ctx, payload, Backend(ctx, fault))


def idle_later(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The first call multiplies, later ones do nothing: C is right if another implementation has filled it before."""
    backend = Backend(ctx)
    multiply = Engine.run

    def run(self: Engine, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        if self.calls:
            self.calls += 1
        else:
            multiply(self, a, b, c)

    with mock.patch.object(Engine, "run", run):
        return _run(ctx, payload, backend)


class CountingTimer:
    """Every call takes ``rank + 1`` ms by this clock, the last one ten times as long on rank 0."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.started = self.stopped = 0

    def start(self) -> None:
        assert self.started == self.stopped
        self.started += 1

    def stop(self) -> None:
        self.stopped += 1

    def ms(self) -> list[float]:
        times = [self.rank + 1.0] * self.stopped
        if self.rank == 0:
            times[-1] *= 10
        return times


def refuse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("this version does not take such sizes\n[ERROR] 161002")


class RichHooks(BenchHooks):
    """All that a platform can add."""

    can_capture = True
    transports = ("store", "putmem")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.captured = 0

    def timer(self) -> Timer | None:
        return CountingTimer(self.rank)

    def vendor(self, problem: Problem) -> tuple[str, Product | None]:
        if problem.k < 32:
            return "K must be at least 32", None
        return "stand-in", refuse if problem.k == 48 else all_gather_matmul

    def capture(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.captured += 1
        if self.rank == 1 and self.captured == 1:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        return call

    def peak(self) -> tuple[float, str] | None:
        return 1.0, "made up"

    def cache_bytes(self) -> int:
        return 10_000


def rich(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    return _run(ctx, payload, Backend(ctx, hooks=RichHooks(ctx.rank)))


def interrupted(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The user presses Ctrl-C as soon as the first row is there."""
    publish = ctx.publish

    def then_stop(data: Any) -> None:
        publish(data)
        if "rows" in data:
            os.kill(os.getppid(), signal.SIGINT)
            time.sleep(60)

    ctx.publish = then_stop  # type: ignore[method-assign]
    return _run(ctx, payload, Backend(ctx))


def dies(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 2 is killed in the timed loop of the second problem."""
    calls_per_problem = 1 + payload["warmup"] + 2 + payload["iterations"]

    def fault(rank: int, call: int, c: torch.Tensor) -> None:
        if rank == 2 and c.shape[1] == payload["shapes"][-1]["n"] and call == calls_per_problem - 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return _run(ctx, payload, Backend(ctx, fault))


def cannot_compile(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(rank: int, call: int, c: torch.Tensor) -> None:
        raise ValueError("ub overflow, requires 2097152 bits while 1572864 bits available")

    print("a library's chatter")
    return _run(ctx, payload, Backend(ctx, fault))
