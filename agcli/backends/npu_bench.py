"""What the npu backend adds to a benchmark: device events, CANN's own fused operation, cache and memory sizes.

Sources: torch_npu's ``npu/streams.py`` and native functions, op-plugin's ``AllGatherBaseMatmulKernelNpuOpApi.cpp``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agcli.backends.npu_needs import offers_putmem
from agcli.bench_hooks import BenchHooks, EventTimer, Product, Timer

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from agcli.problem import Problem

VENDOR = "torch_npu.npu_all_gather_base_mm"
VENDOR_WORLDS = (2, 4, 8, 16, 32)
VENDOR_K = range(256, 65535)


class NpuBenchHooks(BenchHooks):
    """For an NPU. ``group`` None: the default process group."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.transports = ("store", "putmem") if offers_putmem() else ("store",)

    def timer(self) -> Timer | None:
        """Events on the current stream."""
        import torch

        npu: Any = torch.npu  # type: ignore[attr-defined]
        return EventTimer(lambda: npu.Event(enable_timing=True))

    def vendor(self, problem: Problem) -> tuple[str, Product | None]:
        """``npu_all_gather_base_mm``, within the limits that its documentation states."""
        if problem.world not in VENDOR_WORLDS:
            return f"{VENDOR} takes {', '.join(map(str, VENDOR_WORLDS))} ranks", None
        if problem.k not in VENDOR_K:
            return f"{VENDOR} takes {VENDOR_K.start} <= K < {VENDOR_K.stop}", None
        call = getattr(importlib.import_module("torch_npu"), "npu_all_gather_base_mm", None)
        if call is None:
            return f"this torch_npu has no {VENDOR}", None
        name = self._communicator()

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            c: torch.Tensor = call(a, b, name, problem.world, gather_output=False)[0]
            return c

        return VENDOR, product

    def cache_bytes(self) -> int:
        """L2 of the device."""
        import torch

        npu: Any = torch.npu  # type: ignore[attr-defined]
        return int(npu.get_device_properties(npu.current_device()).L2_cache_size)

    def free_bytes(self, local_world: int) -> int:
        """Free memory of this rank's device, which no other rank shares."""
        import torch

        return int(torch.npu.mem_get_info()[0])  # type: ignore[attr-defined]

    def _communicator(self) -> str:
        """HCCL's name of the group's communicator; asked with the global rank."""
        import torch
        import torch.distributed as dist

        group: Any = self._group or dist.distributed_c10d._get_default_group()
        served = [entry.split(":") for entry in str(dist.get_backend_config(self._group)).split(",")]
        device = next(device for device, backend in served if backend == "hccl")
        return str(group._get_backend(torch.device(device)).get_hccl_comm_name(dist.get_rank()))
