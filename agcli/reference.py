"""What the fused kernel is compared with: torch's all_gather, then a product, rounded once at the end.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, gathered A ``[W * M, K]``, C ``[W * M, N]``.

On the CPU products are made in fp32, since fp16 is some 300 times slower there, and by row chunks, to bound the memory.
On an accelerator the device multiplies in the operands' own dtype, accumulating in fp32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

_all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # renamed in torch 2.13
CHUNK_BYTES = 64 * 2**20  # of the fp32 copies of A's rows and of their product, in one chunk


def gather(a: torch.Tensor, group: dist.ProcessGroup | None = None, out: torch.Tensor | None = None) -> torch.Tensor:
    """All ranks' A in rank order, ``[W * M, K]`` of A's dtype, contiguous; ``a`` may have any strides. Collective.

    Into ``out`` if given, which must be contiguous.
    """
    rows, cols = a.shape
    gathered = out
    if gathered is None:
        gathered = torch.empty((dist.get_world_size(group) * rows, cols), dtype=a.dtype, device=a.device)
    shard, whole = a.contiguous(), gathered
    if a.device.type == "cpu":  # as bytes: not every CPU backend of torch.distributed knows every dtype
        shard, whole = shard.view(torch.uint8), whole.view(torch.uint8)
    _all_gather(whole, shard, group=group)
    return gathered


def operand_b(b: torch.Tensor) -> torch.Tensor:
    """B ``[K, N]`` as ``reference_rows`` multiplies it, converted once for many calls: to fp32 on the CPU."""
    return b.float() if b.device.type == "cpu" else b


def chunk_rows(n: int, k: int) -> int:
    """Rows of C that ``reference_rows`` may make at once within ``CHUNK_BYTES``, at least 1."""
    return max(1, CHUNK_BYTES // (4 * (n + k)))


def reference_rows(gathered: torch.Tensor, b: torch.Tensor, row0: int, row1: int) -> torch.Tensor:
    """Rows ``[row0, row1)`` of the reference C as fp32 ``[row1 - row0, N]``, on the operands' device.

    ``gathered`` is ``[W * M, K]``; ``b`` is ``[K, N]`` of the same dtype, or what ``operand_b`` made of it. On the CPU
    the rows are not rounded to the operands' dtype, so that they are nearer to the exact product than C can be.
    """
    rows = gathered[row0:row1]
    if gathered.device.type == "cpu":
        return rows.float() @ b.float()
    return (rows @ b).float()


def all_gather_matmul(
    a: torch.Tensor, b: torch.Tensor, group: dist.ProcessGroup | None = None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """``C = all_gather(a) @ b`` unfused, ``[W * M, N]`` of A's dtype, into ``out`` if given (any strides)."""
    return multiply(gather(a, group), b, out)


def multiply(gathered: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """``gathered @ b``, ``[W * M, N]`` of their dtype, rounded once; into ``out`` if given (any strides)."""
    c = torch.empty((gathered.shape[0], b.shape[1]), dtype=b.dtype, device=b.device) if out is None else out
    if b.device.type != "cpu":
        return torch.matmul(gathered, b, out=c) if c.is_contiguous() else c.copy_(gathered @ b)
    step = chunk_rows(b.shape[1], b.shape[0])
    b = operand_b(b)
    for row0 in range(0, gathered.shape[0], step):
        row1 = min(row0 + step, gathered.shape[0])
        c[row0:row1] = reference_rows(gathered, b, row0, row1)
    return c
