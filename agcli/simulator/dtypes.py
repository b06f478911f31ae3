"""Element types as kernels see them (``tl.float16``, ``ptr.dtype.element_ty``) and their torch counterparts."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch


@dataclass(frozen=True, eq=False)  # there is one object a type
class DType:
    """A scalar type; ``primitive_bitwidth`` is in bits."""

    name: str
    primitive_bitwidth: int
    kind: str  # "float", "int", "uint" or "bool"
    torch: torch.dtype

    def __str__(self) -> str:
        return self.name

    @functools.cached_property  # asked at every operation, as are the bounds
    def is_float(self) -> bool:
        """Whether this is a floating-point type."""
        return self.kind == "float"

    def is_floating(self) -> bool:
        """Triton's spelling of ``is_float``."""
        return self.is_float

    def is_fp16(self) -> bool:
        """Whether this is fp16."""
        return self.name == "fp16"

    def is_bf16(self) -> bool:
        """Whether this is bf16."""
        return self.name == "bf16"

    def is_fp32(self) -> bool:
        """Whether this is fp32."""
        return self.name == "fp32"

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return max(1, self.primitive_bitwidth // 8)

    @functools.cached_property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value of an integer type."""
        if self.kind == "int":
            half = 1 << (self.primitive_bitwidth - 1)
            return -half, half - 1
        return 0, (1 << self.primitive_bitwidth) - 1


@dataclass(frozen=True)
class PointerType:
    """The type of a pointer; ``element_ty`` is what it points to."""

    element_ty: DType
    primitive_bitwidth: int = 64

    def is_ptr(self) -> bool:
        """Always true."""
        return True


int1 = DType("int1", 1, "bool", torch.bool)
int8 = DType("int8", 8, "int", torch.int8)
int16 = DType("int16", 16, "int", torch.int16)
int32 = DType("int32", 32, "int", torch.int32)
int64 = DType("int64", 64, "int", torch.int64)
uint8 = DType("uint8", 8, "uint", torch.uint8)
uint16 = DType("uint16", 16, "uint", torch.uint16)
uint32 = DType("uint32", 32, "uint", torch.uint32)
uint64 = DType("uint64", 64, "uint", torch.uint64)
float16 = DType("fp16", 16, "float", torch.float16)
bfloat16 = DType("bf16", 16, "float", torch.bfloat16)
float32 = DType("fp32", 32, "float", torch.float32)
float64 = DType("fp64", 64, "float", torch.float64)

ALL = (
    int1, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float16, bfloat16, float32, float64,
)  # fmt: skip
_BY_TORCH = {dtype.torch: dtype for dtype in ALL}


def from_torch(dtype: torch.dtype) -> DType:
    """The kernel's name for a torch dtype. Raises TypeError for one that kernels cannot use."""
    try:
        return _BY_TORCH[dtype]
    except KeyError:
        raise TypeError(f"a kernel cannot use tensors of {dtype}") from None


def widest(a: DType, b: DType) -> DType:
    """The integer type in which two integers meet: the wider one; bool gives way to any."""
    return a if a.primitive_bitwidth >= b.primitive_bitwidth else b


def fitting(value: int) -> DType:
    """The type Triton gives an integer argument or literal: int32 where it fits, else int64."""
    return int32 if -(2**31) <= value < 2**31 else int64
