"""The primitives of ``triton.language`` that read and write memory: loads, stores, atomics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from agcli.simulator import context
from agcli.simulator.blocks import Affine, Block, Box, Tile, operand
from agcli.simulator.dtypes import DType, int32
from agcli.simulator.kept import KeptReads, Place
from agcli.simulator.kinds import kind
from agcli.simulator.memory import Buffer, Pointer, PointerBlock, Region, as_tile, common_shape, numeric
from agcli.simulator.scalars import Scalar

_HALF = (torch.float16, torch.bfloat16)
_NAN = float("nan")  # one object: it equals no other, and places of tiles hold it


@kind("load")
def load(pointer: Any, mask: Any = None, other: Any = None, **_options: Any) -> Any:
    """Read memory. What a mask keeps out reads as ``other``; without ``other`` it is undefined, and NaN here."""
    if type(pointer) is Pointer:
        if mask is not None and not mask:
            return numeric(pointer.buffer, torch.tensor(_fill(other, pointer.buffer.dtype)))
        return numeric(pointer.buffer, pointer.buffer.read(pointer.region))
    _must_be_pointer(pointer, "load")
    task, fill = context.current(), _fill(other, pointer.buffer.dtype)
    if task.unit != "cube" or pointer.buffer.flat.dtype not in _HALF:
        return _load(pointer, mask, fill, pointer.buffer.flat.dtype)
    kept = task.machine.kept
    place = None if kept is None else pointer.place(mask)
    if kept is None or place is None:
        return _load(pointer, mask, fill, torch.float32)
    tile = kept.get((place, fill))
    return tile if tile is not None else _load(pointer, mask, fill, torch.float32, kept, (place, fill))


def _load(
    pointer: PointerBlock,
    mask: Any,
    fill: float,
    store_as: torch.dtype,
    kept: KeptReads | None = None,
    place: Place = (),
) -> Tile:
    """A tile read from memory. ``kept``, where given, is offered what lies in one slot, as that of ``place``."""
    buffer = pointer.buffer
    shape = common_shape(pointer, mask)
    low, high, dense = _box_of(mask, shape)
    region = pointer.region(low, high) if dense and shape == pointer.shape else None
    if region is None:
        return _gather(pointer, mask, fill, shape)
    if 0 in region.sizes:
        return as_tile(buffer, torch.full(shape, fill, dtype=store_as))
    tile = _read(buffer, region, low, shape, fill, store_as)
    slots = buffer.slots(region) if kept is not None else None
    if kept is not None and slots is not None and len(slots) == 1:
        kept.put(buffer, slots[0], place, tile)
    return tile


def _read(
    buffer: Buffer, region: Region, low: tuple[int, ...], shape: tuple[int, ...], fill: float, store_as: torch.dtype
) -> Tile:
    """A tile of ``shape`` that holds the region from index ``low`` on, and ``fill`` elsewhere."""
    view = buffer.read(region)
    if region.sizes == shape:
        return as_tile(buffer, view.to(store_as, copy=True))
    data = torch.full(shape, fill, dtype=store_as)
    data[tuple(slice(a, a + size) for a, size in zip(low, region.sizes))].copy_(view)
    return as_tile(buffer, data)


@kind("store")
def store(pointer: Any, value: Any, mask: Any = None, **_options: Any) -> None:
    """Write memory where the mask holds."""
    if type(pointer) is Pointer:
        if mask is None or mask:
            pointer.buffer.write(pointer.region, operand(value)[0])
        return
    _must_be_pointer(pointer, "store")
    shape = common_shape(pointer, mask)
    low, high, dense = _box_of(mask, shape)
    region = pointer.region(low, high) if dense and shape == pointer.shape else None
    if region is not None and 0 in region.strides and _repeats(region):
        region = None  # several values for one element: one of them stays
    values = operand(value)[0]
    if region is not None:
        if 0 not in region.sizes:
            if isinstance(values, torch.Tensor) and values.dim() and region.sizes != shape:
                values = values.expand(shape)[tuple(slice(a, b) for a, b in zip(low, high))]
            pointer.buffer.write(region, values)
    else:
        chosen = _mask_tensor(mask, shape)
        picked = torch.as_tensor(values).expand(shape)[chosen]
        pointer.buffer.write(pointer.elements(chosen), picked)
    context.current().on_store()


def _repeats(region: Region) -> bool:
    """Whether an element comes more than once because a dimension does not move."""
    return any(stride == 0 and size > 1 for stride, size in zip(region.strides, region.sizes))


def _must_be_pointer(pointer: Any, what: str) -> None:
    if not isinstance(pointer, PointerBlock):
        raise context.fault(f"tl.{what} needs a pointer or a block of pointers, got {type(pointer).__name__}")


def _box_of(mask: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...], bool]:
    """Bounds of a mask on ``shape``, and whether the mask is such a box."""
    zeros_ = (0,) * len(shape)
    if mask is None:
        return zeros_, shape, True
    if type(mask) is Box:
        low, high = mask.on(shape)
        return (low, high, True) if all(map(operator.lt, low, high)) else (zeros_, zeros_, True)
    if not isinstance(mask, Block):
        return zeros_, shape if mask else zeros_, True
    return zeros_, shape, False


def _mask_tensor(mask: Any, shape: tuple[int, ...]) -> torch.Tensor:
    if isinstance(mask, Block):
        return mask.tensor().expand(shape)
    return torch.full(shape, mask is None or bool(mask))


def _gather(pointer: PointerBlock, mask: Any, fill: float, shape: tuple[int, ...]) -> Tile:
    chosen = _mask_tensor(mask, shape)
    buffer = pointer.buffer
    data = torch.full(shape, fill, dtype=buffer.flat.dtype)
    data[chosen] = buffer.read(pointer.elements(chosen))
    return as_tile(buffer, data)


def _fill(other: Any, element: DType) -> float | int:
    if other is None:
        return _NAN if element.is_float else 0
    value = other.value if type(other) is Scalar else other
    return float(value) if element.is_float else int(value)


def _atomic(combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    @kind("vector")
    def apply(pointer: Any, val: Any, mask: Any = None, **_options: Any) -> Any:
        """Read, combine, write back; returns the values before. Indivisible: tasks switch only in waits, ranks lock."""
        if type(pointer) is Pointer:
            pointer = PointerBlock(pointer.buffer, pointer.offset, Affine(0, (), (), int32))
        chosen = _mask_tensor(mask, common_shape(pointer, mask))
        region = pointer.elements(chosen)
        machine = context.current().machine
        pointer.buffer.check(region, "atomic")
        machine.on_access("atomic", pointer.buffer, region)
        assert region.elements is not None
        values = torch.as_tensor(operand(val)[0]).expand(chosen.shape)[chosen]
        with machine.world.exclusive():
            before = _combine(pointer.buffer.flat, region.elements, values, combine)
        pointer.buffer.mark(region, machine.launch_mark)
        result = torch.zeros(chosen.shape, dtype=before.dtype)
        result[chosen] = before
        return as_tile(pointer.buffer, result) if chosen.dim() else numeric(pointer.buffer, result)

    return apply


def _combine(
    flat: torch.Tensor,
    elements: torch.Tensor,
    values: torch.Tensor,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Combine values into elements, one after the other where an element comes twice; the values before."""
    values = values.to(flat.dtype)
    if len(set(elements.tolist())) == elements.numel():
        before = flat[elements]
        flat[elements] = combine(before, values)
        return before
    before = torch.empty_like(values)
    for i, element in enumerate(elements.tolist()):
        before[i] = flat[element]
        flat[element] = combine(before[i], values[i])
    return before


atomic_add = _atomic(torch.add)
atomic_max = _atomic(torch.maximum)
atomic_min = _atomic(torch.minimum)
atomic_xchg = _atomic(lambda before, values: values)


@kind("vector")
def atomic_cas(pointer: Any, cmp: Any, val: Any, **_options: Any) -> Any:
    """``val`` where the element equals ``cmp``; returns the value before. Scalar pointers."""
    if type(pointer) is not Pointer:
        raise context.fault("tl.atomic_cas takes a scalar pointer here")
    wanted = torch.as_tensor(operand(cmp)[0])
    return _atomic(lambda before, values: torch.where(before == wanted, values, before))(pointer, val)
