"""Run one launch of a kernel on simulated cores: bind arguments, split the kernel, run the tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from agcli.simulator.dtypes import fitting, float32
from agcli.simulator.machine import Machine
from agcli.simulator.memory import Buffer, Pointer
from agcli.simulator.scalars import Scalar
from agcli.simulator.scheduler import Scheduler, Task
from agcli.simulator.split import SplitKernel

T = TypeVar("T", bound=Task)


def tasks_of(
    kernel: SplitKernel,
    machine: Machine,
    arguments: Mapping[str, Any],
    make: Callable[[Machine, int, str, Callable[[], Any]], T] = Task,  # type: ignore[assignment]
) -> list[T]:
    """The tasks of one launch on one rank: for each core its cube and its vectors, each with its part of the kernel."""
    tasks = []
    for core in range(machine.cores):
        for unit in machine.units:
            tasks.append(make(machine, core, unit, _call(kernel.part(_part_of(kernel, unit)), arguments)))
    return tasks


def _part_of(kernel: SplitKernel, unit: str) -> str:
    if unit == "cube":
        return "cube"
    return "vector" if unit == "vector0" or kernel.asks_sub_vec_id else "sync"


def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[[], Any]:
    return lambda: function(**arguments)


def run(kernel: SplitKernel, machine: Machine, arguments: Mapping[str, Any]) -> None:
    """Run one launch of this process's rank to its end."""
    try:
        Scheduler(tasks_of(kernel, machine, arguments)).run()
    finally:
        machine.kept = None  # its memory is of use now; machine and tasks hold each other until the next collection


def bind(
    kernel: SplitKernel, args: tuple[Any, ...], kwargs: Mapping[str, Any], rank: int, symmetric: Mapping[int, Buffer]
) -> dict[str, Any]:
    """Host arguments as kernel arguments: tensors become pointers, numbers scalars, constexprs stay as they are.

    ``symmetric`` maps data pointers to symmetric buffers. Raises TypeError as a Python call would.
    """
    bound = kernel.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    result: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if isinstance(value, torch.Tensor):
            buffer = symmetric.get(value.data_ptr())
            result[name] = Pointer(buffer if buffer is not None else Buffer(value, name, rank))
        elif name in kernel.constexprs or not isinstance(value, (int, float)):
            result[name] = value
        else:
            result[name] = Scalar(value, float32 if isinstance(value, float) else fitting(int(value)))
    return result
