"""The primitives of symmetric memory that the kernel calls, as names to be bound.

A kernel writes ``primitives.barrier_all()``. Who provides it depends on who runs the kernel: the NPU backend binds
these names to triton_dist, the offline compiler to its own externs, and the simulator puts its own module in the place
of this one. So this file imports no platform and is safe to import anywhere. Pointers are *local* symmetric addresses;
a rank number is that of the whole world, never of one node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

NAMES = ("symm_at", "putmem", "barrier_all", "sub_vec_id")


def _unbound(name: str) -> Callable[..., NoReturn]:
    def primitive(*args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(f"primitives.{name} is not bound: launch the kernel through a backend (see agcli.backends)")

    primitive.__name__ = name
    return primitive


symm_at: Callable[..., Any] = _unbound("symm_at")
"""``symm_at(ptr, rank)``: the address of ``ptr`` in the symmetric memory of ``rank``. Scalar pointers only."""

putmem: Callable[..., Any] = _unbound("putmem")
"""``putmem(dest, source, nbytes, pe)``: copy ``nbytes`` **bytes** to ``dest`` on ``pe``; returns once delivered."""

barrier_all: Callable[..., Any] = _unbound("barrier_all")
"""``barrier_all()``: all cube and vector cores of all ranks meet here; earlier stores and puts are visible after it."""

sub_vec_id: Callable[..., Any] = _unbound("sub_vec_id")
"""``sub_vec_id()``: 0 or 1 on the two vector cores of an AI core, 0 on its cube core."""


def bind(binding: Mapping[str, Any]) -> None:
    """Give every name of ``NAMES`` its meaning; to be called before a kernel is compiled.

    Raises KeyError if ``binding`` lacks one of them.
    """
    for name in NAMES:
        globals()[name] = binding[name]
