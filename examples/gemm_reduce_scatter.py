"""GEMM+ReduceScatter: the cube leaves partial products in its own symmetric memory, peers add up what is theirs."""

import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    mem_ptr,
    rank,
    rank_size,
    launch,
    m_per_rank,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    num_n = tl.cdiv(N, BLOCK_N)
    num_m = tl.cdiv(m_per_rank, BLOCK_M)
    slot = mem_ptr + launch % 2 * rank_size * m_per_rank * N
    for tile in range(pid, rank_size * num_m * num_n, ncore):
        owner = tile // (num_m * num_n)
        offs_m = tile % (num_m * num_n) // num_n * BLOCK_M + tl.arange(0, BLOCK_M)
        offs_n = tile % num_n * BLOCK_N + tl.arange(0, BLOCK_N)
        rows = owner * m_per_rank + offs_m
        row_mask = offs_m[:, None] < m_per_rank
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BLOCK_K)):
            offs_k = k * BLOCK_K + tl.arange(0, BLOCK_K)
            a = tl.load(a_ptr + (rows[:, None] * K + offs_k[None, :]), mask=row_mask & (offs_k[None, :] < K), other=0.0)
            b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
            b = tl.load(b_ptr + (offs_k[:, None] * N + offs_n[None, :]), mask=b_mask, other=0.0)
            acc += tl.dot(a, b)
        tl.store(slot + (rows[:, None] * N + offs_n[None, :]), acc, mask=row_mask & (offs_n[None, :] < N))
    libshmem_device.barrier_all()
    if sub_vec_id() == 0:
        for task in range(pid, rank_size * num_m, ncore):
            source = (rank + task // num_m) % rank_size
            offs_m = task % num_m * BLOCK_M + tl.arange(0, BLOCK_M)
            for block_n in range(0, num_n):
                offs_n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
                mask = (offs_m[:, None] < m_per_rank) & (offs_n[None, :] < N)
                remote = dl.symm_at(slot, source)
                part = tl.load(remote + ((rank * m_per_rank + offs_m)[:, None] * N + offs_n[None, :]), mask=mask)
                tl.atomic_add(c_ptr + (offs_m[:, None] * N + offs_n[None, :]), part, mask=mask)
