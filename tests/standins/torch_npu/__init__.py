"""Stands in for torch_npu: ``torch.npu`` over host memory, and a backend "hccl" that is gloo.

Sources of names: torch_npu/npu/__init__.py and npu/streams.py.
"""

from __future__ import annotations

import time
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from standin_world import AI_CORES, HELD, failing, note, setting

from agcli.backends.npu import NpuBackend

_current: list[int] = []


def set_device(device: int) -> None:
    if not 0 <= device < device_count():
        raise RuntimeError(f"set_device: invalid device {device}, error code is 107001")
    note("set_device", device=device)
    _current[:] = [device]


def current_device() -> int:
    if not _current:
        raise RuntimeError("no NPU was selected")
    return _current[0]


def device_count() -> int:
    return int(setting("npus", 2))


def synchronize(device: Any = None) -> None:
    message = failing("raises", "synchronize")
    if message:
        raise RuntimeError(message)


def get_device_name(device: Any = None) -> str:
    return str(setting("name", "Ascend910B3"))


def get_device_properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(
        name=get_device_name(device),
        total_memory=2**36,
        L2_cache_size=192 * 2**20,
        cube_core_num=AI_CORES,
        vector_core_num=2 * AI_CORES,
    )


def get_device_limit(device: int) -> dict[str, int]:
    cores = int(setting("core_limit", AI_CORES))
    return {"cube_core_num": cores, "vector_core_num": 2 * cores}


def mem_get_info(device: Any = None) -> tuple[int, int]:
    return int(setting("free_bytes", 8 * 2**30)) - HELD["heap"], 2**36


class Event:
    """A moment of the host's clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._timing = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        if self._at is None:
            raise RuntimeError("this event was not recorded")

    def elapsed_time(self, end_event: Event) -> float:
        if not (self._timing and end_event._timing):
            raise RuntimeError("both events must be made with enable_timing=True")
        assert self._at is not None
        assert end_event._at is not None
        return (end_event._at - self._at) * 1e3


def npu_all_gather_base_mm(
    self: torch.Tensor,
    x2: torch.Tensor,
    hcom: str,
    world_size: int,
    *,
    bias: torch.Tensor | None = None,
    x1_scale: torch.Tensor | None = None,
    x2_scale: torch.Tensor | None = None,
    gather_index: int = 0,
    gather_output: bool = True,
    comm_turn: int = 0,
    output_dtype: Any = None,
    comm_mode: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if not hcom.startswith("hccl-communicator-"):
        raise RuntimeError(f"unknown communicator {hcom!r}")
    shards = [torch.empty_like(self) for _ in range(world_size)]
    dist.all_gather(shards, self)
    gathered = torch.cat(shards)
    return (gathered.float() @ x2.float()).to(self.dtype), gathered if gather_output else gathered[:0]


def _hccl(store: Any, rank: int, size: int, timeout: Any) -> dist.ProcessGroupGloo:
    current_device()  # HCCL asks for it
    return dist.ProcessGroupGloo(store, rank, size, timeout)


def _as_torch_npu() -> None:
    npu = ModuleType("torch.npu")
    names = (
        "set_device current_device device_count synchronize get_device_name get_device_properties get_device_limit "
        "mem_get_info Event"
    )
    for name in names.split():
        setattr(npu, name, globals()[name])
    torch.npu = npu  # type: ignore[attr-defined]
    dist.Backend.register_backend("hccl", _hccl, devices=["cpu"])
    dist.ProcessGroupGloo.get_hccl_comm_name = lambda self, rank: f"hccl-communicator-{rank}"
    # A torch without NPUs has no tensors on them.
    NpuBackend.device = lambda self: torch.device("cpu")  # type: ignore[method-assign]


_as_torch_npu()
