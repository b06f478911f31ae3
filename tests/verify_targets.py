"""What ranks do in the tests of ``verify``: ``run_rank`` with one fault each. Run in ranks, imported by name."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from agcli import compare, inputs, verify
from agcli.problem import Problem
from agcli.rank import RankContext

Fault = Callable[[RankContext, torch.Tensor, int], None]


def _with_touched_c(ctx: RankContext, payload: dict[str, Any], fault: Fault) -> dict[str, Any]:
    """``fault(ctx, c, launch)`` changes C in place before each comparison."""
    add = compare.Comparison.add
    launches = iter(range(1, 10_000))

    def touched(self: compare.Comparison, gathered: Any, b: Any, c: torch.Tensor, *rest: Any) -> None:
        fault(ctx, c, next(launches))
        add(self, gathered, b, c, *rest)

    with mock.patch.object(compare.Comparison, "add", touched):
        return verify.run_rank(ctx, payload)


def touch(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(ctx: RankContext, c: torch.Tensor, launch: int) -> None:
        if ctx.rank == 1:
            c[0, 0] += 1000

    return _with_touched_c(ctx, payload, fault)


def touch_second_launch(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(ctx: RankContext, c: torch.Tensor, launch: int) -> None:
        if ctx.rank == 0 and launch == 2:
            c[-1, -1] += 1000

    return _with_touched_c(ctx, payload, fault)


def one_nan(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(ctx: RankContext, c: torch.Tensor, launch: int) -> None:
        if ctx.rank == 1:
            c[3, 5] = float("nan")

    return _with_touched_c(ctx, payload, fault)


def all_nan(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(ctx: RankContext, c: torch.Tensor, launch: int) -> None:
        c.fill_(float("nan"))

    return _with_touched_c(ctx, payload, fault)


def exchanged_ranks(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def fault(ctx: RankContext, c: torch.Tensor, launch: int) -> None:
        m = payload["problem"]["m"]
        c[: 2 * m] = c[: 2 * m].roll(m, dims=0)

    return _with_touched_c(ctx, payload, fault)


def ones(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    def make(problem: Problem, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(problem.a_shape, dtype=torch.float16), torch.ones(problem.b_shape, dtype=torch.float16)

    with mock.patch.object(inputs, "make_inputs", make):
        return verify.run_rank(ctx, payload)


def cancelling(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """A's rows are [256, 256], B's columns [256, -256]: each product is beyond fp16, the sum is 0."""

    def make(problem: Problem, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        column = torch.tensor([256.0, -256.0], dtype=torch.float16)
        a = torch.full(problem.a_shape, 256.0, dtype=torch.float16)
        return a, column[:, None].expand(problem.b_shape).contiguous()

    with mock.patch.object(inputs, "make_inputs", make):
        return verify.run_rank(ctx, payload)


def raise_before_launch(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    if ctx.rank == 1:
        raise RuntimeError("no such luck")
    return verify.run_rank(ctx, payload)


def exit_before_report(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    if ctx.rank == 1:
        sys.exit(0)
    return verify.run_rank(ctx, payload)


def never_launch(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    make_inputs = inputs.make_inputs

    def slow(*args: Any) -> Any:
        if ctx.rank == 1:
            time.sleep(1000)
        return make_inputs(*args)

    with mock.patch.object(inputs, "make_inputs", slow):
        return verify.run_rank(ctx, payload)
