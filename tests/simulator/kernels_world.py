"""Kernels for several rank processes."""

import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def tell_everybody(peer_ptr, out_ptr, world):
    if sub_vec_id() == 0:
        for target in range(tl.program_id(0), world, tl.num_programs(0)):
            tl.store(dl.symm_at(peer_ptr, target) + dl.rank(), dl.rank() * 10)
    libshmem_device.barrier_all()
    if sub_vec_id() == 0:
        for source in range(tl.program_id(0), world, tl.num_programs(0)):
            tl.store(out_ptr + source, tl.load(peer_ptr + source))


@triton.jit
def read_then_barrier(x_ptr, out_ptr):
    offs = tl.arange(0, 8)
    tl.store(out_ptr + offs, tl.load(x_ptr + offs))
    libshmem_device.barrier_all()


@triton.jit
def barriers(count):
    for _ in range(0, count):
        libshmem_device.barrier_all()


@triton.jit
def wait_for_signal(sig_ptr):
    libshmem_device.signal_wait_until(sig_ptr, 0, 1)


@triton.jit
def add_often(peer_ptr, times):
    """Every vector core of every rank adds 1 to one element of rank 0 by an atomic and to another by a signal."""
    for _ in range(0, times):
        tl.atomic_add(dl.symm_at(peer_ptr, 0), 1)
        dl.notify(peer_ptr + 16, 0, signal=1, sig_op="add")
    if sub_vec_id() == 0:
        tl.atomic_cas(peer_ptr + 32, 0, 7)
    libshmem_device.barrier_all()
