"""All-gather of vectors by putmem_signal: data and signal in one call, two slots that launches take in turn."""

import triton
import triton.language as tl
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(src_ptr, dst_ptr, mem_ptr, sig_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    slot = mem_ptr + launch % 2 * rank_size * n
    for turn in range(pid, rank_size, ncore):
        target = (rank + turn) % rank_size
        libshmem_device.putmem_signal(slot + rank * n, src_ptr, n * 2, sig_ptr + rank, launch + 1, 0, target)
    for source in range(0, rank_size):
        libshmem_device.signal_wait_until(sig_ptr + source, 3, launch + 1)
    for source in range(pid, rank_size, ncore):
        offs = tl.arange(0, BLOCK)
        data = tl.load(slot + source * n + offs, mask=offs < n, other=0.0)
        tl.store(dst_ptr + source * n + offs, data, mask=offs < n)
