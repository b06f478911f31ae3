"""What the ranks of test_world.py do."""

import time
from pathlib import Path

import torch
from machines import launch

from agcli.backends.cpu import CpuBackend
from agcli.simulator.binding import load_kernel

KERNELS = Path(__file__).with_name("kernels_world.py")


def _world(ctx):
    backend = CpuBackend()
    backend.start(ctx)
    return backend, backend._world


def exchange_values(ctx, payload):
    """Every rank stores its number to all; each returns what it received."""
    backend, world = _world(ctx)
    peer = world.allocate((ctx.world,), torch.int32, "")
    out = torch.zeros(ctx.world, dtype=torch.int32)
    launch(load_kernel(KERNELS, "tell_everybody"), peer, out, ctx.world, cores=2, world=world)
    world.free(peer)
    backend.finish()
    return out.tolist()


def one_fails(ctx, payload):
    """Rank 1 reads outside a tensor before the barrier."""
    _, world = _world(ctx)
    size = 2 if ctx.rank == 1 else 8
    launch(load_kernel(KERNELS, "read_then_barrier"), torch.zeros(size), torch.zeros(8), world=world)


def one_hangs_in_its_launch(ctx, payload):
    """Rank 0 sleeps for ever as soon as it is in its launch."""
    _, world = _world(ctx)
    begin = world.begin

    def begin_and_hang():
        number = begin()
        if ctx.rank == 0:
            time.sleep(300)
        return number

    world.begin = begin_and_hang
    launch(load_kernel(KERNELS, "read_then_barrier"), torch.zeros(8), torch.zeros(8), world=world)


def one_skips_the_barrier(ctx, payload):
    """Rank 1's kernel has no barrier."""
    _, world = _world(ctx)
    launch(load_kernel(KERNELS, "barriers"), 0 if ctx.rank == 1 else 1, world=world)
    ctx.init_process_group("gloo")
    torch.distributed.barrier()


def all_wait_for_signals(ctx, payload):
    """No rank ever signals."""
    _, world = _world(ctx)
    signal = world.allocate((16,), torch.int32, "")
    launch(load_kernel(KERNELS, "wait_for_signal"), signal, world=world)


def add_often(ctx, payload):
    """Two vector cores add by atomics, these and the cube by signals; rank 0 returns the sums."""
    backend, world = _world(ctx)
    peer = world.allocate((64,), torch.int32, "")
    launch(load_kernel(KERNELS, "add_often"), peer, payload["times"], world=world)
    sums = [int(peer[0]), int(peer[16]), int(peer[32])]
    world.free(peer)
    backend.finish()
    return sums
