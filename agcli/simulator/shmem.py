"""The primitives of symmetric memory as the simulator offers them: ``dl``, ``libshmem_device``, ``cann.extension``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from agcli.simulator import context
from agcli.simulator.dtypes import int32, int64
from agcli.simulator.kinds import kind
from agcli.simulator.machine import VECTORS_PER_CORE
from agcli.simulator.memory import Buffer, Pointer, Region
from agcli.simulator.scalars import Scalar, as_int, integer

SIGNAL_SET, SIGNAL_ADD = 0, 1
COMPARE: dict[int, tuple[str, Callable[[int, int], bool]]] = {
    0: ("==", lambda a, b: a == b),
    1: ("!=", lambda a, b: a != b),
    2: (">", lambda a, b: a > b),
    3: (">=", lambda a, b: a >= b),
    4: ("<", lambda a, b: a < b),
    5: ("<=", lambda a, b: a <= b),
}
SIGNAL_SLOT_BYTES = 64  # distance of the signal words that dl.wait polls


# -- who and where ---------------------------------------------------------------------------------------------------
def rank(axis: int = -1) -> Scalar:
    """This rank in the world (``dl.rank``, ``my_pe``)."""
    return Scalar(context.current().machine.rank, int32)


def num_ranks(axis: int = -1) -> Scalar:
    """The world size (``dl.num_ranks``, ``n_pes``)."""
    return Scalar(context.current().machine.world.size, int32)


def sub_vec_id() -> Scalar:
    """0 or 1 on the vector cores of an AI core, 0 on its cube core."""
    return Scalar(1 if context.current().unit == "vector1" else 0, int64)


def sub_vec_num() -> int:
    """Vector cores of an AI core."""
    return VECTORS_PER_CORE


def symm_at(ptr: Any, rank: Any) -> Pointer:
    """The address of ``ptr`` in the symmetric memory of ``rank``; scalar pointers only."""
    if not isinstance(ptr, Pointer):
        raise context.fault(
            "symm_at takes a scalar pointer only: take symm_at of the base address, then add the block of offsets",
            "symm-at-block",
        )
    return Pointer(_peer(ptr.buffer, as_int(rank)), ptr.offset)


def _peer(buffer: Buffer, pe: int) -> Buffer:
    if not buffer.peers:
        raise context.fault(f"{buffer.name} is not symmetric memory, so it has no counterpart on rank {pe}")
    if not 0 <= pe < len(buffer.peers):
        raise context.fault(f"rank {pe} is outside the world of {len(buffer.peers)} ranks")
    return buffer.peers[pe]


# -- transfers -------------------------------------------------------------------------------------------------------
def _transfer(dest: Pointer, source: Pointer, nbytes: Any, what: str) -> None:
    for pointer in (dest, source):
        if not isinstance(pointer, Pointer):
            raise context.fault(f"{what} takes scalar pointers")
    if dest.buffer.dtype is not source.buffer.dtype:
        raise context.fault(f"{what} from {source.buffer.dtype} to {dest.buffer.dtype}: the types must be equal")
    itemsize = source.buffer.dtype.itemsize
    count, rest = divmod(as_int(nbytes), itemsize)
    if count < 0 or rest:
        raise context.fault(f"{what} of {as_int(nbytes)} bytes: not a number of {itemsize}-byte elements")
    if count:
        origin, target = (Region(end.offset, (count,), (1,)) for end in (source, dest))
        values = source.buffer.read(origin)
        context.current().machine.on_transfer(dest.buffer, target, source.buffer, origin)
        dest.buffer.write(target, values)


@kind("vector")
def putmem(dest: Any, source: Any, nbytes: Any, pe: Any) -> None:
    """Copy ``nbytes`` bytes to ``dest`` on ``pe``; delivered when it returns."""
    if not isinstance(dest, Pointer):
        raise context.fault("putmem takes scalar pointers")
    _transfer(Pointer(_peer(dest.buffer, as_int(pe)), dest.offset), source, nbytes, "putmem")


@kind("vector")
def getmem(dest: Any, source: Any, nbytes: Any, pe: Any) -> None:
    """Copy ``nbytes`` bytes from ``source`` on ``pe``; here when it returns."""
    if not isinstance(source, Pointer):
        raise context.fault("getmem takes scalar pointers")
    _transfer(dest, Pointer(_peer(source.buffer, as_int(pe)), source.offset), nbytes, "getmem")


@kind("vector")
def putmem_nbi(dest: Any, source: Any, nbytes: Any, pe: Any, qp_id: Any = 0) -> None:
    """``putmem`` that returns at once: complete at ``quiet`` or a barrier."""
    context.current().machine.start_transfer(lambda: putmem(dest, source, nbytes, pe))


@kind("vector")
def getmem_nbi(dest: Any, source: Any, nbytes: Any, pe: Any, qp_id: Any = 0) -> None:
    """``getmem`` that returns at once: complete at ``quiet`` or a barrier."""
    context.current().machine.start_transfer(lambda: getmem(dest, source, nbytes, pe))


@kind("vector")
def putmem_signal_nbi(dest: Any, source: Any, nbytes: Any, sig: Any, signal: Any, sig_op: Any, pe: Any) -> None:
    """``putmem_signal`` that returns at once; the signal still arrives after the data."""
    context.current().machine.start_transfer(lambda: putmem_signal(dest, source, nbytes, sig, signal, sig_op, pe))


@kind("vector")
def putmem_signal(dest: Any, source: Any, nbytes: Any, sig: Any, signal: Any, sig_op: Any, pe: Any) -> None:
    """``putmem``, then a signal that arrives after the data."""
    putmem(dest, source, nbytes, pe)
    _signal(sig, signal, as_int(sig_op), pe)


# -- signals ---------------------------------------------------------------------------------------------------------
def _signal(sig: Any, signal: Any, operation: int, pe: Any) -> None:
    if not isinstance(sig, Pointer):
        raise context.fault("a signal goes to a scalar pointer")
    if operation not in (SIGNAL_SET, SIGNAL_ADD):
        raise context.fault(f"a signal is set (0) or added (1); there is no operation {operation}")
    _must_be_words(sig.buffer, "a signal")
    buffer = _peer(sig.buffer, as_int(pe))
    region = Region(sig.offset, (1,), (1,))
    buffer.check(region, "signal")
    machine = context.current().machine
    machine.on_signal(buffer, region, operation == SIGNAL_ADD)
    word = buffer.view(region)
    value = as_int(signal)
    if operation == SIGNAL_ADD:
        with machine.world.exclusive():
            total = integer(int(word) + value, buffer.dtype).value
            word.fill_(total)
    else:
        word.fill_(value)


@kind("both")
def signal_op(sig: Any, signal: Any, sig_op: Any, pe: Any) -> None:
    """Set (0) or add to (1) a signal word on ``pe``."""
    _signal(sig, signal, as_int(sig_op), pe)


@kind("both")
def notify(ptr: Any, rank: Any, signal: Any = 1, sig_op: str = "set", comm_scope: str = "inter_node") -> None:
    """``dl.notify``: write a signal word at ``rank``."""
    if sig_op not in ("set", "add"):
        raise context.fault(f"notify: sig_op must be 'set' or 'add', got {sig_op!r}")
    _signal(ptr, signal, SIGNAL_ADD if sig_op == "add" else SIGNAL_SET, rank)


def _must_be_words(buffer: Buffer, what: str) -> None:
    if buffer.dtype.is_float:
        raise context.fault(f"{what} needs integer words, but {buffer.name} is {buffer.dtype}")


def _await(buffer: Buffer, offsets: list[int], compare: int, value: int) -> None:
    if compare not in COMPARE:
        raise context.fault(f"signal_wait_until compares by EQ 0 to LE 5; there is no comparison {compare}")
    _must_be_words(buffer, "a wait")
    symbol, holds = COMPARE[compare]
    regions = [Region(offset, (1,), (1,)) for offset in offsets]
    for region in regions:
        buffer.check(region, "wait")
    words = [buffer.view(region) for region in regions]
    first = buffer.describe(offsets[0]) + (f" and {len(offsets) - 1} more" if len(offsets) > 1 else "")
    task = context.current()
    task.block(lambda: all(holds(int(word), value) for word in words), f"{first} {symbol} {value}")
    for region in regions:
        task.machine.on_wait(buffer, region, lambda word: holds(word, value), f"{symbol} {value}")


@kind("both")
def signal_wait_until(sig: Any, cmp: Any, value: Any) -> Scalar:
    """Wait until a word of the own memory compares to ``value`` (EQ 0, NE 1, GT 2, GE 3, LT 4, LE 5)."""
    if not isinstance(sig, Pointer):
        raise context.fault("signal_wait_until takes a scalar pointer")
    _await(sig.buffer, [sig.offset], as_int(cmp), as_int(value))
    return Scalar(int(sig.buffer.view(Region(sig.offset, (1,), (1,)))), int32)


@kind("wait")
def wait(
    barrier_ptrs: Any,
    num_barriers: Any,
    scope: str = "gpu",
    semantic: str = "acquire",
    waitValue: Any = 1,
) -> Scalar:
    """``dl.wait``: until ``num_barriers`` words, 64 bytes apart, all equal ``waitValue``. Returns a token."""
    if not isinstance(barrier_ptrs, Pointer):
        raise context.fault("dl.wait takes a scalar pointer")
    step = SIGNAL_SLOT_BYTES // barrier_ptrs.buffer.dtype.itemsize
    offsets = [barrier_ptrs.offset + i * step for i in range(as_int(num_barriers))]
    _await(barrier_ptrs.buffer, offsets, 0, as_int(waitValue))
    return Scalar(0, int32)


def consume_token(value: Any, token: Any) -> Any:
    """Ties a pointer to a wait; the value itself."""
    return value


# -- order -----------------------------------------------------------------------------------------------------------
@kind("both")
def barrier_all() -> None:
    """All cube and vector cores of all ranks meet."""
    context.current().machine.barrier("barrier_all")


@kind("both")
def barrier_all_vec() -> None:
    """All vector cores of all ranks meet; without effect on a cube core."""
    if context.current().unit != "cube":
        context.current().machine.barrier("barrier_all_vec")


@kind("both")
def quiet() -> None:
    """Earlier transfers of this core are complete."""
    context.current().machine.complete_transfers()


@kind("both")
def fence() -> None:
    """Earlier transfers of this core are ordered before later ones."""
    context.current().machine.order_transfers()


@kind("vector")
def int_p(dest: Any, value: Any, pe: Any) -> None:
    """Store one int32 at ``pe``."""
    if not isinstance(dest, Pointer):
        raise context.fault("int_p takes a scalar pointer")
    _peer(dest.buffer, as_int(pe)).write(Region(dest.offset, (1,), (1,)), torch.tensor([as_int(value)]))


def compile_hint(*_args: Any, **_options: Any) -> None:
    """A hint to the compiler; nothing here."""


NAMES: dict[str, Any] = {
    "symm_at": symm_at, "rank": rank, "num_ranks": num_ranks, "wait": wait, "consume_token": consume_token,
    "notify": notify, "my_pe": rank, "n_pes": num_ranks, "remote_ptr": symm_at, "putmem": putmem, "getmem": getmem,
    "putmem_nbi": putmem_nbi, "getmem_nbi": getmem_nbi, "putmem_signal_nbi": putmem_signal_nbi,
    "putmem_signal": putmem_signal, "signal_op": signal_op, "signal_wait_until": signal_wait_until, "quiet": quiet,
    "fence": fence, "barrier_all": barrier_all, "barrier_all_vec": barrier_all_vec, "int_p": int_p,
    "sub_vec_id": sub_vec_id, "sub_vec_num": sub_vec_num, "compile_hint": compile_hint,
}  # fmt: skip
"""Every primitive by the name kernels use for it."""
