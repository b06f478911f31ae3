"""The fused AllGather+GEMM kernel for operands that tensor descriptors cannot address, and for GPUs other than Hopper.

Same protocol, symmetric memory and flags as ``allgather_gemm_cuda``, so that ranks may differ in which of the two they
launch; but every program first pushes its units and then multiplies, with masked loads through pointers. Right for any
M, N, K and any strides, and slower.
"""

# Triton reads the annotations and the argument list as they are: no postponed annotations here.
import triton
import triton.language as tl

from agcli.backends import cuda_tuning

WAIT_ASM = tl.constexpr(cuda_tuning.WAIT_ASM)
_work_item = triton.jit(cuda_tuning.work_item)
_push_unit = triton.jit(cuda_tuning.push_unit)


@triton.jit
def _push(
    a_ptr, bases_ptr, epoch, M, K, a_row, a_col, rank, shard_bytes, flags_offset, chunks_m, chunks_k,
    C: tl.constexpr, WORLD: tl.constexpr,
):  # fmt: skip
    """Copy this program's units of the own shard into every peer's slot of this call, and count them up there."""
    push_m: tl.constexpr = C.push_m
    push_k: tl.constexpr = C.push_k
    dtype = a_ptr.dtype.element_ty
    for unit in range(tl.program_id(0), chunks_m * chunks_k * C.units_per_chunk, tl.num_programs(0)):
        chunk, first_row, first_col = _push_unit(
            unit, chunks_k, C.units_per_chunk, C.chunk_m, C.chunk_k, C.push_m, C.push_k
        )
        rows = (first_row + tl.arange(0, push_m)).to(tl.int64)[:, None]
        cols = (first_col + tl.arange(0, push_k)).to(tl.int64)[None, :]
        mask = (rows < M) & (cols < K)
        values = tl.load(a_ptr + rows * a_row + cols * a_col, mask=mask)
        for hop in tl.static_range(1, WORLD):
            peer = (rank + WORLD - hop) % WORLD
            shard = tl.load(bases_ptr + peer) + ((epoch & 1) * WORLD + rank) * shard_bytes.to(tl.int64)
            tl.store(shard.to(tl.pointer_type(dtype)) + rows * K + cols, values, mask=mask)
        tl.debug_barrier()
        for hop in tl.static_range(1, WORLD):
            peer = (rank + WORLD - hop) % WORLD
            flag = tl.load(bases_ptr + peer) + flags_offset + (rank * (chunks_m * chunks_k) + chunk) * 4
            tl.atomic_add(flag.to(tl.pointer_type(tl.int32)), 1, sem="release", scope="sys")


@triton.jit(do_not_specialize=["rank"])
def allgather_gemm_any_kernel(
    a_ptr, b_ptr, c_ptr, bases_ptr, epochs_ptr, error_ptr, M, N, K, a_row, a_col, b_row, b_col, c_row, c_col,
    rank, shard_bytes, flags_offset, limit_ns,
    C: tl.constexpr, WORLD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``C = all_gather(A) @ B``; a ``[M, K]``, b ``[K, N]``, c ``[W * M, N]``, with strides in elements.

    BLOCK_M divides ``C.chunk_m``.
    """
    dtype = a_ptr.dtype.element_ty
    chunks_m = tl.cdiv(M, C.chunk_m)
    chunks_k = tl.cdiv(K, C.chunk_k)
    epoch = tl.load(epochs_ptr + tl.program_id(0)) + 1
    _push(a_ptr, bases_ptr, epoch, M, K, a_row, a_col, rank, shard_bytes, flags_offset, chunks_m, chunks_k, C, WORLD)
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    own = tl.load(bases_ptr + rank)
    failed = tl.load(epochs_ptr + tl.num_programs(0) + tl.program_id(0))  # 1 since a wait in vain
    wide = tl.full([], 1, tl.int64)  # sizes and strides that are 1 are Python integers here and cannot be cast
    for item in range(tl.program_id(0), WORLD * tiles_m * tiles_n, tl.num_programs(0)):
        source, row, col, _ = _work_item(item, tiles_m * tiles_n, tiles_m, tiles_n, rank, WORLD, 1, 8)
        rows = (row * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
        cols = (col * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        ks = tl.arange(0, BLOCK_K).to(tl.int64)
        shard = (own + ((epoch & 1) * WORLD + source) * shard_bytes.to(tl.int64)).to(tl.pointer_type(dtype))
        row_stride = wide * K
        col_stride = wide
        if source == rank:
            shard = a_ptr
            row_stride = wide * a_row
            col_stride = wide * a_col
        a_tile = shard + rows[:, None] * row_stride + ks[None, :] * col_stride
        b_tile = b_ptr + ks[:, None] * b_row + cols[None, :] * b_col
        flags = own + flags_offset + (source * (chunks_m * chunks_k) + row * BLOCK_M // C.chunk_m * chunks_k) * 4
        if source != rank:
            # All chunks of these rows, ahead of the loop: the compiler moves its loads ahead of a wait inside it.
            for chunk in range(chunks_k):
                if failed == 0:
                    failed = tl.inline_asm_elementwise(
                        WAIT_ASM, "=&r,l,r,l", [flags + chunk * 4, epoch * C.units_per_chunk, limit_ns.to(tl.int64)],
                        dtype=tl.int32, is_pure=False, pack=1,
                    )  # fmt: skip
                    if failed != 0:
                        tl.store(error_ptr, 1 + source)
                        tl.store(epochs_ptr + tl.num_programs(0) + tl.program_id(0), 1)
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            in_k = ks < K - k
            a = tl.load(a_tile, mask=(rows < M)[:, None] & in_k[None, :], other=0.0)
            b = tl.load(b_tile, mask=in_k[:, None] & (cols < N)[None, :], other=0.0)
            acc = tl.dot(a, b, acc)
            a_tile += BLOCK_K * col_stride
            b_tile += BLOCK_K * (wide * b_row)
        c_tile = c_ptr + (source * wide * M + rows)[:, None] * c_row + cols[None, :] * c_col
        tl.store(c_tile, acc.to(dtype), mask=(rows < M)[:, None] & (cols < N)[None, :])
    tl.store(epochs_ptr + tl.program_id(0), epoch)
