"""The kernel of the defining document as it is printed there, with the imports that it needs."""

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
    dtype = tl.float16
    subblock_idx = sub_vec_id()
    ncore = tl.num_programs(axis=0)
    pid = tl.program_id(axis=0)
    num_loops_m = tl.cdiv(M, BLOCK_SIZE_M * pvalue)
    num_loops_n = tl.cdiv(N, BLOCK_SIZE_N)
    buffer_row_size = BLOCK_SIZE_M * pvalue * rank_size
    for global_id_m in range(0, num_loops_m):
        buffer_id = global_id_m % buffer_num
        actual_block_size_m = BLOCK_SIZE_M * pvalue
        if global_id_m == num_loops_m - 1:
            actual_block_size_m = M - global_id_m * BLOCK_SIZE_M * pvalue
        num_k_blocks = tl.cdiv(K, BLOCK_SIZE_K)
        comm_num_m_blocks = tl.cdiv(actual_block_size_m, COMM_BLOCK_SIZE_M)
        comm_num_k_blocks = tl.cdiv(K, COMM_BLOCK_SIZE_K)
        if subblock_idx == 1:  # noqa: SIM102
            if pid < rank_size:
                for target_rank in range(pid, rank_size, ncore):
                    if target_rank != rank:
                        libshmem_device.putmem(
                            peer_mem_ptr + (buffer_id * buffer_row_size + rank * BLOCK_SIZE_M * pvalue) * K,
                            a_ptr + global_id_m * BLOCK_SIZE_M * pvalue * K,
                            actual_block_size_m * K * dtype.primitive_bitwidth // 8,
                            target_rank,
                        )
        if subblock_idx == 0 or (subblock_idx == 1 and pid >= rank_size):
            total_core = ncore + max(ncore - rank_size, 0)
            local_pid = pid
            if subblock_idx == 1:
                local_pid = ncore + pid - rank_size
            for k in range(local_pid, comm_num_m_blocks * comm_num_k_blocks, total_core):
                block_id_m = k // comm_num_k_blocks
                block_id_k = k % comm_num_k_blocks
                comm_row_shape = tl.minimum(actual_block_size_m - block_id_m * COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_M)
                remote_ptr = dl.symm_at(peer_mem_ptr, rank)
                comm_offs_m = (
                    tl.arange(0, COMM_BLOCK_SIZE_M)
                    + block_id_m * COMM_BLOCK_SIZE_M
                    + global_id_m * BLOCK_SIZE_M * pvalue
                )
                comm_offs_k = tl.arange(0, COMM_BLOCK_SIZE_K) + block_id_k * COMM_BLOCK_SIZE_K
                a_ptrs = a_ptr + (comm_offs_m[:, None] * stride_am + comm_offs_k[None, :] * stride_ak)
                peermem_comm_offs_m = (
                    buffer_id * buffer_row_size
                    + rank * BLOCK_SIZE_M * pvalue
                    + block_id_m * COMM_BLOCK_SIZE_M
                    + tl.arange(0, COMM_BLOCK_SIZE_M)
                )
                remote_ptrs = remote_ptr + (peermem_comm_offs_m[:, None] * stride_am + comm_offs_k[None, :] * stride_ak)
                comm_msk_m = comm_offs_m[:, None] < M
                peermem_comm_msk_m = (
                    peermem_comm_offs_m[:, None]
                    < buffer_id * buffer_row_size
                    + BLOCK_SIZE_M * rank * pvalue
                    + block_id_m * COMM_BLOCK_SIZE_M
                    + comm_row_shape
                )
                a = tl.load(a_ptrs, mask=(comm_offs_k[None, :] < K) & comm_msk_m, other=0.0)
                tl.store(remote_ptrs, a, mask=(comm_offs_k[None, :] < K) & peermem_comm_msk_m)
        libshmem_device.barrier_all()
        num_tiles_m = tl.cdiv(actual_block_size_m, BLOCK_SIZE_M)
        for block_id in range(pid, num_tiles_m * num_loops_n * rank_size, ncore):
            block_id_m, block_id_n = gemm_swizzle2d_Nz(
                block_id, rank_size * BLOCK_SIZE_M * num_tiles_m, N, BLOCK_SIZE_M, BLOCK_SIZE_N
            )
            rank_idx = block_id_m // num_tiles_m
            block_id_m = rank_idx * pvalue + (block_id_m % num_tiles_m)
            accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
            matmul_offs_am = buffer_id * buffer_row_size + block_id_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
            matmul_msk_am = matmul_offs_am[:, None] < (
                buffer_id * buffer_row_size + BLOCK_SIZE_M * rank_idx * pvalue + actual_block_size_m
            )
            offs_bn = block_id_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            msk_n = offs_bn[None, :] < N
            for block_id_k in range(0, num_k_blocks):
                offs_k = tl.arange(0, BLOCK_SIZE_K) + block_id_k * BLOCK_SIZE_K
                a_ptrs = peer_mem_ptr + (matmul_offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
                b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
                a = tl.load(a_ptrs, mask=(offs_k[None, :] < K) & matmul_msk_am, other=0.0)
                b = tl.load(b_ptrs, mask=(offs_k[:, None] < K) & msk_n, other=0.0)
                accumulator += tl.dot(a, b)
                tl.extra.cann.extension.compile_hint(accumulator, "matmul_at_least_once")
            c = accumulator.to(dtype)
            offs_cm = (
                block_id_m // pvalue * M
                + global_id_m * BLOCK_SIZE_M * pvalue
                + (block_id_m % pvalue) * BLOCK_SIZE_M
                + tl.arange(0, BLOCK_SIZE_M)
            )
            offs_cn = block_id_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
            c_mask = (offs_cm[:, None] < M * (block_id_m // pvalue + 1)) & (offs_cn[None, :] < N)
            tl.store(c_ptrs, c, mask=c_mask)
