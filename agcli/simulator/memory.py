"""Memory as kernels reach it: buffers, pointers, and accesses that are checked before they happen.

A ``Buffer`` is one tensor in global memory. A pointer is a buffer and an offset in elements; a block of pointers is a
buffer and a block of offsets. Every access is resolved to a ``Region``: a strided box, or a list of elements.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

import torch

from agcli.simulator import context
from agcli.simulator.blocks import Affine, Block, Box, Shape, Tile, broadcast
from agcli.simulator.dtypes import DType, PointerType, from_torch, int32, int64
from agcli.simulator.scalars import Scalar, as_int

_EVERY_BYTE = 0x0101010101010101  # times a mark below 128: eight bytes that all hold it


class Region(NamedTuple):
    """Elements of a buffer: ``offset + sum(index[d] * strides[d])``, or ``elements`` (flat offsets) where given."""

    offset: int
    sizes: Shape
    strides: Shape
    elements: torch.Tensor | None = None

    @property
    def last(self) -> int:
        """The largest offset of a strided region with strides >= 0."""
        span: int = sum(map(operator.mul, self.sizes, self.strides)) - sum(self.strides)
        return self.offset + span

    def offsets(self) -> torch.Tensor:
        """All flat offsets, int64, in the region's shape."""
        if self.elements is not None:
            return self.elements
        return Affine(self.offset, self.strides, self.sizes, int64).tensor()

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes) if self.elements is None else self.elements.numel()


