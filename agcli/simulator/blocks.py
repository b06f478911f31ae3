"""Blocks of a kernel: index vectors that stay affine, masks that stay boxes, and tiles of values.

``tl.arange(0, 64)[:, None] * stride + tl.arange(0, 32)[None, :]`` is kept as a base and one stride a dimension, and
``offs < n`` as an interval a dimension, so that a tile access is a strided view and not a gather. Whatever leaves that
form becomes a ``Tile``: a torch tensor with the kernel's element type.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from agcli.simulator import context
from agcli.simulator.dtypes import (
    DType,
    bfloat16,
    fitting,
    float16,
    float32,
    from_torch,
    int1,
    int32,
    int64,
    widest,
)
from agcli.simulator.operators import Operators, trunc_div
from agcli.simulator.scalars import Scalar

Shape = tuple[int, ...]
_INT32_BOUNDS = int32.bounds
COLUMN, ROW = (slice(None), None), (None, slice(None))


class Block(Operators):
    """What all blocks share: a shape, an element type, and arithmetic that falls back to tiles."""

    __slots__ = ("dtype", "shape")
    shape: Shape
    dtype: DType

    def tensor(self) -> torch.Tensor:
        """The values; integers as int64, floats as their own type (or fp32 that holds the same values)."""
        raise NotImplementedError

    def tile(self) -> Tile:
        """This block as a tile."""
        return Tile(self.tensor(), self.dtype)

    def to(self, dtype: DType, **_ignored: Any) -> Any:
        """Converted to ``dtype``."""
        return self.tile().to(dtype)

    def __getitem__(self, index: Any) -> Any:
        return self.tile()[index]

    def __hash__(self) -> int:
        return id(self)

    def binary(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Element-wise arithmetic (see the function of this name)."""
        return binary(function, a, b)

    def compare(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """Element-wise comparison (see the function of this name)."""
        return compare(function, a, b)

    def inverted(self) -> Tile:
        """Not, bit by bit."""
        return Tile(~self.tensor(), self.dtype)

    def __bool__(self) -> bool:
        raise context.fault(f"a block of shape {list(self.shape)} is used as a condition; conditions must be scalars")


class Affine(Block):
    """Integers ``base + sum(index[d] * strides[d])``; a dimension of size 1 has stride 0."""

    __slots__ = ("base", "moving", "strides")

    def __init__(self, base: int, strides: Shape, shape: Shape, dtype: DType) -> None:
        self.base = base
        self.strides = strides
        self.shape = shape
        self.dtype = dtype
        # The one dimension along which the index rises; -1 if it is constant, None if it falls or moves along several.
        self.moving: int | None = -1
        low = high = base
        for d, (stride, size) in enumerate(zip(strides, shape)):
            if stride and size > 1:
                self.moving = d if self.moving == -1 and stride > 0 else None
                if stride > 0:
                    high += stride * (size - 1)
                else:
                    low += stride * (size - 1)
        if dtype is not int64:
            smallest, largest = _INT32_BOUNDS if dtype is int32 else dtype.bounds
            if low < smallest or high > largest:
                worst = high if high > largest else low
                raise context.fault(f"{dtype.primitive_bitwidth}-bit overflow: an index reaches {worst}", "overflow")

    def tensor(self) -> torch.Tensor:
        """The values as int64."""
        result = torch.tensor(self.base)
        for d, (stride, size) in enumerate(zip(self.strides, self.shape)):
            along = torch.arange(size) * stride
            result = result + along.reshape([size if i == d else 1 for i in range(len(self.shape))])
        return result

    def to(self, dtype: DType, **_ignored: Any) -> Any:
        """Converted; between integer types it stays affine."""
        if dtype.kind in ("int", "uint"):
            return Affine(self.base, self.strides, self.shape, dtype)
        return self.tile().to(dtype)

    def __getitem__(self, index: Any) -> Any:
        if len(self.shape) == 1 and index == COLUMN:
            return Affine(self.base, (self.strides[0], 0), (self.shape[0], 1), self.dtype)
        if len(self.shape) == 1 and index == ROW:
            return Affine(self.base, (0, self.strides[0]), (1, self.shape[0]), self.dtype)
        entries = index if isinstance(index, tuple) else (index,)
        strides: list[int] = []
        shape: list[int] = []
        source = 0
        for entry in entries:
            if entry is None:
                strides.append(0)
                shape.append(1)
            elif isinstance(entry, slice) and entry == slice(None):
                strides.append(self.strides[source])
                shape.append(self.shape[source])
                source += 1
            else:
                return self.tile()[index]
        return Affine(self.base, (*strides, *self.strides[source:]), (*shape, *self.shape[source:]), self.dtype)

    def __add__(self, other: Any) -> Any:
        kind = type(other)
        if kind is int:
            return Affine(self.base + other, self.strides, self.shape, self.dtype)
        if kind is Scalar and not other.dtype.is_float:
            return Affine(self.base + int(other.value), self.strides, self.shape, widest(self.dtype, other.dtype))
        if kind is Affine:
            shape = broadcast(self.shape, other.shape)
            mine, theirs = stretch(self.strides, shape), stretch(other.strides, shape)
            strides = tuple(map(operator.add, mine, theirs))
            return Affine(self.base + other.base, strides, shape, widest(self.dtype, other.dtype))
        return binary(operator.add, self, other)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return Affine(-self.base, tuple(-s for s in self.strides), self.shape, self.dtype)

    def __sub__(self, other: Any) -> Any:
        if type(other) in (int, Scalar, Affine) and not (type(other) is Scalar and other.dtype.is_float):
            return self + (-other)
        return binary(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return (-self) + other

    def __mul__(self, other: Any) -> Any:
        kind = type(other)
        if kind is Affine and not any(other.strides):
            shape = broadcast(self.shape, other.shape)
            factor, dtype, strides = other.base, widest(self.dtype, other.dtype), stretch(self.strides, shape)
        elif kind is int:
            factor, dtype, strides, shape = other, self.dtype, self.strides, self.shape
        elif kind is Scalar and not other.dtype.is_float:
            factor, dtype = int(other.value), widest(self.dtype, other.dtype)
            strides, shape = self.strides, self.shape
        else:
            return binary(operator.mul, self, other)
        return Affine(self.base * factor, tuple(s * factor for s in strides), shape, dtype)

    __rmul__ = __mul__

    def __lt__(self, other: Any) -> Any:
        box = _bound(self, other, None, 0)
        return compare(operator.lt, self, other) if box is None else box

    def __le__(self, other: Any) -> Any:
        box = _bound(self, other, None, 1)
        return compare(operator.le, self, other) if box is None else box

    def __ge__(self, other: Any) -> Any:
        box = _bound(self, other, 0, None)
        return compare(operator.ge, self, other) if box is None else box

    def __gt__(self, other: Any) -> Any:
        box = _bound(self, other, 1, None)
        return compare(operator.gt, self, other) if box is None else box


class Box(Block):
    """A mask that is true exactly for ``low[d] <= index[d] < high[d]`` in every dimension."""

    __slots__ = ("high", "low")

    def __init__(self, low: Shape, high: Shape, shape: Shape) -> None:
        self.low = low
        self.high = high
        self.shape = shape
        self.dtype = int1

    def tensor(self) -> torch.Tensor:
        """The mask as bools."""
        result = torch.zeros(self.shape, dtype=torch.bool)
        result[tuple(slice(a, b) for a, b in zip(self.low, self.high))] = True
        return result

    def on(self, shape: Shape) -> tuple[Shape, Shape]:
        """Bounds on ``shape``, to which this mask is broadcast."""
        if self.shape == shape:
            return self.low, self.high
        if broadcast(self.shape, shape) != shape:
            raise context.fault(f"a mask of shape {list(self.shape)} does not fit a block of shape {list(shape)}")
        low, high = [0] * len(shape), list(shape)
        pad = len(shape) - len(self.shape)
        for d, (a, b, size) in enumerate(zip(self.low, self.high, self.shape)):
            if size == shape[pad + d]:
                low[pad + d], high[pad + d] = a, b
            elif b <= a:  # a size-1 dimension that is false
                high[pad + d] = 0
        return tuple(low), tuple(high)

    def __and__(self, other: Any) -> Any:
        if type(other) is Box:
            if self.high[1:] == other.high[:1] == self.shape[1:] == other.shape[:1] == (1,):
                return _tile_mask(self, other)
            if self.high[:1] == other.high[1:] == self.shape[:1] == other.shape[1:] == (1,):
                return _tile_mask(other, self)
            shape = broadcast(self.shape, other.shape)
            (low_a, high_a), (low_b, high_b) = self.on(shape), other.on(shape)
            return Box(tuple(map(max, low_a, low_b)), tuple(map(min, high_a, high_b)), shape)
        if type(other) is bool or (type(other) is Scalar and other.dtype is int1):
            return self if other else Box(self.low, self.low, self.shape)
        return binary(operator.and_, self, other)

    __rand__ = __and__

    def __getitem__(self, index: Any) -> Any:
        entries = index if isinstance(index, tuple) else (index,)
        low: list[int] = []
        high: list[int] = []
        shape: list[int] = []
        source = 0
        for entry in entries:
            if entry is None:
                low, high, shape = [*low, 0], [*high, 1], [*shape, 1]
            elif isinstance(entry, slice) and entry == slice(None):
                low, high = [*low, self.low[source]], [*high, self.high[source]]
                shape.append(self.shape[source])
                source += 1
            else:
                return self.tile()[index]
        return Box((*low, *self.low[source:]), (*high, *self.high[source:]), (*shape, *self.shape[source:]))


def _tile_mask(rows: Box, columns: Box) -> Box:
    """Where a column of rows and a row of columns hold, each true in its dimension of size 1: a tile's usual mask."""
    low, high = (rows.low[0], columns.low[1]), (rows.high[0], columns.high[1])
    return Box(low, high, (rows.shape[0], columns.shape[1]))


class Tile(Block):
    """Values in a torch tensor. Integers are kept as int64 and checked against ``dtype``'s range.

    fp16 and bf16 may be kept as fp32 holding exactly the same values, which is what the cube core multiplies.
    """

    __slots__ = ("data",)

    def __init__(self, data: torch.Tensor, dtype: DType) -> None:
        self.data = data
        self.dtype = dtype
        self.shape = tuple(data.shape)

    def tensor(self) -> torch.Tensor:
        """The values."""
        return self.data

    def tile(self) -> Tile:
        """Itself."""
        return self

    def float32(self) -> torch.Tensor:
        """The values in fp32."""
        return self.data if self.data.dtype is torch.float32 else self.data.to(torch.float32)

    def to(self, dtype: DType, **_ignored: Any) -> Tile:
        """Converted, rounding to nearest even."""
        if dtype is self.dtype:
            return self
        if dtype.is_float:
            return Tile(self.data.to(dtype.torch), dtype)
        if dtype is int1:
            return Tile(self.data != 0, int1)
        return checked(self.data.to(torch.int64), dtype)

    def __getitem__(self, index: Any) -> Tile:
        return Tile(self.data[index], self.dtype)

    @property
    def T(self) -> Tile:
        """Transposed."""
        return Tile(self.data.T, self.dtype)


@functools.lru_cache(maxsize=1024)  # few shapes meet, and often
def broadcast(a: Shape, b: Shape) -> Shape:
    """The shape on which two shapes meet. Shapes that do not are a fault."""
    if a == b:
        return a
    size = max(len(a), len(b))
    long_a, long_b = (1,) * (size - len(a)) + a, (1,) * (size - len(b)) + b
    for x, y in zip(long_a, long_b):
        if x != y and x != 1 and y != 1:
            raise context.fault(f"blocks of shapes {list(a)} and {list(b)} do not fit together")
    return tuple(map(max, long_a, long_b))


def stretch(strides: Shape, shape: Shape) -> Shape:
    """Strides for a broadcast to ``shape``: missing leading dimensions get stride 0."""
    return strides if len(strides) == len(shape) else (0,) * (len(shape) - len(strides)) + strides


def _bound(index: Affine, other: Any, above: int | None, below: int | None) -> Box | None:
    """The box where ``index >= other + above`` or ``index < other + below``; None if that is no box."""
    kind = type(other)
    if not (kind is int or (kind is Scalar and not other.dtype.is_float)) or index.moving is None:
        return None
    shape, d = index.shape, index.moving
    value = other if kind is int else int(other.value)
    limit = value - index.base + (above if above is not None else below or 0)
    if d < 0:
        holds = limit <= 0 if above is not None else limit > 0
        return Box((0,) * len(shape), shape if holds else (0,) * len(shape), shape)
    return _cut(shape, d, min(max(-(-limit // index.strides[d]), 0), shape[d]), above is not None)


@functools.lru_cache(maxsize=1024)  # masks are never changed, and most are whole
def _cut(shape: Shape, d: int, at: int, above: bool) -> Box:
    """The indices from ``at`` on (``above``) or below it, in dimension ``d``."""
    zeros = (0,) * len(shape)
    if above:
        return Box((*zeros[:d], at, *zeros[d + 1 :]), shape, shape)
    return Box(zeros, (*shape[:d], at, *shape[d + 1 :]), shape)


def operand(value: Any) -> tuple[Any, DType | None]:
    """A value for torch and its element type; None for a Python constant, which takes the other side's type."""
    if isinstance(value, Tile) and value.dtype in (float16, bfloat16) and value.data.dtype is torch.float32:
        return value.data.to(value.dtype.torch), value.dtype
    if isinstance(value, Block):
        return value.tensor(), value.dtype
    if type(value) is Scalar:
        return value.value, value.dtype
    return value, None


def checked(data: torch.Tensor, dtype: DType) -> Tile:
    """An integer tile; values outside ``dtype`` are a fault."""
    if dtype.primitive_bitwidth < 64 and data.numel():
        low, high = dtype.bounds
        smallest, largest = data.min().item(), data.max().item()
        if smallest < low or largest > high:
            worst = largest if largest > high else smallest
            raise context.fault(f"{dtype.primitive_bitwidth}-bit overflow: an element is {worst}", "overflow")
    return Tile(data, dtype)


def binary(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Element-wise arithmetic by torch, with the kernel's result type."""
    if not all(isinstance(x, (Block, Scalar, int, float, bool)) for x in (a, b)):
        return NotImplemented
    (x, dtype_x), (y, dtype_y) = operand(a), operand(b)
    result = function(*_both_tensors(function, x, y))
    dtype = _result_type(result, dtype_x, dtype_y, x, y)
    if dtype.is_float:
        return Tile(result if result.dtype is dtype.torch else result.to(dtype.torch), dtype)
    if dtype is int1:
        return Tile(result.to(torch.bool), int1)
    return checked(result.to(torch.int64), dtype)


def _both_tensors(function: Callable[[Any, Any], Any], x: Any, y: Any) -> tuple[Any, Any]:
    if function in (torch.fmod, trunc_div) and not isinstance(x, torch.Tensor):
        return torch.tensor(x), y
    return x, y


def _result_type(result: torch.Tensor, a: DType | None, b: DType | None, x: Any, y: Any) -> DType:
    if result.dtype.is_floating_point:
        if not ((a and a.is_float) or (b and b.is_float)):
            return float32
        return from_torch(result.dtype)
    if result.dtype is torch.bool:
        return int1
    known = [d for d in (a, b) if d is not None and d is not int1]
    if len(known) == 2:
        return widest(known[0], known[1])
    if known:
        return known[0]
    return widest(int32, fitting(next((v for v in (x, y) if isinstance(v, int)), 0)))


def compare(function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Element-wise comparison."""
    if not all(isinstance(x, (Block, Scalar, int, float, bool)) for x in (a, b)):
        return NotImplemented
    return Tile(function(operand(a)[0], operand(b)[0]), int1)


def full(shape: Sequence[Any], value: Any, dtype: DType) -> Tile:
    """A tile of one value."""
    sizes = tuple(int(size) for size in shape)
    store = torch.int64 if dtype.kind in ("int", "uint") else dtype.torch
    return Tile(torch.full(sizes, float(value) if dtype.is_float else int(value), dtype=store), dtype)
