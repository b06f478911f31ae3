"""The fused AllGather+GEMM kernel for Hopper GPUs: one persistent launch a call, symmetric memory, no barrier.

A ``[M, K]`` and B ``[K, N]`` of this rank, C ``[W * M, N]``; what the peers pushed lies in ``gathered``,
``[2 * W * M, K]`` (slot, source, row). Every program does three things at once, each by warps of its own:

- ``_push`` copies its units of the own shard into the peers' slots and counts them in the peers' flags;
- ``_load`` brings tiles of A and B into a ring in shared memory, own shard first, and waits for a flag where a peer's
  chunk begins;
- ``_multiply`` multiplies the ring's tiles and stores C.

The ring goes on from tile to tile, so that waiting for a peer delays neither pushes nor products that need no waiting.
The protocol, and why it needs no barrier, is in ``agcli/backends/cuda_engine.py``.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from agcli.backends import cuda_tuning

# What the peer stored is then read by TMA, which is another proxy than that of ordinary loads: hence the fence.
WAIT_ASM = gl.constexpr(cuda_tuning.WAIT_ASM.removesuffix("}") + "    fence.proxy.async.global;\n}")
PACE_ASM = gl.constexpr(cuda_tuning.PACE_ASM)
# Of a thread that pushes and one that loads; the rest multiplies. Some addresses of the pushes spill (Triton 3.6).
PUSH_REGISTERS = gl.constexpr(104)
LOAD_REGISTERS = gl.constexpr(24)
PASS_ROWS = gl.constexpr(16)  # pushed at a time, for all that a pass loads is in registers
# Gluon's names since Triton 3.7 and 3.9, and those of before.
_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
_tma_store = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global
_work_item = gluon.jit(cuda_tuning.work_item)
_push_unit = gluon.jit(cuda_tuning.push_unit)
_k_step = gluon.jit(cuda_tuning.k_step)
_enters_chunk = gluon.jit(cuda_tuning.enters_chunk)


@gluon.jit
def _wait_for(flag_address, target, limit_ns):
    """0 once the int32 at ``flag_address`` reached ``target``, 1 when ``limit_ns`` passed first."""
    return gl.inline_asm_elementwise(
        WAIT_ASM, "=&r,l,r,l", [flag_address, target, limit_ns.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _now():
    """The device clock in nanoseconds."""
    return gl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=gl.int64, is_pure=False, pack=1)


@gluon.jit
def _wait_until(due_ns):
    """Return when the device clock reads ``due_ns``."""
    gl.inline_asm_elementwise(PACE_ASM, "=&r,l", [due_ns], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _push(
    a_ptr, bases_ptr, epochs_ptr, M, K, a_stride, shard_bytes, rank, flags_offset, push_every_ns, chunks_m, chunks_k,
    C: gl.constexpr, WORLD: gl.constexpr,
):  # fmt: skip
    """Copy this program's units of the own shard into every peer's slot of this call, and count them up there.

    Unit u is stored no sooner than ``u * push_every_ns`` after the start: stores that come faster than the link takes
    them hold up the loads of the same multiprocessor.
    """
    began = _now()
    dtype: gl.constexpr = a_ptr.dtype.element_ty
    lanes_k: gl.constexpr = min(32, C.push_k // 8)
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // lanes_k, lanes_k], [C.push_warps, 1], [1, 0])
    passes: gl.constexpr = C.push_m // PASS_ROWS
    units = chunks_m * chunks_k * C.units_per_chunk
    epoch = gl.load(epochs_ptr + gl.program_id(0)) + 1
    rows = gl.arange(0, PASS_ROWS, gl.SliceLayout(1, layout))
    cols = gl.arange(0, C.push_k, gl.SliceLayout(0, layout))
    # Both are multiples of 8 or the launch would not be ours; saying so makes every access one of 16 bytes.
    width = K // 8 * 8
    stride = a_stride // 8 * 8
    for unit in range(gl.program_id(0), units, gl.num_programs(0)):
        chunk, unit_row, first_col = _push_unit(
            unit, chunks_k, C.units_per_chunk, C.chunk_m, C.chunk_k, C.push_m, C.push_k
        )
        for i in gl.static_range(passes):
            first_row = unit_row + i * PASS_ROWS
            mask = ((first_row + rows) < M)[:, None] & ((first_col + cols) < width)[None, :]
            source = a_ptr + first_row.to(gl.int64) * stride + first_col
            values = gl.load(source + (rows[:, None] * stride + cols[None, :]), mask=mask)
            if i == 0:
                _wait_until(began + push_every_ns.to(gl.int64) * unit)
            offset = first_row.to(gl.int64) * width + first_col
            offsets = rows[:, None] * width + cols[None, :]
            slot = ((epoch & 1) * WORLD + rank) * shard_bytes.to(gl.int64)
            for hop in gl.static_range(1, WORLD):
                peer = (rank + WORLD - hop) % WORLD
                shard = gl.load(bases_ptr + peer) + slot
                target = gl.multiple_of(shard.to(gl.pointer_type(dtype)), 16) + offset
                gl.store(target + offsets, values, mask=mask)
        # All warps' stores happen before the one release at system scope that follows the barrier.
        _barrier()
        for hop in gl.static_range(1, WORLD):
            peer = (rank + WORLD - hop) % WORLD
            flag = gl.load(bases_ptr + peer) + flags_offset + (rank * (chunks_m * chunks_k) + chunk) * 4
            gl.atomic_add(flag.to(gl.pointer_type(gl.int32)), 1, sem="release", scope="sys")


@gluon.jit
def _load(
    a_desc, gathered_desc, b_desc, a_ring, b_ring, full, empty, bases_ptr, epochs_ptr, error_ptr, M, N, K, rank,
    flags_offset, chunks_m, chunks_k, limit_ns, C: gl.constexpr, WORLD: gl.constexpr,
):  # fmt: skip
    """Fetch the A and B tiles of this program's work items into the ring, waiting where a peer's chunk begins.

    Every other item goes down K rather than up: what the item before read last, L2 still holds. After the first wait in
    vain there are no others, in this launch and those that follow.
    """
    tiles_m = gl.cdiv(M, C.block_m)
    tiles_n = gl.cdiv(N, C.block_n)
    steps = gl.cdiv(K, C.block_k)
    per_source = tiles_m * tiles_n * C.split_k
    stage = 0
    phase = 1
    failed = 0
    down = 0
    for item in range(gl.program_id(0), WORLD * per_source, gl.num_programs(0)):
        source, row, col, part = _work_item(item, per_source, tiles_m, tiles_n, rank, WORLD, C.split_k, C.group_m)
        first = part * steps // C.split_k
        last = (part + 1) * steps // C.split_k
        a_row = row * C.block_m
        target = 0
        flags = (gl.program_id(0) * 0).to(gl.int64)  # a tensor, as both branches must leave one
        if source != rank:  # only then: the own shard need not wait for the epoch to be loaded
            epoch = gl.load(epochs_ptr + gl.program_id(0)) + 1
            failed |= gl.load(epochs_ptr + gl.num_programs(0) + gl.program_id(0))
            target = epoch * C.units_per_chunk
            chunk = source * (chunks_m * chunks_k) + (a_row // C.chunk_m) * chunks_k
            flags = gl.load(bases_ptr + rank) + flags_offset + chunk * 4
            a_row += ((epoch & 1) * WORLD + source) * M
        for i in range(first, last):
            step = _k_step(i, first, last, down)
            mbarrier.wait(empty.index(stage), phase)
            bar = full.index(stage)
            mbarrier.expect(bar, a_desc.block_type.nbytes + b_desc.block_type.nbytes)
            _tma_load(b_desc, [step * C.block_k, col * C.block_n], bar, b_ring.index(stage))
            if source == rank:
                _tma_load(a_desc, [a_row, step * C.block_k], bar, a_ring.index(stage))
            else:
                if _enters_chunk(i, step, first, down, C.block_k, C.chunk_k) & (failed == 0):
                    failed = _wait_for(flags + step * C.block_k // C.chunk_k * 4, target, limit_ns)
                    if failed != 0:
                        gl.store(error_ptr, 1 + source)
                        gl.store(epochs_ptr + gl.num_programs(0) + gl.program_id(0), 1)
                _tma_load(gathered_desc, [a_row, step * C.block_k], bar, a_ring.index(stage))
            stage += 1
            if stage == C.stages:
                stage = 0
                phase ^= 1
        down ^= 1


@gluon.jit
def _split_columns(x, PARTS: gl.constexpr):
    """``x`` ``[R, S]`` as a tuple of PARTS blocks ``[R, S / PARTS]``, left to right."""
    if PARTS == 1:
        return (x,)
    else:  # noqa: RET505 - Triton compiles both branches of an `if` without `else`
        left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute(0, 2, 1).split()
        return _split_columns(left, PARTS // 2) + _split_columns(right, PARTS // 2)


@gluon.jit
def _store_masked(piece, corner, c_stride, rows_left, cols_left):
    """Store ``piece`` ``[R, S]`` at ``corner``, as far as there are rows and columns left."""
    layout: gl.constexpr = piece.type.layout
    rows = gl.arange(0, piece.shape[0], gl.SliceLayout(1, layout))
    cols = gl.arange(0, piece.shape[1], gl.SliceLayout(0, layout))
    mask = (rows < rows_left)[:, None] & (cols < cols_left)[None, :]
    gl.store(corner + (rows[:, None] * c_stride + cols[None, :]), piece, mask=mask)


@gluon.jit
def _store_tile(acc, c_desc, c_ptr, c_stage, source, row, col, M, N, c_stride, C: gl.constexpr, EVEN_M: gl.constexpr):
    """Round ``acc`` once and write it to its tile of C; rows beyond the shard and columns beyond N are left out."""
    dtype: gl.constexpr = c_desc.dtype
    parts: gl.constexpr = C.epilogue_parts
    width: gl.constexpr = C.block_n // parts
    buffers: gl.constexpr = min(parts, 2)
    pieces = _split_columns(acc, parts)
    for i in gl.static_range(parts):
        piece = pieces[i].to(dtype)
        first_col = col * C.block_n + i * width
        if EVEN_M:
            tma.store_wait(buffers - 1)
            _barrier()
            c_stage.index(i % buffers).store(piece)
            fence_async_shared()
            _barrier()
            _tma_store(c_desc, [source * M + row * C.block_m, first_col], c_stage.index(i % buffers))
        else:
            corner = c_ptr + (source * M + row * C.block_m).to(gl.int64) * c_stride + first_col
            _store_masked(piece, corner, c_stride, M - row * C.block_m, N - first_col)


@gluon.jit
def _multiply(
    c_desc,
    c_ptr,
    c_stage,
    a_ring,
    b_ring,
    full,
    empty,
    partial_ptr,
    turns_ptr,
    M,
    N,
    K,
    c_stride,
    rank,
    C: gl.constexpr,
    WORLD: gl.constexpr,
    EVEN_M: gl.constexpr,
):
    """Multiply the ring's tiles and store the results."""
    block_m: gl.constexpr = C.block_m
    block_n: gl.constexpr = C.block_n
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [C.warps, 1], [16, block_n, 16])
    tiles_m = gl.cdiv(M, C.block_m)
    tiles_n = gl.cdiv(N, C.block_n)
    steps = gl.cdiv(K, C.block_k)
    per_source = tiles_m * tiles_n * C.split_k
    stage = 0
    phase = 0
    for item in range(gl.program_id(0), WORLD * per_source, gl.num_programs(0)):
        source, row, col, part = _work_item(item, per_source, tiles_m, tiles_n, rank, WORLD, C.split_k, C.group_m)
        first = part * steps // C.split_k
        last = (part + 1) * steps // C.split_k
        acc = gl.zeros([block_m, block_n], gl.float32, layout)
        for step in range(first, last):
            mbarrier.wait(full.index(stage), phase)
            acc = warpgroup_mma(a_ring.index(stage), b_ring.index(stage), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=(acc,))
            # Both warpgroups are past the step before: its stage may be filled again.
            _barrier()
            mbarrier.arrive(empty.index((stage + C.stages - 1) % C.stages), pred=step > first)
            stage += 1
            if stage == C.stages:
                stage = 0
                phase ^= 1
        acc = warpgroup_mma_wait(0, deps=(acc,))
        _barrier()
        mbarrier.arrive(empty.index((stage + C.stages - 1) % C.stages), pred=last > first)
        if C.split_k == 1:
            _store_tile(acc, c_desc, c_ptr, c_stage, source, row, col, M, N, c_stride, C, EVEN_M)
        else:
            # The first of the two to finish leaves its half in the workspace; the second adds it to its own.
            tile = (source * tiles_m + row) * tiles_n + col
            in_tile = gl.arange(0, C.block_m, gl.SliceLayout(1, layout))[:, None] * C.block_n
            in_tile += gl.arange(0, C.block_n, gl.SliceLayout(0, layout))[None, :]
            halves = partial_ptr + tile.to(gl.int64) * (2 * C.block_m * C.block_n)
            gl.store(halves + part * (C.block_m * C.block_n) + in_tile, acc)
            _barrier()
            turn = gl.atomic_add(turns_ptr + tile, 1, sem="acq_rel", scope="gpu")
            if turn == 1:
                gl.store(turns_ptr + tile, 0)
                acc += gl.load(halves + (1 - part) * (C.block_m * C.block_n) + in_tile)
                _store_tile(acc, c_desc, c_ptr, c_stage, source, row, col, M, N, c_stride, C, EVEN_M)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["rank", "push_every_ns"])
