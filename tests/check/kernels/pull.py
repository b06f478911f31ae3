"""All-gather of vectors by pulling: publish, barrier of the vector cores, getmem_nbi from every peer, quiet."""

import triton
import triton.language as tl
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(src_ptr, dst_ptr, mem_ptr, rank, rank_size, launch, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    ncore = tl.num_programs(0)
    offs = tl.arange(0, BLOCK)
    slot = mem_ptr + launch % 2 * n
    if pid == 0:
        tl.store(slot + offs, tl.load(src_ptr + offs, mask=offs < n, other=0.0), mask=offs < n)
    libshmem_device.barrier_all_vec()
    for turn in range(pid, rank_size, ncore):
        source = (rank + turn) % rank_size
        libshmem_device.getmem_nbi(dst_ptr + source * n, slot, n * 2, source)
    libshmem_device.quiet()
    for turn in range(pid, rank_size, ncore):
        place = dst_ptr + (rank + turn) % rank_size * n + offs
        tl.store(place, tl.load(place, mask=offs < n, other=0.0) + 1.0, mask=offs < n)
