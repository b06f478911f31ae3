"""Python's operators for blocks, all led back to three methods, so that ``blocks`` holds only what differs."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch


def trunc_div(a: Any, b: Any) -> torch.Tensor:
    """Element-wise division that rounds towards zero."""
    return torch.div(a, b, rounding_mode="trunc")


class Operators:
    """Arithmetic and comparisons by ``binary``, ``compare`` and ``inverted``."""

    __slots__ = ()

    def binary(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """``function(a, b)`` element by element; one of the two is ``self``."""
        raise NotImplementedError

    def compare(self, function: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
        """``function(a, b)`` as a mask."""
        raise NotImplementedError

    def inverted(self) -> Any:
        """``~self``."""
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self.binary(operator.add, self, other)

    def __radd__(self, other: Any) -> Any:
        return self.binary(operator.add, other, self)

    def __sub__(self, other: Any) -> Any:
        return self.binary(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.binary(operator.sub, other, self)

    def __mul__(self, other: Any) -> Any:
        return self.binary(operator.mul, self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.binary(operator.mul, other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.binary(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.binary(operator.truediv, other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self.binary(trunc_div, self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self.binary(trunc_div, other, self)

    def __mod__(self, other: Any) -> Any:
        return self.binary(torch.fmod, self, other)

    def __rmod__(self, other: Any) -> Any:
        return self.binary(torch.fmod, other, self)

    def __and__(self, other: Any) -> Any:
        return self.binary(operator.and_, self, other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Any:
        return self.binary(operator.or_, self, other)

    __ror__ = __or__

    def __xor__(self, other: Any) -> Any:
        return self.binary(operator.xor, self, other)

    __rxor__ = __xor__

    def __lshift__(self, other: Any) -> Any:
        return self.binary(operator.lshift, self, other)

    def __rshift__(self, other: Any) -> Any:
        return self.binary(operator.rshift, self, other)

    def __neg__(self) -> Any:
        return self.binary(operator.sub, 0, self)

    def __invert__(self) -> Any:
        return self.inverted()

    def __lt__(self, other: Any) -> Any:
        return self.compare(operator.lt, self, other)

    def __le__(self, other: Any) -> Any:
        return self.compare(operator.le, self, other)

    def __gt__(self, other: Any) -> Any:
        return self.compare(operator.gt, self, other)

    def __ge__(self, other: Any) -> Any:
        return self.compare(operator.ge, self, other)

    def __eq__(self, other: Any) -> Any:
        return self.compare(operator.eq, self, other)

    def __ne__(self, other: Any) -> Any:
        return self.compare(operator.ne, self, other)
