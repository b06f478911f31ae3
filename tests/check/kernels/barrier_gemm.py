"""AllGather+GEMM with a barrier an iteration, as in the defining document; slots go on from launch to launch."""

import torch_npu  # noqa: F401
import triton
import triton.language as tl
import triton_dist.language as dl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device
from triton_dist.language.extra.ascend.algorithm import gemm_swizzle2d_Nz


@triton.jit
def kernel_allgather_gemm(
    a_ptr,
    b_ptr,
    c_ptr,
    peer_mem_ptr,
    rank,
    rank_size,
    buffer_num,
    first_slot,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    pvalue: tl.constexpr,
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    COMM_BLOCK_SIZE_M: tl.constexpr,
    COMM_BLOCK_SIZE_K: tl.constexpr,
):
    subblock_idx = sub_vec_id()
    ncore = tl.num_programs(axis=0)
    pid = tl.program_id(axis=0)
    rows_each = BLOCK_SIZE_M * pvalue
    for global_id_m in range(0, tl.cdiv(M, rows_each)):
        buffer_id = (first_slot + global_id_m) % buffer_num
        rows = tl.minimum(M - global_id_m * rows_each, rows_each)
        own_row = buffer_id * rows_each * rank_size + rank * rows_each
        if subblock_idx == 1:  # noqa: SIM102
            if pid < rank_size:
                for turn in range(pid, rank_size, ncore):
                    target_rank = (rank + turn) % rank_size
                    if target_rank != rank:
                        libshmem_device.putmem(
                            peer_mem_ptr + own_row * K, a_ptr + global_id_m * rows_each * K, rows * K * 2, target_rank
                        )
        if (subblock_idx == 0) or (pid >= rank_size):
            worker = pid
            if subblock_idx == 1:
                worker = ncore + pid - rank_size
            workers = ncore + tl.maximum(ncore - rank_size, 0)
            num_k = tl.cdiv(K, COMM_BLOCK_SIZE_K)
            for task in range(worker, tl.cdiv(rows, COMM_BLOCK_SIZE_M) * num_k, workers):
                offs_m = task // num_k * COMM_BLOCK_SIZE_M + tl.arange(0, COMM_BLOCK_SIZE_M)
                offs_k = task % num_k * COMM_BLOCK_SIZE_K + tl.arange(0, COMM_BLOCK_SIZE_K)
                row_mask = offs_m[:, None] < rows
                mask = (offs_k[None, :] < K) & row_mask
                a_ptrs = a_ptr + ((global_id_m * rows_each + offs_m)[:, None] * stride_am + offs_k[None, :] * stride_ak)
                a = tl.load(a_ptrs, mask=mask, other=0.0)
                own_mem = dl.symm_at(peer_mem_ptr, rank)
                tl.store(own_mem + ((own_row + offs_m)[:, None] * K + offs_k[None, :]), a, mask=mask)
        libshmem_device.barrier_all()
        tiles_m = tl.cdiv(rows, BLOCK_SIZE_M)
        for tile in range(pid, rank_size * tiles_m * tl.cdiv(N, BLOCK_SIZE_N), ncore):
            tile_m, tile_n = gemm_swizzle2d_Nz(tile, rank_size * BLOCK_SIZE_M * tiles_m, N, BLOCK_SIZE_M, BLOCK_SIZE_N)
            source = tile_m // tiles_m
            offs_m = tile_m % tiles_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
            offs_n = tile_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            mem_rows = (buffer_id * rank_size + source) * rows_each + offs_m
            acc = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
            for block_k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
                offs_k = block_k * BLOCK_SIZE_K + tl.arange(0, BLOCK_SIZE_K)
                k_mask = offs_k[None, :] < K
                a_ptrs = peer_mem_ptr + (mem_rows[:, None] * K + offs_k[None, :])
                b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
                a = tl.load(a_ptrs, mask=(offs_m[:, None] < rows) & k_mask, other=0.0)
                b = tl.load(b_ptrs, mask=(offs_k[:, None] < K) & (offs_n[None, :] < N), other=0.0)
                acc += tl.dot(a, b)
            c_rows = source * M + global_id_m * rows_each + offs_m
            c_mask = (offs_m[:, None] < rows) & (offs_n[None, :] < N)
            tl.store(
                c_ptr + (c_rows[:, None] * stride_cm + offs_n[None, :] * stride_cn), acc.to(tl.float16), mask=c_mask
            )
        # end of iteration
