"""Ring all-gather of vectors on vector cores alone: each chunk goes round, to the right neighbour, behind a signal."""

import triton
import triton.language as tl
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(src_ptr, dst_ptr, ring_ptr, sig_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    first = tl.program_id(0) * BLOCK
    mask = offs < n
    right = (rank + 1) % rank_size
    slot = ring_ptr + launch % 2 * rank_size * n
    words = sig_ptr + tl.program_id(0) * rank_size
    tl.store(slot + rank * n + offs, tl.load(src_ptr + offs, mask=mask, other=0.0), mask=mask)
    for step in range(0, rank_size - 1):
        chunk = (rank - step + rank_size) % rank_size
        if step > 0:
            libshmem_device.signal_wait_until(words + chunk, 3, launch + 1)
        place = slot + chunk * n + first
        libshmem_device.putmem_nbi(place, place, tl.minimum(n - first, BLOCK) * 2, right)
        libshmem_device.quiet()
        libshmem_device.signal_op(words + chunk, launch + 1, 0, right)
    libshmem_device.signal_wait_until(words + (rank + 1) % rank_size, 3, launch + 1)
    for chunk in range(0, rank_size):
        tl.store(dst_ptr + chunk * n + offs, tl.load(slot + chunk * n + offs, mask=mask, other=0.0), mask=mask)
