"""What ranks do in the tests of ``smoke``: its worker function with one fault each. Run in ranks, imported by name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any
from unittest import mock

import torch

from agcli import compare, smoke, verify
from agcli.rank import RankContext

FAULTY_CASE = 5  # odd-fp16-putmem on the cpu backend


def touch(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """One element of C is changed on rank 1 in one case."""
    add = compare.Comparison.add
    comparisons = iter(range(1000))

    def touched(self: compare.Comparison, gathered: Any, b: Any, c: torch.Tensor, *rest: Any) -> None:
        if next(comparisons) == FAULTY_CASE and ctx.rank == 1:
            c[100, 3] += 64
        add(self, gathered, b, c, *rest)

    with mock.patch.object(compare.Comparison, "add", touched):
        return smoke.run_rank(ctx, payload)


def die(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 is killed when it begins a case."""
    verify_plan = verify.verify_plan
    verified = iter(range(1000))

    def dying(*args: Any) -> Any:
        if next(verified) == FAULTY_CASE and ctx.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return verify_plan(*args)

    with mock.patch.object(verify, "verify_plan", dying):
        return smoke.run_rank(ctx, payload)


def sleep(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Ranks that go on and on, always making progress."""
    for second in range(1000):
        ctx.phase(f"second {second}")
        time.sleep(1)
    return {}
