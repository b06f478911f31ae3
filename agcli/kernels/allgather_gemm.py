"""The fused AllGather+GEMM kernel: one source for the NPU, the simulator and the offline compiler.

Legend: W ranks (``rank_size``), A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank, and
symmetric memory ``peer_mem`` ``[buffer_num, W * BLOCK_SIZE_M * pvalue, K]``, row-major whatever the strides of A are.

Iteration i moves rows ``[i, i + 1) * BLOCK_SIZE_M * pvalue`` of every rank's A into one slot of every rank's
``peer_mem``, meets all ranks in a barrier, and multiplies that slot by B. Vector cores move, cube cores multiply, so
the vector cores fill the next slot while the cube cores still read this one.

Why one barrier an iteration is enough: a core reaches barrier i + 1 only after it has finished its part of iteration
i, so whoever has passed it may overwrite every slot but that of iteration i + 1. That asks for ``buffer_num >= 2`` and,
as nothing stops a fast rank at the end of a launch, for the next launch to go on with the slot after the last one:
the caller passes ``first_slot``. Restarting at slot 0 lets it overwrite what a slow peer still multiplies.

``rank`` and ``first_slot`` are not specialised, so that all ranks and launches share one binary.
"""

import triton
import triton.language as tl

from agcli.kernels import primitives
from agcli.kernels.swizzle import dist_swizzle2d_Nz, gemm_swizzle2d_Nz


