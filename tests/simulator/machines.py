"""Run kernels in this process: small ones on one simulated rank, the fused kernel on all ranks of a plan."""

from contextlib import nullcontext

import torch

from agcli.backends.cpu import KERNEL_FILE, KERNEL_NAME
from agcli.simulator.binding import load_kernel
from agcli.simulator.launch import bind, run, tasks_of
from agcli.simulator.machine import Machine
from agcli.simulator.memory import Buffer
from agcli.simulator.scheduler import Scheduler
from agcli.simulator.split import SplitKernel
from agcli.simulator.world import SharedWorld
from agcli.slotted import kernel_arguments


def alone():
    """A world of one rank in this process."""
    return SharedWorld(0, 1, lambda value: [value])


def launch(kernel, *args, cores=1, world=None, **kwargs):
    """Launch a kernel once; returns it split, for what the split found."""
    world = world or alone()
    split = kernel if isinstance(kernel, SplitKernel) else SplitKernel(kernel)
    number = world.begin()
    failed = True
    try:
        run(split, Machine(world.rank, cores, world, number), bind(split, args, kwargs, world.rank, world.symmetric))
        failed = False
    finally:
        world.end(failed)
    return split


class Together:
    """One rank's view of a world whose ranks all run in this process, under one scheduler."""

    def __init__(self, rank, counters):
        self.rank = rank
        self.size = len(counters)
        self._counters = counters  # by rank: barriers entered, by scope

    def enter(self, scope):
        own = self._counters[self.rank]
        own[scope] = own.get(scope, 0) + 1
        return own[scope]

    def complete(self, scope, number):
        return not self.missing(scope, number)

    def missing(self, scope, number):
        return [rank for rank, own in enumerate(self._counters) if own.get(scope, 0) < number]

    def stuck(self, turn, waits):
        return "no task of any rank can go on" if turn > 2 else None

    def exclusive(self):
        return nullcontext()

    def waiting(self, text):
        pass

    def running(self):
        pass


def symmetric(shape, dtype, world):
    """Symmetric memory of every rank, filled with NaN, and the buffers by data pointer."""
    tensors = [torch.full(shape, float("nan"), dtype=dtype) for _ in range(world)]
    buffers = [Buffer(t, "peer_mem", r, torch.zeros(t.numel(), dtype=torch.uint8)) for r, t in enumerate(tensors)]
    for buffer in buffers:
        buffer.peers = tuple(buffers)
    return tensors, {t.data_ptr(): b for t, b in zip(tensors, buffers, strict=True)}


class WorldOfKernels:
    """``kernel_allgather_gemm`` on all ranks of a plan in this process; slots go on from launch to launch."""

    def __init__(self, plan, cores):
        self.plan = plan
        self.cores = cores
        self.dtype = torch.float16 if plan.problem.dtype == "fp16" else torch.bfloat16
        self.memory, self.buffers = symmetric(plan.peer_shape, self.dtype, plan.problem.world)
        self.kernel = SplitKernel(load_kernel(KERNEL_FILE, KERNEL_NAME))
        counters = [{} for _ in range(plan.problem.world)]
        self.worlds = [Together(rank, counters) for rank in range(plan.problem.world)]
        self.launches = 0
        self.first_slot = 0

    def run(self, a, b, c):
        """One launch on every rank; ``a``, ``b``, ``c`` are lists by rank."""
        tasks = []
        for rank, world in enumerate(self.worlds):
            named = kernel_arguments(self.plan, rank, a[rank], b[rank], c[rank], self.memory[rank], self.first_slot)
            machine = Machine(rank, self.cores, world, self.launches)
            tasks += tasks_of(self.kernel, machine, bind(self.kernel, (), named, rank, self.buffers))
        Scheduler(tasks).run()
        self.launches += 1
        self.first_slot = self.plan.next_slot(self.first_slot)