def allgather_gemm_kernel(
    a_desc, gathered_desc, b_desc, c_desc, a_ptr, c_ptr, bases_ptr, epochs_ptr, partial_ptr, turns_ptr, error_ptr,
    M, N, K, a_stride, c_stride, rank, shard_bytes, flags_offset, limit_ns, push_every_ns,
    C: gl.constexpr, WORLD: gl.constexpr, EVEN_M: gl.constexpr,
):  # fmt: skip
    """``C = all_gather(A) @ B`` in one persistent launch."""
    dtype: gl.constexpr = a_desc.dtype
    a_ring = gl.allocate_shared_memory(dtype, [C.stages, C.block_m, C.block_k], a_desc.layout)
    b_ring = gl.allocate_shared_memory(dtype, [C.stages, C.block_k, C.block_n], b_desc.layout)
    c_stage = gl.allocate_shared_memory(
        dtype, [min(C.epilogue_parts, 2), C.block_m, C.block_n // C.epilogue_parts], c_desc.layout
    )
    full = gl.allocate_shared_memory(gl.int64, [C.stages, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [C.stages, 1], mbarrier.MBarrierLayout())
    stages: gl.constexpr = C.stages
    for i in gl.static_range(stages):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    chunks_m = gl.cdiv(M, C.chunk_m)
    chunks_k = gl.cdiv(K, C.chunk_k)
    # Asked for now and used at the end, which then need not wait for it.
    calls = gl.load(epochs_ptr + gl.program_id(0))
    # fmt: off
    gl.warp_specialize(
        [
            (_multiply, (c_desc, c_ptr, c_stage, a_ring, b_ring, full, empty, partial_ptr, turns_ptr, M, N, K,
                         c_stride, rank, C, WORLD, EVEN_M)),
            (_push, (a_ptr, bases_ptr, epochs_ptr, M, K, a_stride, shard_bytes, rank, flags_offset, push_every_ns,
                     chunks_m, chunks_k, C, WORLD)),
            (_load, (a_desc, gathered_desc, b_desc, a_ring, b_ring, full, empty, bases_ptr, epochs_ptr, error_ptr,
                     M, N, K, rank, flags_offset, chunks_m, chunks_k, limit_ns, C, WORLD)),
        ],
        [C.push_warps, 1],
        [PUSH_REGISTERS, LOAD_REGISTERS],
    )
    # fmt: on
    # All of this program have read its copy of the number of the call.
    gl.store(epochs_ptr + gl.program_id(0), calls + 1)
