"""What checking costs: the time of the default sweep, and the slow-down against plain simulation of the same shapes.

    python benchmarks/check.py           both (about a minute)
    python benchmarks/check.py --ratio   the slow-down alone

Plain simulation runs the same launches of the same ranks in one process under the simulator's own scheduler, without
clocks, shadows and reports. The two are interleaved; a figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, whose cuda.py would pass for the package of that name

import torch  # noqa: E402

from agcli.backends.cpu import KERNEL_FILE, KERNEL_NAME  # noqa: E402
from agcli.check.cases import BLOCKS, K, N  # noqa: E402
from agcli.check.run import Rank, run, split_kernel  # noqa: E402
from agcli.problem import Plan, Problem, make_plan  # noqa: E402
from agcli.simulator.launch import bind, tasks_of  # noqa: E402
from agcli.simulator.machine import Machine  # noqa: E402
from agcli.simulator.memory import Buffer  # noqa: E402
from agcli.simulator.scheduler import Scheduler, Task  # noqa: E402
from agcli.simulator.split import SplitKernel  # noqa: E402
from agcli.slotted import kernel_arguments  # noqa: E402

ROUNDS, LAUNCHES, CORES, MINUTES = 5, 3, 3, 2


class Together:
    """One rank's view of ranks that all run in this process; ``counters`` are barriers entered by rank."""

    def __init__(self, rank: int, counters: list[dict[str, int]]) -> None:
        self.rank = rank
        self.size = len(counters)
        self._counters = counters

    def enter(self, scope: str) -> int:
        """All tasks of this rank are at a barrier."""
        own = self._counters[self.rank]
        own[scope] = own.get(scope, 0) + 1
        return own[scope]

    def complete(self, scope: str, number: int) -> bool:
        """Whether all ranks are."""
        return not self.missing(scope, number)

    def missing(self, scope: str, number: int) -> list[int]:
        """Ranks that are not."""
        return [rank for rank, own in enumerate(self._counters) if own.get(scope, 0) < number]

    def stuck(self, turn: int, waits: dict[str, int]) -> str | None:
        """Nothing here gets stuck."""
        return None

    def exclusive(self) -> AbstractContextManager[None]:
        """All ranks are in this thread: nothing to lock."""
        return nullcontext()

    def waiting(self, text: str) -> None:
        """Nobody to tell."""

    def running(self) -> None:
        """Nobody to tell."""


def operands(plan: Plan) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A, B and C of a rank."""
    return (
        torch.randn(plan.problem.a_shape).half(),
        torch.randn(plan.problem.b_shape).half(),
        torch.empty(plan.problem.c_shape).half(),
    )


def plain(kernel: SplitKernel, plan: Plan) -> float:
    """Seconds of all launches without checking."""
    world = plan.problem.world
    memory = [torch.zeros(plan.peer_shape).half() for _ in range(world)]
    buffers = [Buffer(t, "peer_mem", r, torch.zeros(t.numel(), dtype=torch.uint8)) for r, t in enumerate(memory)]
    for buffer in buffers:
        buffer.peers = tuple(buffers)
    symmetric = {t.data_ptr(): b for t, b in zip(memory, buffers, strict=True)}
    counters: list[dict[str, int]] = [{} for _ in range(world)]
    began = time.perf_counter()
    for launch in range(LAUNCHES):
        tasks: list[Task] = []
        for rank in range(world):
            slot = launch * plan.iterations % plan.config.buffer_num
            named = kernel_arguments(plan, rank, *operands(plan), memory[rank], slot)
            machine = Machine(rank, CORES, Together(rank, counters), launch)
            tasks += tasks_of(kernel, machine, bind(kernel, (), named, rank, symmetric))
        Scheduler(tasks).run()
    return time.perf_counter() - began


def checked(kernel: SplitKernel, plan: Plan) -> float:
    """Seconds of the same launches under the detector."""

    def arguments(rank: Rank) -> dict[str, object]:
        memory = rank.symmetric("peer_mem", plan.peer_shape, torch.float16)
        slot = rank.launch * plan.iterations % plan.config.buffer_num
        return kernel_arguments(plan, rank.rank, *operands(plan), memory, slot)

    result = run(kernel, arguments, world=plan.problem.world, cores=CORES, launches=LAUNCHES)
    assert result.clean, str(result)
    return result.seconds


def ratios() -> None:
    """Print the slow-down for each world and transport."""
    torch.set_num_threads(1)
    kernel = split_kernel(f"{KERNEL_FILE}:{KERNEL_NAME}")
    print(f"{LAUNCHES} launches, {CORES} cores a rank, M = 96, N = {N}, K = {K}, one thread")
    for world in (2, 4):
        for transport in ("store", "putmem"):
            plan = make_plan(Problem(96, N, K, world), BLOCKS.with_options(transport=transport), None)
            times = [(plain(kernel, plan), checked(kernel, plan)) for _ in range(ROUNDS)]
            bare, full = (statistics.median(column) for column in zip(*times, strict=True))
            print(f"W={world} {transport:6}  plain {bare:.3f} s  checked {full:.3f} s  slow-down {full / bare:.1f}x")


def sweep() -> int:
    """Print the time of ``ag-gemm check``; 1 if it finds a fault or takes more than two minutes."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "agcli", "check"], capture_output=True, text=True, cwd=sys.path[0])
    seconds = time.perf_counter() - began
    print(done.stdout.splitlines()[-1] if done.stdout else done.stderr)
    print(f"default sweep: {seconds:.0f} s (limit {MINUTES * 60} s)")
    return int(done.returncode != 0 or seconds > MINUTES * 60)


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratio", action="store_true", help="the slow-down alone")
    ratio = parser.parse_args().ratio
    ratios()
    return 0 if ratio else sweep()


if __name__ == "__main__":
    sys.exit(main())
