"""Matrix products and their sums, computed when they are needed: ``accumulator += tl.dot(a, b)`` adds in place.

What is added to in place is memory that nobody has seen yet: a value once given is never changed.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from agcli.simulator.blocks import Tile, binary
from agcli.simulator.dtypes import float32

PENDING = 8  # products that a sum puts off at most: they hold on to their tiles


class Product(Tile):
    """``left @ right`` in fp32."""

    __slots__ = ("_value", "left", "right")

    def __init__(self, left: torch.Tensor, right: torch.Tensor) -> None:
        self.left = left
        self.right = right
        self.dtype = float32
        self.shape = (*left.shape[:-1], right.shape[-1])
        self._value: torch.Tensor | None = None

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """The product in fp32."""
        if self._value is None:
            self._value = self.left @ self.right
        return self._value

    def added_to(self, addend: torch.Tensor) -> torch.Tensor:
        """``addend + left @ right`` in fp32, in new memory."""
        add = torch.addmm if addend.dim() == 2 else torch.baddbmm
        return add(addend, self.left, self.right)

    def add_to(self, addend: torch.Tensor) -> None:
        """``addend += left @ right``."""
        if addend.dim() == 2:
            addend.addmm_(self.left, self.right)
        else:
            addend.baddbmm_(self.left, self.right)

    def __radd__(self, other: Any) -> Any:  # Python asks this before __add__ of a plain tile, its base class
        return self + other

    def __add__(self, other: Any) -> Any:
        if type(other) is Sum:
            return other + self
        if isinstance(other, Tile) and type(other) is not Product and other.dtype is float32:
            return Sum(other.data, [self]) if other.shape == self.shape else Tile(self.added_to(other.data), float32)
        return binary(operator.add, Tile(self.data, float32), other)


class Sum(Tile):
    """A tile plus products, which are added in their order."""

    __slots__ = ("_products", "_start")

    def __init__(self, start: torch.Tensor, products: list[Product]) -> None:
        self.dtype = float32
        self.shape = products[0].shape
        self._start = start
        self._products = products

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        """The sum in fp32."""
        if self._products:
            first, *others = self._products
            total = first.added_to(self._start)
            for product in others:
                product.add_to(total)
            self._start, self._products = total, []
        return self._start

    def __add__(self, other: Any) -> Any:
        if type(other) is not Product or other.shape != self.shape:
            return super().__add__(other)
        if len(self._products) < PENDING:
            return Sum(self._start, [*self._products, other])
        return Sum(self.data, [other])
