"""Rank 0 hands values to rank 1 behind a flag that is always 1: the receiver resets it before it says so."""

import triton
import triton.language as tl
import triton_dist.language as dl


@triton.jit
def kernel(src_ptr, dst_ptr, mem_ptr, sig_ptr, rank, chunks, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    if tl.program_id(0) == 0:
        for i in range(0, chunks):
            if rank == 0:
                remote = dl.symm_at(mem_ptr, 1)
                tl.store(remote + offs, tl.load(src_ptr + i * n + offs, mask=offs < n, other=0.0), mask=offs < n)
                dl.notify(sig_ptr, 1, signal=1, sig_op="set", comm_scope="intra_node")
                token = dl.wait(sig_ptr + 16, 1, "gpu", "acquire", waitValue=1)
                tl.store(dl.consume_token(sig_ptr + 16, token), 0)
            else:
                token = dl.wait(sig_ptr, 1, "gpu", "acquire", waitValue=1)
                data = tl.load(dl.consume_token(mem_ptr, token) + offs, mask=offs < n, other=0.0)
                tl.store(dst_ptr + i * n + offs, data, mask=offs < n)
                tl.store(sig_ptr, 0)
                dl.notify(sig_ptr + 16, 0, signal=1, sig_op="set", comm_scope="intra_node")
