"""Scalars of a kernel: exact integers with a width, which report overflow, and fp32 numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from agcli.simulator import context
from agcli.simulator.dtypes import DType, float32, int1, int32, int64, widest

Number = int | float
_LOW, _HIGH = -(2**31), 2**31 - 1


class Scalar:
    """A run-time scalar. Division and remainder round towards zero, as the hardware's do.

    Python numbers are constants (``tl.constexpr``): they take the other operand's width.
    """

    __slots__ = ("dtype", "value")

    def __init__(self, value: Number, dtype: DType = int32) -> None:
        self.value = value
        self.dtype = dtype

    def __repr__(self) -> str:
        return f"{self.value}:{self.dtype}"

    # -- conversions ---------------------------------------------------------------------------------------------
    def to(self, dtype: DType) -> Scalar:
        """This value as ``dtype``; integers that do not fit are an error."""
        if dtype is int64 and self.dtype is int32:
            return Scalar(self.value, int64)
        if dtype.is_float:
            return Scalar(float(self.value), dtype)
        return integer(int(self.value), dtype)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __index__(self) -> int:
        return int(self.value)

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    # -- arithmetic ----------------------------------------------------------------------------------------------
    # Sums, differences and products of int32 are most of what an inner loop does: they take the short way.
    def __add__(self, other: Any) -> Any:
        if self.dtype is int32:
            if type(other) is int:
                value = self.value + other
            elif type(other) is Scalar and other.dtype is int32:
                value = self.value + other.value
            else:
                return _arith(self, other, int.__add__, float.__add__)
            if _LOW <= value <= _HIGH:
                return Scalar(value, int32)
        return _arith(self, other, int.__add__, float.__add__)

    def __radd__(self, other: Any) -> Any:
        return _arith(self, other, int.__add__, float.__add__)

    def __sub__(self, other: Any) -> Any:
        if self.dtype is int32:
            if type(other) is int:
                value = self.value - other
            elif type(other) is Scalar and other.dtype is int32:
                value = self.value - other.value
            else:
                return _arith(self, other, int.__sub__, float.__sub__)
            if _LOW <= value <= _HIGH:
                return Scalar(value, int32)
        return _arith(self, other, int.__sub__, float.__sub__)

    def __rsub__(self, other: Any) -> Any:
        return _arith(self, other, _flip(int.__sub__), _flip(float.__sub__))

    def __mul__(self, other: Any) -> Any:
        if self.dtype is int32:
            if type(other) is int:
                value = self.value * other
            elif type(other) is Scalar and other.dtype is int32:
                value = self.value * other.value
            else:
                return _arith(self, other, int.__mul__, float.__mul__)
            if _LOW <= value <= _HIGH:
                return Scalar(value, int32)
        return _arith(self, other, int.__mul__, float.__mul__)

    def __rmul__(self, other: Any) -> Any:
        return _arith(self, other, int.__mul__, float.__mul__)

    def __floordiv__(self, other: Any) -> Any:
        divisor = _natural(other)
        if divisor and self.dtype is int32 and self.value >= 0:
            return Scalar(self.value // divisor, int32)
        return _arith(self, other, quotient, float.__floordiv__)

    def __rfloordiv__(self, other: Any) -> Any:
        return _arith(self, other, _flip(quotient), _flip(float.__floordiv__))

    def __mod__(self, other: Any) -> Any:
        divisor = _natural(other)
        if divisor and self.dtype is int32 and self.value >= 0:
            return Scalar(self.value % divisor, int32)
        return _arith(self, other, remainder, float.__mod__)

    def __rmod__(self, other: Any) -> Any:
        return _arith(self, other, _flip(remainder), _flip(float.__mod__))

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, (Scalar, int, float)):
            return Scalar(float(self) / float(other), float32)
        return NotImplemented

    def __rtruediv__(self, other: Any) -> Any:
        return Scalar(float(other) / float(self), float32)

    def __and__(self, other: Any) -> Any:
        return _arith(self, other, int.__and__, None)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return _arith(self, other, int.__or__, None)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return _arith(self, other, int.__xor__, None)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Any:
        return _arith(self, other, int.__lshift__, None)

    def __rshift__(self, other: Any) -> Any:
        return _arith(self, other, int.__rshift__, None)

    def __neg__(self) -> Scalar:
        return 0 - self  # type: ignore[no-any-return]

    def __invert__(self) -> Scalar:
        if self.dtype is int1:
            return Scalar(not self.value, int1)
        return Scalar(~int(self.value), self.dtype)

    # -- comparisons ---------------------------------------------------------------------------------------------
    def __lt__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a < b)

    def __le__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a <= b)

    def __gt__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a > b)

    def __ge__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a >= b)

    def __eq__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a == b)

    def __ne__(self, other: Any) -> Any:
        return _compare(self, other, lambda a, b: a != b)


def _flip(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda a, b: function(b, a)


def _natural(value: Any) -> int:
    """A constant or int32 above 0, of which a division needs neither conversion nor check; else 0."""
    if type(value) is Scalar and value.dtype is int32:
        value = value.value
    return value if type(value) is int and value > 0 else 0


def quotient(a: int, b: int) -> int:
    """Integer division that rounds towards zero. A zero divisor is a fault."""
    if b == 0:
        raise context.fault(f"integer division {a} // 0")
    return a // b if (a >= 0) == (b > 0) else -(-a // b) if b > 0 else -(a // -b)


def remainder(a: int, b: int) -> int:
    """What ``quotient`` leaves; it has the sign of the dividend."""
    return a - b * quotient(a, b)


def _arith(a: Scalar, other: Any, on_int: Callable[..., Any], on_float: Callable[..., Any] | None) -> Any:
    kind = type(other)
    if kind is Scalar:
        value = other.value
        dtype = a.dtype if a.dtype is other.dtype else _meet(a.dtype, other.dtype)
    elif kind is int or kind is bool:
        value, dtype = other, a.dtype
        if dtype is int1:
            dtype = int1 if kind is bool else int32
    elif kind is float:
        value, dtype = other, a.dtype if a.dtype.is_float else float32
    else:
        return NotImplemented
    if dtype.is_float:
        if on_float is None:
            raise context.fault("bitwise operation on a floating-point scalar")
        return Scalar(on_float(float(a.value), float(value)), dtype)
    return integer(on_int(int(a.value), int(value)), dtype)


@functools.cache
def _meet(a: DType, b: DType) -> DType:
    if a.is_float or b.is_float:
        return a if a.is_float and (not b.is_float or a.primitive_bitwidth >= b.primitive_bitwidth) else b
    return widest(a, b)


def _compare(a: Scalar, other: Any, function: Callable[[Any, Any], bool]) -> Any:
    kind = type(other)
    if kind is Scalar:
        return Scalar(function(a.value, other.value), int1)
    if kind is int or kind is bool or kind is float:
        return Scalar(function(a.value, other), int1)
    return NotImplemented


def integer(value: int, dtype: DType) -> Scalar:
    """An integer scalar. Overflow, which hardware would let pass silently, is a fault."""
    if dtype is int32:
        if -2147483648 <= value <= 2147483647:
            return Scalar(value, dtype)
    elif dtype is int1:
        return Scalar(bool(value & 1), int1)
    else:
        low, high = dtype.bounds
        if low <= value <= high:
            return Scalar(value, dtype)
    bits = dtype.primitive_bitwidth
    wrapped = (value + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    raise context.fault(f"{bits}-bit overflow: {value} does not fit {dtype} (it would wrap to {wrapped})", "overflow")


def as_int(value: Any) -> int:
    """The Python integer behind a scalar or constant."""
    return int(value.value) if type(value) is Scalar else int(value)


def kernel_range(*bounds: Any, **_hints: Any) -> Iterator[Scalar]:
    """``range`` (and ``tl.range``) of a kernel: counts in scalars of the widest bound's width.

    Constant bounds give run-time scalars too, as in a compiled kernel. Hints such as ``num_stages`` mean nothing here.
    """
    dtype = int32
    for bound in bounds:
        if type(bound) is Scalar:
            dtype = widest(dtype, bound.dtype)
    for value in range(*(as_int(bound) for bound in bounds)):
        yield Scalar(value, dtype)
