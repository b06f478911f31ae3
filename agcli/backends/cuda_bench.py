"""What the cuda backend adds to a benchmark: a device clock, torch's fused operation, graphs, memory sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agcli.bench_hooks import BenchHooks, EventTimer, Product, Timer

if TYPE_CHECKING:
    import torch

    from agcli.problem import Problem

VENDOR = "torch.ops.symm_mem.fused_all_gather_matmul"
HOLD_CYCLES = 2_500_000  # of the GPU's clock, more than a millisecond: longer than any implementation takes to queue
# Dense fp16 and bf16 of NVIDIA's data sheets, which give twice as much, for sparse operands.
PEAKS_TFLOPS = {"H200 NVL": 835.5, "H200": 989.4, "H100 80GB HBM3": 989.4, "A100": 312.0}


class HeldTimer(EventTimer):
    """Events around a call while the stream is held back, so that the host's time to queue does not count.

    After the hold comes a collective: all ranks' calls start together, however unlike their hosts and holds are.
    """

    def __init__(self, group: Any) -> None:
        import torch

        cuda: Any = torch.cuda
        super().__init__(lambda: cuda.Event(enable_timing=True))
        self._sleep = cuda._sleep
        self._group = group
        self._meeting = torch.zeros(1, device="cuda")

    def start(self) -> None:
        """Queue the hold, the meeting and the first event. Collective."""
        import torch.distributed as dist

        self._sleep(HOLD_CYCLES)
        dist.all_reduce(self._meeting, group=self._group)
        super().start()


class CudaBenchHooks(BenchHooks):
    """For a GPU. ``group`` None: the default process group."""

    can_capture = True

    def __init__(self, group: Any = None) -> None:
        self._group = group

    def timer(self) -> Timer | None:
        """Events on the current stream, which is held back meanwhile."""
        return HeldTimer(self._group)

    def vendor(self, problem: Problem) -> tuple[str, Product | None]:
        """``fused_all_gather_matmul`` of torch, on ordinary memory."""
        import torch
        import torch.distributed as dist

        try:  # importing it registers the operation
            import torch.distributed._symmetric_memory
        except ImportError:
            return f"this torch has no {VENDOR}", None
        group: Any = self._group or dist.group.WORLD
        call: Any = torch.ops.symm_mem.fused_all_gather_matmul

        def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            c: torch.Tensor = call(a, [b], 0, group.group_name)[1][0]
            return c

        return VENDOR, product

    def capture(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """A CUDA graph."""
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            answer = call()

        def replay() -> torch.Tensor:
            graph.replay()
            return answer

        return replay

    def peak(self) -> tuple[float, str] | None:
        """The data sheet's figure, for those GPUs of which it is listed here."""
        import torch

        name = torch.cuda.get_device_name()
        found = [tflops for part, tflops in PEAKS_TFLOPS.items() if part in name]
        return (found[0], "NVIDIA data sheet, dense") if found else None

    def cache_bytes(self) -> int:
        """L2 of the device."""
        import torch

        return int(torch.cuda.get_device_properties().L2_cache_size)

    def free_bytes(self, local_world: int) -> int:
        """Free memory of this rank's device, which no other rank shares."""
        import torch

        return int(torch.cuda.mem_get_info()[0])
