"""The cuda backend's protocol in the simulator's primitives: pushes, epoch-valued flags, two slots in turn, no barrier.

Each rank pushes its shard to every peer's slot ``epoch % 2`` and then sets the peer's flag for it to the epoch; tiles
of a remote shard wait for its flag, tiles of the own shard read A in place.
"""

import triton
import triton.language as tl
from triton.language.extra.cann.extension import sub_vec_id
from triton_dist.language.extra import libshmem_device


@triton.jit
def multiply(a_ptr, b_ptr, c_ptr, M, N, K, col, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    offs_m = tl.arange(0, BLOCK_M)
    offs_n = col + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        offs_k = k * BLOCK_K + tl.arange(0, BLOCK_K)
        a_mask = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        a = tl.load(a_ptr + (offs_m[:, None] * K + offs_k[None, :]), mask=a_mask, other=0.0)
        b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
        b = tl.load(b_ptr + (offs_k[:, None] * N + offs_n[None, :]), mask=b_mask, other=0.0)
        acc += tl.dot(a, b)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(c_ptr + (offs_m[:, None] * N + offs_n[None, :]), acc.to(tl.float16), mask=mask)


@triton.jit
def kernel(
    a_ptr, b_ptr, c_ptr, peer_mem_ptr, sig_ptr, rank, rank_size, epoch, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    slot_ptr = peer_mem_ptr + epoch % 2 * rank_size * M * K
    if sub_vec_id() == 1:  # 0 would let the cube, where it is 0 too, set the flag before the data
        for turn in range(1 + pid, rank_size, ncore):
            target = (rank + turn) % rank_size
            libshmem_device.putmem(slot_ptr + rank * M * K, a_ptr, M * K * 2, target)
            libshmem_device.signal_op(sig_ptr + rank, epoch, 0, target)
    tiles_n = tl.cdiv(N, BLOCK_N)
    for tile in range(pid, rank_size * tiles_n, ncore):
        source = (rank + tile // tiles_n) % rank_size
        col = tile % tiles_n * BLOCK_N
        if source == rank:
            multiply(a_ptr, b_ptr, c_ptr + source * M * N, M, N, K, col, BLOCK_M, BLOCK_N, BLOCK_K)
        else:
            libshmem_device.signal_wait_until(sig_ptr + source, 3, epoch)
            shard_ptr = slot_ptr + source * M * K
            multiply(shard_ptr, b_ptr, c_ptr + source * M * N, M, N, K, col, BLOCK_M, BLOCK_N, BLOCK_K)
