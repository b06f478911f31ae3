"""What the kernel may be given: shapes, dtypes, devices, strides and overlaps of A, B and C, judged before a launch.

Legend: W ranks, A ``[M, K]``, B ``[K, N]``, C ``[W * M, N]``.
"""

from __future__ import annotations

import torch

from agcli.errors import UsageError
from agcli.problem import INT32_MAX, Plan

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def strides_of(t: torch.Tensor) -> tuple[int, int]:
    """Row and column stride of a matrix, in elements; a dimension of size 1 gets the stride of a contiguous matrix.

    torch leaves the stride of such a dimension to chance, but the kernel's masked lanes still compute with it.
    """
    rows, cols = t.shape
    return t.stride(0) if rows > 1 else cols, t.stride(1) if cols > 1 else 1


def check_operands(
    plan: Plan, device: torch.device, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None
) -> None:
    """Raise UsageError, naming the operand and its values, for anything that the kernel cannot take."""
    problem, config = plan.problem, plan.config
    operands = [("A", a, problem.a_shape), ("B", b, problem.b_shape)]
    if out is not None:
        operands.append(("out", out, problem.c_shape))
    for name, t, shape in operands:
        if not isinstance(t, torch.Tensor):
            raise UsageError(f"{name} must be a tensor, got {type(t).__name__}")
        if tuple(t.shape) != shape:
            raise UsageError(f"{name} must have shape {list(shape)}, got {list(t.shape)}")
        if t.dtype != TORCH_DTYPES[problem.dtype]:
            raise UsageError(f"{name} must be of {TORCH_DTYPES[problem.dtype]} like the operator, got {t.dtype}")
        if t.layout != torch.strided:
            raise UsageError(f"{name} must be a dense tensor, got layout {t.layout}")
        if t.device != device:
            raise UsageError(f"{name} must be on {device}, the operator's device, got {t.device}")
        if torch.is_grad_enabled() and t.requires_grad:
            raise UsageError(f"{name} requires a gradient, which this operator does not compute; pass {name}.detach()")
    tiles = {
        "A": (config.comm_block_m, config.comm_block_k),
        "B": (config.block_k, config.block_n),
        "out": (config.block_m, config.block_n),
    }
    if plan.chip is not None:
        for name, t, _ in operands:
            _check_reach(name, strides_of(t), tiles[name], f"pass {name}.contiguous() or lower the block sizes")
        if out is None:
            _check_reach("C", (problem.n, 1), tiles["out"], "lower N or block_m")
    if out is not None:
        _check_out(out, a, b)


def _check_reach(name: str, strides: tuple[int, int], tile: tuple[int, int], cure: str) -> None:
    """Offsets inside a tile are 32-bit in Ascend's kernel."""
    reach = sum(size * stride for size, stride in zip(tile, strides, strict=True))
    if reach > INT32_MAX:
        raise UsageError(
            f"{name} has strides {list(strides)}: offsets inside a tile of {tile[0]} x {tile[1]} reach {reach}, "
            f"more than {INT32_MAX}; {cure}"
        )


def _check_out(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    steps = sorted((stride, size) for stride, size in zip(out.stride(), out.shape, strict=True) if size > 1)
    reach = 0  # of the dimensions before, in elements
    for stride, size in steps:
        if stride <= reach:
            raise UsageError(f"out has strides {list(out.stride())}: several of its elements share memory")
        reach += stride * (size - 1)
    for name, t in (("A", a), ("B", b)):
        if _span(out)[0] < _span(t)[1] and _span(t)[0] < _span(out)[1]:
            raise UsageError(
                f"out shares memory with {name}, which ranks still read while C is written; give it its own"
            )


def _span(t: torch.Tensor) -> tuple[int, int]:
    """First byte and the one after the last byte of a matrix."""
    last = sum((n - 1) * stride for n, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr(), t.data_ptr() + (last + 1) * t.element_size()
