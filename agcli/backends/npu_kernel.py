"""The kernel on an NPU: its primitives bound to triton_dist, its grid, its compile options, its compile cache.

Names and options: Triton-distributed's Ascend tutorials and ``distributed_ops.py``, triton-ascend's ``NPUOptions``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agcli.chips import has_udma
from agcli.errors import EnvironmentFault
from agcli.problem import Plan

CACHE_VARIABLE = "TRITON_CACHE_DIR"


class KernelLauncher:
    """Launches ``kernel_allgather_gemm`` for one plan on one rank; the first call compiles it.

    ``grid`` is the number of programs and at most the AI cores of the device: all of them must be resident, since they
    meet in barriers. ``cache`` is this rank's own compile cache (see ``own_cache``).
    """

    def __init__(self, plan: Plan, grid: int, cache: Path) -> None:
        bind_primitives(plan.config.transport)
        from agcli.kernels.allgather_gemm import kernel_allgather_gemm

        self._kernel: Any = kernel_allgather_gemm
        self._grid = grid
        self._cache = cache
        self._options: dict[str, Any] = {"disable_auto_inject_block_sync": True, "multibuffer": plan.multibuffer}
        if plan.chip is not None and has_udma(plan.chip):
            self._options["mix_mode"] = "aic"

    def __call__(self, arguments: dict[str, Any]) -> None:
        """Queue the kernel with ``arguments``, named like its parameters.

        ``disable_auto_inject_block_sync`` keeps the compiler from making each copy wait for the multiplication before
        it, which would undo the overlap; ``barrier_all`` alone orders the two. On Ascend 950 that is right only where
        the cube cores themselves convert and store C, which ``mix_mode="aic"`` asks for (docs/compile.md).
        """
        with own_cache(self._cache):
            try:
                self._kernel[(self._grid,)](**arguments, **self._options)
            except KeyError as error:  # Triton's way to refuse an option
                raise EnvironmentFault(f"this triton-ascend does not know what the kernel needs: {error}") from error


def bind_primitives(transport: str) -> None:
    """Give ``agcli.kernels.primitives`` its meaning on an NPU. Raises EnvironmentFault if triton_dist lacks a name."""
    from agcli.kernels import primitives

    try:
        extension = importlib.import_module("triton.language.extra.cann.extension")
        language = importlib.import_module("triton_dist.language")
        libshmem_device = importlib.import_module("triton_dist.language.extra.libshmem_device")
    except (ImportError, AssertionError, RuntimeError) as error:
        raise EnvironmentFault(
            f"triton_dist cannot be used ({type(error).__name__}: {error}): it needs npu-smi on PATH and the "
            "triton-ascend it was built with; `ag-gemm doctor` shows what is there"
        ) from error
    if transport == "putmem" and not _offers_putmem():
        raise EnvironmentFault(
            "this triton_dist offers no libshmem_device.putmem on Ascend; use --transport store, or a version with it "
            "(ByteDance-Seed/Triton-distributed pull request 179, or triton-distributed-ascend)"
        )
    primitives.bind(
        {
            "symm_at": language.symm_at,
            "putmem": libshmem_device.putmem,
            "barrier_all": libshmem_device.barrier_all,
            "sub_vec_id": extension.sub_vec_id,
        }
    )


def _offers_putmem() -> bool:
    """``libshmem_device`` is a proxy with every platform's names; what Ascend has of them is in a module of its own."""
    try:
        return hasattr(importlib.import_module("triton_dist.language.extra.ascend.libaclshmem_device"), "putmem")
    except ImportError:
        return True  # another layout: the compiler will tell


def core_count(device: int, cache: Path) -> int:
    """AI cores that a kernel on ``device`` may use: those of the chip, or fewer where the process was limited."""
    import torch

    with own_cache(cache):  # the constructor compiles a helper
        cores = int(importlib.import_module("triton.backends.ascend.driver").NPUUtils().get_aicore_num())
    limit = getattr(torch.npu, "get_device_limit", None)  # type: ignore[attr-defined]  # newer torch_npu only
    if limit is not None:
        cores = min(cores, int(limit(device).get("cube_core_num", cores)))
    return cores


def rank_cache(driver_number: int) -> Path:
    """A compile cache for one NPU of this host: ranks that compile one kernel at once into one cache have raced."""
    common = os.environ.get(CACHE_VARIABLE) or Path.home() / ".triton" / "cache"
    return Path(common) / f"ag-gemm-npu{driver_number}"


@contextlib.contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """Triton compiles into ``folder`` within; the variable is as before afterwards."""
    before = os.environ.get(CACHE_VARIABLE)
    os.environ[CACHE_VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE_VARIABLE]
        else:
            os.environ[CACHE_VARIABLE] = before
