"""Inputs that are different on every rank and in every repeat, and the same whenever the seed is the same.

They are drawn on the CPU, so that a platform changes nothing about them.

Legend: A ``[M, K]`` and B ``[K, N]`` of each rank.
"""

from __future__ import annotations

import hashlib
import math

import torch

from agcli.operands import TORCH_DTYPES
from agcli.problem import Problem

LARGEST_INTEGER = 4
EXACT_FP32 = 2**24  # integers up to this size are exact in fp32


def generator_seed(seed: int, repeat: int, rank: int) -> int:
    """A seed of 63 bits of its own for each rank and repeat; neighbouring seeds give unrelated ones."""
    digest = hashlib.blake2b(f"{seed}/{repeat}/{rank}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def integer_range(k: int) -> int:
    """The largest integer r, at most 4, for which sums of ``k`` products of numbers in [-r, r] are exact in fp32."""
    return max(1, min(LARGEST_INTEGER, math.isqrt(EXACT_FP32 // k)))


def make_inputs(problem: Problem, data: str, seed: int, repeat: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of one rank for one repeat, on the CPU.

    ``data`` is "normal" (mean 0, variance 1: C has a standard deviation of sqrt(K), 256 at K = 65536, far from fp16's
    65504) or "integers" (uniform in [-r, r] with ``integer_range``).
    """
    random = torch.Generator().manual_seed(generator_seed(seed, repeat, rank))
    dtype = TORCH_DTYPES[problem.dtype]
    if data == "integers":
        r = integer_range(problem.k)
        return (
            torch.randint(-r, r + 1, problem.a_shape, generator=random, dtype=dtype),
            torch.randint(-r, r + 1, problem.b_shape, generator=random, dtype=dtype),
        )
    return (
        torch.randn(problem.a_shape, generator=random, dtype=dtype),
        torch.randn(problem.b_shape, generator=random, dtype=dtype),
    )
