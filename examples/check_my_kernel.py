"""Verify and check a kernel of one's own, here GEMM+ReduceScatter, on simulated cores.

    python examples/check_my_kernel.py

Four ranks, each with A ``[4 * 20, 32]`` and B ``[32, 24]``; rank r ends with its 20 rows of the sum of all ``A @ B``.
"""

import sys
from pathlib import Path

import torch

from agcli.simulator import run

WORLD, M, N, K = 4, 20, 24, 32
KERNEL = f"{Path(__file__).with_name('gemm_reduce_scatter.py')}:kernel"


def main(kernel: str = KERNEL) -> int:
    """Returns 0 if the kernel is right and free of faults."""
    a = torch.randint(-3, 4, (WORLD, WORLD * M, K)).half()
    b = torch.randint(-3, 4, (WORLD, K, N)).half()
    c = torch.zeros(WORLD, M, N)

    def arguments(rank):  # for each launch of each rank
        return {
            "a_ptr": a[rank.rank], "b_ptr": b[rank.rank], "c_ptr": c[rank.rank].zero_(),
            "mem_ptr": rank.symmetric("partial products", (2, WORLD * M, N), torch.float32),
            "rank": rank.rank, "rank_size": rank.world, "launch": rank.launch, "m_per_rank": M, "N": N, "K": K,
            "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16,
        }  # fmt: skip

    result = run(kernel, arguments, world=WORLD, cores=3)
    right = torch.equal(c.reshape(WORLD * M, N), (a.float() @ b.float()).sum(0))
    print(result)
    print("the result is", "right" if right else "wrong")
    return 0 if right and result.clean else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
