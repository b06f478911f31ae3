"""Rank 0 streams chunks to rank 1 through one slot: ready and free signals, both kept in step by growing values."""

import triton
import triton.language as tl
from triton_dist.language.extra import libshmem_device


@triton.jit
def kernel(src_ptr, dst_ptr, mem_ptr, sig_ptr, rank, launch, chunks, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        for i in range(0, chunks):
            turn = launch * chunks + i
            if rank == 0:
                libshmem_device.signal_wait_until(sig_ptr + 1, 3, turn)
                libshmem_device.putmem_nbi(mem_ptr, src_ptr + i * n, n * 2, 1)
                libshmem_device.fence()
                libshmem_device.signal_op(sig_ptr, turn + 1, 0, 1)
            else:
                libshmem_device.signal_wait_until(sig_ptr, 3, turn + 1)
                data = tl.load(mem_ptr + offs, mask=offs < n, other=0.0)
                tl.store(dst_ptr + i * n + offs, data, mask=offs < n)
                libshmem_device.signal_op(sig_ptr + 1, turn + 1, 0, 0)
    libshmem_device.quiet()
