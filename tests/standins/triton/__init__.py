"""Stands in for triton-ascend: ``jit`` makes kernels whose launch runs their source on simulated cores.

Compile options: ``NPUOptions`` of triton-ascend, third_party/ascend/backend/compiler.py.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from shmem import _pyshmem
from standin_world import note

from agcli.simulator.launch import bind, run
from agcli.simulator.machine import Machine
from agcli.simulator.split import SplitKernel
from triton import language
from triton.backends.ascend.driver import NPUUtils

NPU_OPTIONS = {
    "multibuffer",
    "enable_auto_bind_sub_block",
    "disable_auto_inject_block_sync",
    "inject_block_all",
    "inject_barrier_all",
    "sync_solver",
    "unit_flag",
    "debug",
    "mix_mode",
}


class JITFunction:
    """A kernel; ``kernel[grid](...)`` launches it."""

    def __init__(self, fn: Callable[..., Any], do_not_specialize: list[str] | None = None) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.do_not_specialize = do_not_specialize or []

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return functools.partial(self.run, grid=grid, warmup=False)

    def run(self, *args: Any, grid: tuple[int, ...], warmup: bool, **kwargs: Any) -> None:
        kernel = SplitKernel(self)
        options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.signature.parameters}
        if not options.keys() <= NPU_OPTIONS:
            raise KeyError(f"Keyword argument {(options.keys() - NPU_OPTIONS).pop()} was specified but unrecognised")
        note("launch", grid=grid, options=options, cache=os.environ.get("TRITON_CACHE_DIR"))
        assert len(grid) == 1
        assert grid[0] <= NPUUtils().get_aicore_num(), "a program that is not resident never reaches the barrier"
        world = _pyshmem._world()
        launch = world.begin()
        failed = True
        try:
            machine = Machine(world.rank, grid[0], world, launch)
            run(kernel, machine, bind(kernel, args, kwargs, world.rank, world.symmetric))
            failed = False
        finally:
            world.end(failed)


def jit(fn: Callable[..., Any] | None = None, **options: Any) -> Any:
    return functools.partial(JITFunction, **options) if fn is None else JITFunction(fn)


cdiv = language.cdiv
