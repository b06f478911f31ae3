"""Run small kernels on one simulated rank."""

from agcli.simulator.launch import bind, run
from agcli.simulator.machine import Machine
from agcli.simulator.split import SplitKernel
from agcli.simulator.world import SharedWorld


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
        run(split, Machine(0, cores, world, number), bind(split, args, kwargs, 0, world.symmetric))
        failed = False
    finally:
        world.end(failed)
    return split
