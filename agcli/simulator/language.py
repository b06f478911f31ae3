"""``triton.language`` as the simulator offers it: what kernels with symmetric memory use.

Those that read and write memory are in ``accesses``. Functions carry a kind (``kinds``), which ``split`` reads.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from agcli.simulator import context, dtypes
from agcli.simulator.accesses import (  # noqa: F401 - part of the namespace that kernels see, as are the types
    atomic_add,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_xchg,
    load,
    store,
)
from agcli.simulator.blocks import Affine, Block, Tile, binary, full, operand
from agcli.simulator.dtypes import (  # noqa: F401 - part of the namespace that kernels see
    DType,
    bfloat16,
    float16,
    float32,
    float64,
    int1,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
)
from agcli.simulator.kinds import kind
from agcli.simulator.products import Product
from agcli.simulator.scalars import Scalar, as_int, integer, kernel_range, quotient


class constexpr:  # noqa: N801 - Triton's name
    """A compile-time constant: the simulator uses the plain Python value."""

    def __new__(cls, value: Any = None) -> Any:
        return value


# -- where a program is --------------------------------------------------------------------------------------------
def program_id(axis: int = 0) -> Scalar:
    """This AI core's number, int32."""
    return Scalar(context.current().core if axis == 0 else 0, int32)


def num_programs(axis: int = 0) -> Scalar:
    """How many AI cores run the kernel, int32."""
    return Scalar(context.current().machine.cores if axis == 0 else 1, int32)


# -- making blocks -------------------------------------------------------------------------------------------------
@functools.lru_cache(maxsize=1024)  # index vectors are never changed
def arange(start: int, end: int) -> Affine:
    """``start, ..., end - 1``; the length need not be a power of two on Ascend."""
    size = as_int(end) - as_int(start)
    if not 0 < size < 1048576:
        raise context.fault(f"arange({start}, {end}) must have 1 to 1048575 elements")
    return Affine(as_int(start), (1 if size > 1 else 0,), (size,), int32)


def zeros(shape: Any, dtype: DType) -> Tile:
    """A tile of zeros."""
    return full(shape, 0, dtype)


def full_(shape: Any, value: Any, dtype: DType) -> Tile:
    """A tile of one value (``tl.full``)."""
    return full(shape, value.value if type(value) is Scalar else value, dtype)


# -- arithmetic ----------------------------------------------------------------------------------------------------
def cdiv(x: Any, div: Any) -> Any:
    """``x / div`` rounded up."""
    if type(x) is int and type(div) is int:
        return quotient(x + div - 1, div)
    return (x + div - 1) // div


def _pick(a: Any, b: Any, smaller: bool) -> Any:
    if isinstance(a, Block) or isinstance(b, Block):
        return binary(lambda x, y: _elementwise(torch.minimum if smaller else torch.maximum, x, y), a, b)
    if type(a) is not Scalar and type(b) is not Scalar:
        return min(a, b) if smaller else max(a, b)
    left, right = a if type(a) is Scalar else Scalar(a, b.dtype), b if type(b) is Scalar else Scalar(b, a.dtype)
    dtype = left.dtype if left.dtype.primitive_bitwidth >= right.dtype.primitive_bitwidth else right.dtype
    value = min(left.value, right.value) if smaller else max(left.value, right.value)
    return Scalar(value, dtype)


def _elementwise(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], x: Any, y: Any) -> torch.Tensor:
    like = x if isinstance(x, torch.Tensor) else y
    left = x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=like.dtype)
    right = y if isinstance(y, torch.Tensor) else torch.tensor(y, dtype=like.dtype)
    return function(left, right)


def minimum(x: Any, y: Any, **_options: Any) -> Any:
    """The smaller one, element by element."""
    return _pick(x, y, True)


def maximum(x: Any, y: Any, **_options: Any) -> Any:
    """The larger one, element by element."""
    return _pick(x, y, False)


def where(condition: Any, x: Any, y: Any) -> Any:
    """``x`` where the condition holds, else ``y``."""
    if not isinstance(condition, Block):
        chosen = x if condition else y
        if not isinstance(x, Block) and not isinstance(y, Block):
            return chosen
        condition = Tile(torch.tensor(bool(condition)), int1)
    mask = condition.tensor()
    return binary(lambda a, b: torch.where(mask, a, b), x, y)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    def apply(x: Any, **_options: Any) -> Any:
        if isinstance(x, Block):
            value = operand(x)[0]
            element = x.dtype if x.dtype.is_float or function is torch.abs else float32
            return Tile(function(value).to(value.dtype if element is x.dtype else torch.float32), element)
        result = function(torch.tensor(float(x))).item()
        return Scalar(result, float32)

    return apply


exp, exp2, log, log2 = _unary(torch.exp), _unary(torch.exp2), _unary(torch.log), _unary(torch.log2)
sqrt, rsqrt, sin, cos = _unary(torch.sqrt), _unary(torch.rsqrt), _unary(torch.sin), _unary(torch.cos)
sigmoid, floor, ceil = _unary(torch.sigmoid), _unary(torch.floor), _unary(torch.ceil)