class Buffer:
    """One tensor in global memory.

    ``symmetric`` buffers have a counterpart on every rank (``peers``, by rank) and ``written``: one byte an element, 0
    where nothing wrote since the memory was made, else the number of the launch that wrote last (1 to 127, wrapping).
    """

    __slots__ = (
        "address", "dense", "dtype", "flat", "name", "peers", "rank", "shape", "storage", "strides", "symmetric",
        "written", "written_words",
    )  # fmt: skip

    def __init__(
        self,
        tensor: torch.Tensor,
        name: str,
        rank: int,
        written: torch.Tensor | None = None,
    ) -> None:
        self.shape = tuple(tensor.shape)
        self.strides = tuple(tensor.stride())
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides)) if tensor.numel() else 0
        self.flat = tensor.as_strided((extent,), (1,))
        self.dense = extent == tensor.numel()
        self.dtype = from_torch(tensor.dtype)
        self.name = name
        self.rank = rank
        self.symmetric = written is not None
        self.written = written
        self.written_words = written.view(torch.int64) if written is not None and extent % 8 == 0 else None
        self.address = self.flat.data_ptr()
        self.storage = self.flat.untyped_storage().data_ptr()
        self.peers: tuple[Buffer, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}{list(self.shape)} of rank {self.rank}"

    def describe(self, offset: int) -> str:
        """An element's index in the tensor, for messages."""
        rest = offset
        order = sorted(range(len(self.shape)), key=lambda d: -self.strides[d])
        places = dict.fromkeys(order, 0)
        for d in order:
            if self.strides[d]:
                places[d], rest = divmod(rest, self.strides[d])
        index = [str(places[d]) for d in range(len(self.shape))]
        return f"{self.name}[{', '.join(index)}]"

    def check(self, region: Region, what: str) -> None:
        """Every element of the region must lie inside the tensor; one outside is a fault."""
        if region.elements is None and self.dense and min(region.strides, default=0) >= 0:
            if region.offset >= 0 and region.last < self.flat.numel():
                return
            bad = region.offset if region.offset < 0 else region.last
        else:
            offsets = region.offsets()
            outside = ~self._inside(offsets)
            if not bool(outside.any()):
                return
            bad = int(offsets[outside].flatten()[0])
        raise context.fault(
            f"{what} outside a tensor: offset {bad} of {self.name}, which has shape {list(self.shape)} and strides "
            f"{list(self.strides)} (rank {self.rank}'s)",
            "outside-tensor",
        )

    def _inside(self, offsets: torch.Tensor) -> torch.Tensor:
        rest = offsets
        inside = offsets >= 0
        for d in sorted(range(len(self.shape)), key=lambda d: -self.strides[d]):
            if self.strides[d] == 0:
                continue
            index = torch.div(rest, self.strides[d], rounding_mode="floor").clamp(max=self.shape[d] - 1)
            rest = rest - index * self.strides[d]
        return inside & (rest == 0)

    def view(self, region: Region) -> torch.Tensor:
        """The strided region's values; no copy."""
        return self.flat.as_strided(region.sizes, region.strides, self.flat.storage_offset() + region.offset)

    def read(self, region: Region) -> torch.Tensor:
        """The values of a region (a view where it is strided), after all checks."""
        self.check(region, "read")
        context.current().machine.on_access("read", self, region)
        if self.symmetric:
            self._check_written(region)
        if region.elements is not None:
            return self.flat[region.elements]
        return self.view(region)

    def write(self, region: Region, values: torch.Tensor | float) -> None:
        """Store to a region, after all checks."""
        self.check(region, "write")
        machine = context.current().machine
        machine.on_access("write", self, region, values)
        if region.elements is not None:
            self.flat[region.elements] = torch.as_tensor(values).to(self.flat.dtype)
        elif isinstance(values, torch.Tensor):
            self.view(region).copy_(values)
        else:
            self.view(region).fill_(values)
        self.mark(region, machine.launch_mark)

    def mark(self, region: Region, launch_mark: int) -> None:
        """Note that a launch wrote the region."""
        kept = context.current().machine.kept
        if kept is not None and kept.has(self.storage):
            kept.forget(self.storage, self.slots(region))
        if self.written is None:
            return
        if region.elements is not None:
            self.written[region.elements] = launch_mark
        else:
            self.written.as_strided(region.sizes, region.strides, region.offset).fill_(launch_mark)

    def slots(self, region: Region) -> range | None:
        """The slots that a region lies in, counted along the first of three dimensions; None if that is not known."""
        if region.elements is not None or min(region.strides, default=0) < 0:
            return None
        if len(self.shape) != 3 or not self.dense:
            return range(1)
        return range(region.offset // self.strides[0], region.last // self.strides[0] + 1)

    def _check_written(self, region: Region) -> None:
        """All must be of this launch, but for 32 and 64-bit words: flags and counters, which the host clears once."""
        assert self.written is not None
        if not self.dtype.is_float and self.dtype.itemsize >= 4:
            return
        machine = context.current().machine
        mark = machine.launch_mark
        if region.elements is None and self.written_words is not None and _in_words(region):
            words = self.written_words.as_strided(
                (*region.sizes[:-1], region.sizes[-1] // 8),
                (*(stride // 8 for stride in region.strides[:-1]), 1),
                region.offset // 8,
            )
            if bool((words == mark * _EVERY_BYTE).all()):
                return
        if region.elements is not None:
            marks = self.written[region.elements]
        else:
            marks = self.written.as_strided(region.sizes, region.strides, region.offset)
        fresh = marks == mark
        if bool(fresh.all()):
            return
        bad = (~fresh).nonzero()[0]
        offset = int(region.offsets()[tuple(bad)])
        machine.on_unwritten(self, offset, int(marks[tuple(bad)]) == 0)


def _in_words(region: Region) -> bool:
    """Whether a region is made of whole, aligned runs of eight elements."""
    return (
        bool(region.sizes)
        and region.strides[-1] == 1
        and not any(number % 8 for number in (region.offset, region.sizes[-1], *region.strides[:-1]))
    )


class Pointer:
    """A scalar pointer: a buffer and an offset in elements."""

    __slots__ = ("buffer", "offset")

    def __init__(self, buffer: Buffer, offset: int = 0) -> None:
        self.buffer = buffer
        self.offset = offset

    @property
    def dtype(self) -> PointerType:
        """The pointer's type."""
        return PointerType(self.buffer.dtype)

    @property
    def type(self) -> PointerType:
        """The pointer's type; Triton has both spellings."""
        return self.dtype

    def __add__(self, other: Any) -> Any:
        kind = type(other)
        if kind is Scalar:
            return Pointer(self.buffer, self.offset + as_int(other))
        if kind is int:
            return Pointer(self.buffer, self.offset + other)
        if isinstance(other, Block):
            return PointerBlock(self.buffer, self.offset, other)
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self + (-other)

    @property
    def region(self) -> Region:
        """The one element that it points to, as a scalar."""
        return Region(self.offset, (), ())

    def __repr__(self) -> str:
        return f"&{self.buffer.name}[{self.offset}]"


class PointerBlock:
    """A block of pointers: a buffer, a base and a block of offsets in elements."""

    __slots__ = ("base", "buffer", "offsets")

    def __init__(self, buffer: Buffer, base: int, offsets: Block) -> None:
        self.buffer = buffer
        self.base = base
        self.offsets = offsets

    @property
    def shape(self) -> Shape:
        """The block's shape."""
        return self.offsets.shape

    @property
    def dtype(self) -> PointerType:
        """The pointers' type."""
        return PointerType(self.buffer.dtype)

    type = dtype

    def __add__(self, other: Any) -> PointerBlock:
        if type(other) is Scalar or type(other) is int:
            return PointerBlock(self.buffer, self.base + as_int(other), self.offsets)
        return PointerBlock(self.buffer, self.base, self.offsets + other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> PointerBlock:
        return PointerBlock(self.buffer, self.base, self.offsets - other)

    def __getitem__(self, index: Any) -> PointerBlock:
        return PointerBlock(self.buffer, self.base, self.offsets[index])

    def region(self, low: Shape, high: Shape) -> Region | None:
        """The strided region of the sub-box ``[low, high)``; None if the offsets are not affine or go backwards."""
        offsets = self.offsets
        if type(offsets) is not Affine or min(offsets.strides, default=0) < 0:
            return None
        start = self.base + offsets.base + sum(map(operator.mul, low, offsets.strides))
        return Region(start, tuple(map(operator.sub, high, low)), offsets.strides)

    def place(self, mask: Any) -> tuple[Any, ...] | None:
        """All that says which elements these are where the mask holds; None if it is not a few numbers."""
        offsets = self.offsets
        if type(offsets) is not Affine:
            return None
        start = (self.buffer.address, self.buffer.dtype, self.base + offsets.base, offsets.strides, offsets.shape)
        if type(mask) is Box:
            return (start, mask.low, mask.high, mask.shape)
        return start if mask is None else None

    def elements(self, mask: torch.Tensor) -> Region:
        """The region of the elements where the mask (already broadcast) is true, as a flat list."""
        offsets = (self.base + self.offsets.tensor()).expand(mask.shape)
        chosen = offsets[mask]
        return Region(0, tuple(chosen.shape), (1,), chosen)


def numeric(buffer: Buffer, value: torch.Tensor) -> Any:
    """A loaded element as a scalar."""
    dtype: DType = buffer.dtype
    return Scalar(value.item(), dtype if dtype.is_float or dtype.primitive_bitwidth >= 32 else int32)


def as_tile(buffer: Buffer, data: torch.Tensor) -> Tile:
    """Loaded elements as a tile: integers widened to int64."""
    if buffer.dtype.kind in ("int", "uint"):
        data = data.to(torch.int64)
    return Tile(data, buffer.dtype)


def common_shape(pointer: PointerBlock, other: Any) -> Shape:
    """The shape on which pointers and a mask or value meet."""
    if isinstance(other, Block):
        return broadcast(pointer.shape, other.shape)
    return pointer.shape
