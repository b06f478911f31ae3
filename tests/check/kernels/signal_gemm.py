"""AllGather+GEMM without a barrier an iteration: each source signals its rows, the cube waits for its source alone.

Every iteration has a slot of its own, so that one barrier at the end of a launch frees them all.
"""

import triton
import triton.language as tl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    peer_mem_ptr,
    sig_ptr,
    rank,
    rank_size,
    launch,
    M,
    N,
    K,
    ROWS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    num_iter = tl.cdiv(M, ROWS)
    offs_m = tl.arange(0, ROWS)
    if sub_vec_id() == 1:
        for task in range(pid, num_iter * rank_size, ncore):
            i = task // rank_size
            target = (rank + task % rank_size) % rank_size
            row = (i * rank_size + rank) * ROWS
            rows = tl.minimum(M - i * ROWS, ROWS)
            libshmem_device.putmem(peer_mem_ptr + row * K, a_ptr + i * ROWS * K, rows * K * 2, target)
            libshmem_device.signal_op(sig_ptr + i * rank_size + rank, launch + 1, 0, target)
    for tile in range(pid, num_iter * rank_size * tl.cdiv(N, BLOCK_N), ncore):
        word = tile % (num_iter * rank_size)
        offs_n = tile // (num_iter * rank_size) * BLOCK_N + tl.arange(0, BLOCK_N)
        rows = tl.minimum(M - word // rank_size * ROWS, ROWS)
        libshmem_device.signal_wait_until(sig_ptr + word, 3, launch + 1)
        acc = tl.zeros((ROWS, BLOCK_N), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BLOCK_K)):
            offs_k = k * BLOCK_K + tl.arange(0, BLOCK_K)
            a_ptrs = peer_mem_ptr + ((word * ROWS + offs_m)[:, None] * K + offs_k[None, :])
            a = tl.load(a_ptrs, mask=(offs_m[:, None] < rows) & (offs_k[None, :] < K), other=0.0)
            b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
            b = tl.load(b_ptr + (offs_k[:, None] * N + offs_n[None, :]), mask=b_mask, other=0.0)
            acc += tl.dot(a, b)
        c_rows = word % rank_size * M + word // rank_size * ROWS + offs_m
        mask = (offs_m[:, None] < rows) & (offs_n[None, :] < N)
        tl.store(c_ptr + (c_rows[:, None] * N + offs_n[None, :]), acc.to(tl.float16), mask=mask)
    libshmem_device.barrier_all()
