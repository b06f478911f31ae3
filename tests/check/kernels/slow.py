"""Correct kernels that break a rule which costs speed."""

import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def split_by_rank(src_ptr, dst_ptr, mem_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    """Work is divided along the ranks alone, so that with more cores than ranks some have nothing to do."""
    offs = tl.arange(0, BLOCK)
    slot = mem_ptr + launch % 2 * rank_size * n
    for turn in range(tl.program_id(0), rank_size, tl.num_programs(0)):
        remote = dl.symm_at(slot, (rank + turn) % rank_size)
        for block in range(0, tl.cdiv(n, BLOCK)):
            at = block * BLOCK + offs
            tl.store(remote + rank * n + at, tl.load(src_ptr + at, mask=at < n, other=0.0), mask=at < n)
    libshmem_device.barrier_all()
    if tl.program_id(0) == 0:
        tl.store(dst_ptr + offs, tl.load(slot + offs))


@triton.jit
def all_to_one_peer(src_ptr, dst_ptr, mem_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    """All ranks go over the peers in the same order."""
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    offs = tl.arange(0, BLOCK)
    slot = mem_ptr + launch % 2 * rank_size * n
    for target in range(0, rank_size):
        for block in range(pid, tl.cdiv(n, BLOCK), ncore):
            at = block * BLOCK + offs
            remote = dl.symm_at(slot, target)
            tl.store(remote + rank * n + at, tl.load(src_ptr + at, mask=at < n, other=0.0), mask=at < n)
    libshmem_device.barrier_all()
    tl.store(dst_ptr + pid * BLOCK + offs, tl.load(slot + pid * BLOCK + offs))


@triton.jit
def atomics_on_peers(src_ptr, dst_ptr, mem_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    """Every rank adds to the sum of every other."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for turn in range(0, rank_size):
        remote = dl.symm_at(mem_ptr + launch % 2 * rank_size * n, (rank + turn) % rank_size)
        tl.atomic_add(remote + offs, tl.load(src_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)
    libshmem_device.barrier_all()
    tl.store(dst_ptr + offs, tl.load(mem_ptr + launch % 2 * rank_size * n + offs, mask=offs < n), mask=offs < n)


@triton.jit
def stored_twice(src_ptr, dst_ptr, mem_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    """Both vector cores do all of it, although one asks which it is."""
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = mem_ptr + launch % 2 * rank_size * n
    tl.store(slot + offs, tl.load(src_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)
    libshmem_device.barrier_all()
    if sub_vec_id() == 1:
        tl.store(dst_ptr + offs, tl.load(slot + offs, mask=offs < n), mask=offs < n)
    square = tl.dot(tl.load(src_ptr + tl.arange(0, 16)[:, None] * 0), tl.load(src_ptr + tl.arange(0, 16)[None, :] * 0))
    tl.store(dst_ptr + rank_size * n - 1 + tl.zeros((16, 16), tl.int32), square, mask=square < -1000.0)
