"""All-reduce of vectors: everybody sends to everybody and adds to a counter of the receiver.

Launches take two counters in turn, since a fast rank may be one launch ahead.
"""

import triton
import triton.language as tl
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(src_ptr, dst_ptr, mem_ptr, sig_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    offs = tl.arange(0, BLOCK)
    slot = mem_ptr + launch % 2 * rank_size * n
    for turn in range(pid, rank_size, ncore):
        target = (rank + turn) % rank_size
        libshmem_device.putmem(slot + rank * n, src_ptr, n * 2, target)
        libshmem_device.signal_op(sig_ptr + launch % 2, 1, 1, target)
    if pid == 0:
        libshmem_device.signal_wait_until(sig_ptr + launch % 2, 3, (launch // 2 + 1) * rank_size)
        total = tl.zeros((BLOCK,), dtype=tl.float32)
        for source in range(0, rank_size):
            total += tl.load(slot + source * n + offs, mask=offs < n, other=0.0).to(tl.float32)
        tl.store(dst_ptr + offs, total.to(tl.float16), mask=offs < n)
