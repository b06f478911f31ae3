"""AllGather+GEMM with dl.notify and dl.wait: one signal a source and launch, a barrier at the end."""

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
    peer_mem_ptr,
    sig_ptr,
    launch,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rank = dl.rank()
    rank_size = dl.num_ranks()
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    offs_m = tl.arange(0, BLOCK_M)
    if sub_vec_id() == 1:
        for turn in range(pid, rank_size, ncore):
            target = (rank + turn) % rank_size
            remote = dl.symm_at(peer_mem_ptr, target)
            for k in range(0, tl.cdiv(K, BLOCK_K)):
                offs_k = k * BLOCK_K + tl.arange(0, BLOCK_K)
                mask = (offs_m[:, None] < M) & (offs_k[None, :] < K)
                a = tl.load(a_ptr + (offs_m[:, None] * K + offs_k[None, :]), mask=mask, other=0.0)
                tl.store(remote + ((rank * M + offs_m)[:, None] * K + offs_k[None, :]), a, mask=mask)
            dl.notify(sig_ptr + rank * 16, target, signal=launch + 1, sig_op="set", comm_scope="intra_node")
    for tile in range(pid, rank_size * tl.cdiv(N, BLOCK_N), ncore):
        source = tile % rank_size
        offs_n = tile // rank_size * BLOCK_N + tl.arange(0, BLOCK_N)
        token = dl.wait(sig_ptr + source * 16, 1, "gpu", "acquire", waitValue=launch + 1)
        mem_ptr = dl.consume_token(peer_mem_ptr, token)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, tl.cdiv(K, BLOCK_K)):
            offs_k = k * BLOCK_K + tl.arange(0, BLOCK_K)
            a_ptrs = mem_ptr + ((source * M + offs_m)[:, None] * K + offs_k[None, :])
            a = tl.load(a_ptrs, mask=(offs_m[:, None] < M) & (offs_k[None, :] < K), other=0.0)
            b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
            b = tl.load(b_ptr + (offs_k[:, None] * N + offs_n[None, :]), mask=b_mask, other=0.0)
            acc += tl.dot(a, b)
        mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
        tl.store(c_ptr + ((source * M + offs_m)[:, None] * N + offs_n[None, :]), acc.to(tl.float16), mask=mask)
    libshmem_device.barrier_all()
