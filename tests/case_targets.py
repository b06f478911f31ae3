"""What ranks do in test_cases.py: ``verify`` with a delay or an early end in one rank."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any
from unittest import mock

from agcli import verify
from agcli.rank import RankContext
from agcli.simulator.machine import Machine


def late_after_each_barrier(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 sleeps 20 ms between each barrier and the multiplication that follows it."""
    poll = Machine.poll

    def slow(self: Machine) -> None:
        waited = [gate.number is not None for gate in self.gates.values()]
        poll(self)
        if ctx.rank == 1 and any(waited) and all(gate.number is None for gate in self.gates.values()):
            time.sleep(0.02)

    with mock.patch.object(Machine, "poll", slow):
        return verify.run_rank(ctx, payload)


def exits_quietly(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 1 leaves with status 0 before it reported."""
    if ctx.rank == 1:
        sys.exit(0)
    return verify.run_rank(ctx, payload)


def killed(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 2 is killed by signal 9 while the others run."""
    if ctx.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return verify.run_rank(ctx, payload)


def raises(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Rank 0 raises before its first call."""
    if ctx.rank == 0:
        raise OSError("no such file")
    return verify.run_rank(ctx, payload)


if __name__ == "__main__":  # python case_targets.py TARGET verify --world ...
    from agcli.main import main

    verify.RANK_TARGET = f"case_targets:{sys.argv[1]}"
    sys.exit(main(sys.argv[2:]))