@triton.jit
def copy_tile(
    src_ptr, dst_ptr, rows, cols, stride_sm, stride_sk, stride_dm,
    COMM_BLOCK_SIZE_M: tl.constexpr, COMM_BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    """Copy the ``[rows, cols]`` corner of a communication tile; what lies beyond is neither read nor written."""
    offs_m = tl.arange(0, COMM_BLOCK_SIZE_M)[:, None]
    offs_k = tl.arange(0, COMM_BLOCK_SIZE_K)[None, :]
    mask = (offs_m < rows) & (offs_k < cols)
    tile = tl.load(src_ptr + (offs_m * stride_sm + offs_k * stride_sk), mask=mask, other=0.0)
    tl.store(dst_ptr + (offs_m * stride_dm + offs_k), tile, mask=mask)


@triton.jit
def push_by_store(
    a_ptr, peer_mem_ptr, rank, rank_size, first_row, slot_row, rows, K, stride_am, stride_ak,
    COMM_BLOCK_SIZE_M: tl.constexpr, COMM_BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    """Vector core 0 of every AI core writes tiles straight into the peers' memory, its own included.

    Tiles and targets are one flat task space, and targets are rotated by the own rank, so that all cores have work and
    no peer is written by all ranks at once.
    """
    num_tasks = tl.cdiv(rows, COMM_BLOCK_SIZE_M) * tl.cdiv(K, COMM_BLOCK_SIZE_K) * rank_size
    if primitives.sub_vec_id() == 0:
        for task in range(tl.program_id(axis=0), num_tasks, tl.num_programs(axis=0)):
            tile_m, tile_k, turn = dist_swizzle2d_Nz(task, rank_size, rows, K, COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_K)
            row = tile_m * COMM_BLOCK_SIZE_M
            col = tile_k * COMM_BLOCK_SIZE_K
            src_ptr = a_ptr + (first_row + row).to(tl.int64) * stride_am + col.to(tl.int64) * stride_ak
            dst_ptr = primitives.symm_at(peer_mem_ptr, (rank + turn) % rank_size)
            dst_ptr = dst_ptr + (slot_row + row).to(tl.int64) * K + col
            copy_tile(
                src_ptr, dst_ptr, rows - row, K - col, stride_am, stride_ak, K, COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_K
            )


@triton.jit
def push_by_putmem(
    a_ptr, peer_mem_ptr, rank, rank_size, first_row, slot_row, rows, K, stride_am, stride_ak,
    COMM_BLOCK_SIZE_M: tl.constexpr, COMM_BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    """One large transfer to each peer by vector core 1 of the first W AI cores; the others copy the own shard.

    The transfer engine takes one core a peer and likes large blocks; it needs the rows of A to be contiguous
    (``stride_am == K``, ``stride_ak == 1``). It uses scratch in UB that the compiler does not reserve, so no core that
    puts also copies tiles.
    """
    core = tl.program_id(axis=0)
    ncore = tl.num_programs(axis=0)
    subblock_idx = primitives.sub_vec_id()
    element_bits: tl.constexpr = a_ptr.dtype.element_ty.primitive_bitwidth  # triton-ascend 3.2 has no int // constexpr
    row_bytes = K * (element_bits // 8)
    if subblock_idx == 1:
        if core < rank_size:
            for target_rank in range(core, rank_size, ncore):
                if target_rank != rank:
                    primitives.putmem(
                        peer_mem_ptr + slot_row.to(tl.int64) * K,
                        a_ptr + first_row.to(tl.int64) * K,
                        rows * row_bytes,
                        target_rank,
                    )
    if (subblock_idx == 0) or (core >= rank_size):
        worker = core
        if subblock_idx == 1:
            worker = ncore + core - rank_size
        num_workers = ncore + tl.maximum(ncore - rank_size, 0)
        num_cols = tl.cdiv(K, COMM_BLOCK_SIZE_K)
        for task in range(worker, tl.cdiv(rows, COMM_BLOCK_SIZE_M) * num_cols, num_workers):
            row = task // num_cols * COMM_BLOCK_SIZE_M
            col = task % num_cols * COMM_BLOCK_SIZE_K
            src_ptr = a_ptr + (first_row + row).to(tl.int64) * stride_am + col.to(tl.int64) * stride_ak
            dst_ptr = peer_mem_ptr + (slot_row + row).to(tl.int64) * K + col
            copy_tile(
                src_ptr, dst_ptr, rows - row, K - col, stride_am, stride_ak, K, COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_K
            )


@triton.jit
def multiply_slot(
    b_ptr, c_ptr, slot_ptr, rank_size, first_row, rows, M, N, K,
    stride_bk, stride_bn, stride_cm, stride_cn,
    pvalue: tl.constexpr, BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr,
):  # fmt: skip
    """Multiply the gathered rows of one slot by B and store them to their places in C.

    The slot holds ``rows`` rows of each rank, one rank's rows every ``BLOCK_SIZE_M * pvalue``.
    """
    offs_m = tl.arange(0, BLOCK_SIZE_M)[:, None]
    offs_n = tl.arange(0, BLOCK_SIZE_N)[None, :]
    offs_ak = tl.arange(0, BLOCK_SIZE_K)[None, :]
    offs_bk = tl.arange(0, BLOCK_SIZE_K)[:, None]
    a_offs = offs_m * K + offs_ak
    b_offs = offs_bk * stride_bk + offs_n * stride_bn
    num_tiles_m = tl.cdiv(rows, BLOCK_SIZE_M)
    num_tiles = rank_size * num_tiles_m * tl.cdiv(N, BLOCK_SIZE_N)
    for tile in range(tl.program_id(axis=0), num_tiles, tl.num_programs(axis=0)):
        tile_m, tile_n = gemm_swizzle2d_Nz(tile, rank_size * num_tiles_m * BLOCK_SIZE_M, N, BLOCK_SIZE_M, BLOCK_SIZE_N)
        source_rank = tile_m // num_tiles_m
        row = tile_m % num_tiles_m * BLOCK_SIZE_M
        col = tile_n * BLOCK_SIZE_N
        mask_m = offs_m < rows - row
        mask_n = offs_n < N - col
        a_base = slot_ptr + (source_rank * (BLOCK_SIZE_M * pvalue) + row).to(tl.int64) * K
        b_base = b_ptr + col.to(tl.int64) * stride_bn
        accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
        for block_k in range(0, tl.cdiv(K, BLOCK_SIZE_K)):
            k = block_k * BLOCK_SIZE_K
            a = tl.load(a_base + k + a_offs, mask=mask_m & (offs_ak < K - k), other=0.0)
            b = tl.load(b_base + k.to(tl.int64) * stride_bk + b_offs, mask=mask_n & (offs_bk < K - k), other=0.0)
            accumulator += tl.dot(a, b)
        c = accumulator.to(c_ptr.dtype.element_ty)
        c_row = source_rank.to(tl.int64) * M + first_row + row
        c_base = c_ptr + c_row * stride_cm + col.to(tl.int64) * stride_cn
        tl.store(c_base + (offs_m * stride_cm + offs_n * stride_cn), c, mask=mask_m & mask_n)


@triton.jit(do_not_specialize=["rank", "first_slot"])
def kernel_allgather_gemm(
    # Pointers
    a_ptr,  # local A [M, K]
    b_ptr,  # local B [K, N]
    c_ptr,  # output C [rank_size * M, N]
    peer_mem_ptr,  # symmetric memory [buffer_num, rank_size * BLOCK_SIZE_M * pvalue, K]
    # World
    rank,
    rank_size,
    buffer_num,
    first_slot,  # slot of iteration 0; the next launch's is (first_slot + iterations) % buffer_num
    # Sizes and strides, in elements
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    # Meta-parameters
    pvalue: tl.constexpr,  # tile rows of A gathered per iteration
    BLOCK_SIZE_M: tl.constexpr,
    BLOCK_SIZE_N: tl.constexpr,
    BLOCK_SIZE_K: tl.constexpr,
    COMM_BLOCK_SIZE_M: tl.constexpr,
    COMM_BLOCK_SIZE_K: tl.constexpr,
    TRANSPORT: tl.constexpr,  # "putmem" or "store"
):
    """``C = all_gather(A) @ B``. The grid is one-dimensional and must not exceed the AI cores of the device.

    fp16 or bf16 with fp32 accumulation and one rounding; any M, N, K >= 1. Offsets inside a tile are 32-bit, bases of
    tiles are scalar 64-bit.
    """
    for iteration in range(0, tl.cdiv(M, BLOCK_SIZE_M * pvalue)):
        slot = (first_slot + iteration) % buffer_num
        slot_row = slot * (rank_size * BLOCK_SIZE_M * pvalue)
        own_row = slot_row + rank * (BLOCK_SIZE_M * pvalue)
        first_row = iteration * (BLOCK_SIZE_M * pvalue)
        rows = tl.minimum(M - first_row, BLOCK_SIZE_M * pvalue)
        if TRANSPORT == "putmem":
            push_by_putmem(
                a_ptr, peer_mem_ptr, rank, rank_size, first_row, own_row, rows, K, stride_am, stride_ak,
                COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_K,
            )  # fmt: skip
        else:
            push_by_store(
                a_ptr, peer_mem_ptr, rank, rank_size, first_row, own_row, rows, K, stride_am, stride_ak,
                COMM_BLOCK_SIZE_M, COMM_BLOCK_SIZE_K,
            )  # fmt: skip
        primitives.barrier_all()
        multiply_slot(
            b_ptr, c_ptr, peer_mem_ptr + slot_row.to(tl.int64) * K, rank_size, first_row, rows, M, N, K,
            stride_bk, stride_bn, stride_cm, stride_cn, pvalue, BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K,
        )  # fmt: skip