def abs(x: Any) -> Any:
    """Absolute value."""
    if type(x) is Scalar:
        return Scalar(x.value if x.value >= 0 else -x.value, x.dtype)
    return _unary(torch.abs)(x)


def cast(x: Any, dtype: DType, **_options: Any) -> Any:
    """``x`` as ``dtype``."""
    if isinstance(x, (Block, Scalar)):
        return x.to(dtype)
    return Scalar(float(x), dtype) if dtype.is_float else integer(int(x), dtype)


def _reduce(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def apply(x: Any, axis: int | None = None, **_options: Any) -> Any:
        value, element = operand(x)
        wide = value.float() if element is not None and element.is_float else value
        if axis is None:
            result = function(wide)
            return Scalar(result.item(), element or int32)
        reduced = function(wide, dim=axis)
        return Tile(reduced if isinstance(reduced, torch.Tensor) else reduced.values, element or int32).to(
            element or int32
        )

    return apply


def _sum(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    return x.sum() if dim is None else x.sum(dim)


def _amax(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    return x.max() if dim is None else x.amax(dim)


def _amin(x: torch.Tensor, dim: int | None = None) -> torch.Tensor:
    return x.min() if dim is None else x.amin(dim)


# -- shapes --------------------------------------------------------------------------------------------------------
def expand_dims(x: Any, axis: int) -> Any:
    """A dimension of size 1 at ``axis``."""
    index: list[Any] = [slice(None)] * len(x.shape)
    index.insert(axis if axis >= 0 else len(x.shape) + 1 + axis, None)
    return x[tuple(index)]


def broadcast_to(x: Any, *shape: Any) -> Any:
    """``x`` repeated to ``shape``."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if isinstance(x, Scalar):
        return full(sizes, x.value, x.dtype)
    return Tile(operand(x)[0].expand(tuple(int(s) for s in sizes)), x.dtype)


def reshape(x: Any, *shape: Any, **_options: Any) -> Tile:
    """``x`` with another shape of as many elements."""
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return Tile(operand(x)[0].reshape(tuple(int(s) for s in sizes)), x.dtype)


def trans(x: Any, *dims: int) -> Tile:
    """``x`` transposed (or permuted by ``dims``)."""
    return Tile(operand(x)[0].permute(dims) if dims else operand(x)[0].T, x.dtype)


# -- products ------------------------------------------------------------------------------------------------------
@kind("dot")
def dot(input: Any, other: Any, acc: Any = None, **_options: Any) -> Tile:
    """``input @ other`` in fp32, plus ``acc``."""
    if not (isinstance(input, Tile) and isinstance(other, Tile)):
        raise context.fault("tl.dot needs two tiles")
    if input.dtype is not other.dtype:
        raise context.fault(f"tl.dot of {input.dtype} by {other.dtype}: the types must be equal")
    if input.shape[-1] != other.shape[-2]:
        raise context.fault(f"tl.dot of shapes {list(input.shape)} and {list(other.shape)}: the inner sizes differ")
    product = Product(input.float32(), other.float32())
    return product if acc is None else acc + product


# -- compiler hints and checks -------------------------------------------------------------------------------------
def multiple_of(x: Any, _values: Any) -> Any:
    """A hint; ``x`` itself."""
    return x


max_contiguous = max_constancy = multiple_of


def assume(_condition: Any) -> None:
    """A hint without effect."""


@kind("both")
def static_assert(condition: Any, message: str = "") -> None:
    """The condition must hold."""
    if not condition:
        raise context.fault(f"static_assert failed: {message}")


@kind("both")
def device_assert(condition: Any, message: str = "", **_options: Any) -> None:
    """Every element of the condition must hold."""
    holds = bool(condition.tensor().all()) if isinstance(condition, Block) else bool(condition)
    if not holds:
        raise context.fault(f"device_assert failed: {message}")


@kind("vector")
def device_print(prefix: str, *values: Any, **_options: Any) -> None:
    """Print from a vector core (to the rank's log)."""
    print(context.current().label, prefix, *values)


@kind("both")
def debug_barrier() -> None:
    """Orders threads of one program; a core is one thread here."""


def namespace() -> dict[str, Any]:
    """Every public name of ``triton.language``."""
    modules = (__name__, load.__module__)  # what else is global here helps to define them
    names = {
        name: value
        for name, value in globals().items()
        if not name.startswith("_") and (isinstance(value, DType) or getattr(value, "__module__", "") in modules)
    }
    del names["full_"], names["namespace"]
    names |= {"full": full_, "sum": _reduce(_sum), "max": _reduce(_amax), "min": _reduce(_amin)}
    names |= {"view": reshape, "permute": trans, "pointer_type": dtypes.PointerType, "void": None}
    return names | {"dtype": DType, "range": kernel_range, "static_range": kernel_range}
