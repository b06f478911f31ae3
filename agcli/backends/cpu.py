"""The cpu backend: the kernel's own source on simulated Ascend AI cores, one process a rank, on one host."""

from __future__ import annotations

import importlib.util
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli.backends.base import EngineOptions, Need
from agcli.bench_hooks import BenchHooks
from agcli.chips import DEFAULT_SOC, Chip, chip_by_name
from agcli.host import usable_cores
from agcli.problem import Plan

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from agcli.rank import RankContext
    from agcli.simulator.split import SplitKernel
    from agcli.simulator.world import SharedWorld
    from agcli.slotted import SlottedEngine

MAX_RANKS = 64  # simulated devices: as many processes as a host reasonably runs
KERNEL_FILE = Path(__file__).parents[1] / "kernels" / "allgather_gemm.py"
KERNEL_NAME = "kernel_allgather_gemm"


class CpuBackend:
    """Simulated NPUs. The chip named (Ascend910B3 by default) gives core count and memory limits."""

    name = "cpu"

    def __init__(self) -> None:
        self._ctx: RankContext | None = None
        self._world: SharedWorld | None = None
        self._kernel: SplitKernel | None = None
        self._threads: int | None = None

    # -- asked by the parent -------------------------------------------------------------------------------------
    def needs(self) -> list[Need]:
        """The simulator's packages."""
        needs = []
        for package, cure in (("torch", "pip install torch"), ("greenlet", "pip install 'ag-gemm[cpu]'")):
            present = importlib.util.find_spec(package) is not None
            needs.append(Need(package, present, metadata.version(package) if present else "not installed", cure))
        devices = f"{self.device_count()} simulated; {usable_cores()} cores of this host share the work"
        return [*needs, Need("devices", True, devices)]

    def device_count(self) -> int:
        """How many ranks it simulates at most."""
        return MAX_RANKS

    def chip(self, soc: str | None) -> Chip | None:
        """The chip to stand for. Raises UsageError for an unknown name."""
        return chip_by_name(soc or DEFAULT_SOC)

    def bench_hooks(self) -> BenchHooks:
        """Both transports of the kernel; all else as on any host."""
        return _BenchHooks()

    # -- called in a rank ----------------------------------------------------------------------------------------
    def start(self, ctx: RankContext) -> None:
        """Join or create a gloo process group and map the ranks' status words. Collective."""
        ctx.phase("loading torch")
        import torch

        from agcli.simulator.world import SharedWorld

        self._ctx = ctx
        ctx.phase("meeting of all ranks", waiting=True)
        if ctx.init_process_group("gloo"):  # the process is ours, so the share of the host's cores is ours to set
            self._threads = torch.get_num_threads()
            torch.set_num_threads(max(1, usable_cores() // ctx.local_world))
        self._world = SharedWorld(ctx.rank, ctx.world, self._exchange, ctx.phase)

    def device(self) -> torch.device:
        """The host."""
        import torch

        return torch.device("cpu")

    def describe(self) -> dict[str, str]:
        """What a report says of this platform."""
        import torch

        return {"device": f"simulated on {platform.machine()}", "torch": torch.__version__}

    def engine(self, plan: Plan, options: EngineOptions) -> SlottedEngine:
        """Symmetric memory and simulated launches for a plan. Collective.

        Raises EnvironmentFault on every rank if the host's memory does not suffice.
        """
        import torch

        from agcli.slotted import SlottedEngine

        assert self._ctx is not None
        assert self._world is not None
        world, rank = self._world, self._ctx.rank
        dtype = torch.float16 if plan.problem.dtype == "fp16" else torch.bfloat16
        memory = world.allocate(
            plan.peer_shape, dtype, "lower --pvalue, --buffer-num, --block-m or --k, or use a host with more memory"
        )
        launcher = _Launcher(self._load(), plan, options, world, rank)
        return SlottedEngine(
            plan,
            rank,
            memory,
            launcher,
            synchronize=self.synchronize,
            barrier=lambda: _barrier(self._group()),
            release=world.free,
        )

    def synchronize(self) -> None:
        """Nothing is queued here: a launch has ended when it returns."""

    def finish(self) -> None:
        """Leave the world and destroy the process group if ``start`` created it."""
        if self._world is not None:
            self._world.close()
            self._world = None
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
            self._threads = None
        if self._ctx is not None:
            self._ctx.close()
            self._ctx = None

    # -- parts ---------------------------------------------------------------------------------------------------
    def _group(self) -> dist.ProcessGroup | None:
        return getattr(self._ctx, "group", None)

    def _exchange(self, value: Any) -> list[Any]:
        from agcli.agreement import gather_notes

        return [json.loads(note) for note in gather_notes(json.dumps(value), self._group())]

    def _load(self) -> SplitKernel:
        from agcli.simulator.binding import load_kernel
        from agcli.simulator.split import SplitKernel

        if self._kernel is None:
            self._kernel = SplitKernel(load_kernel(KERNEL_FILE, KERNEL_NAME))
        return self._kernel


class _BenchHooks(BenchHooks):
    transports = ("store", "putmem")


class _Launcher:
    """Runs the kernel once with named arguments, and counts the tiles done over all launches of an engine."""

    def __init__(self, kernel: SplitKernel, plan: Plan, options: EngineOptions, world: SharedWorld, rank: int) -> None:
        assert plan.chip is not None
        self._kernel = kernel
        self._cores = options.cores or plan.chip.cube_cores
        self._on_progress = options.on_progress
        self._tiles = plan.tiles
        self._done = 0
        self._world = world
        self._rank = rank

    def __call__(self, arguments: dict[str, Any]) -> None:
        from agcli.simulator.launch import bind, run
        from agcli.simulator.machine import Machine

        self._done = 0
        bound = bind(self._kernel, (), arguments, self._rank, self._world.symmetric)
        launch = self._world.begin()
        failed = True
        try:
            run(self._kernel, Machine(self._rank, self._cores, self._world, launch, self._tile_done), bound)
            failed = False
        finally:
            self._world.end(failed)

    def _tile_done(self) -> None:
        self._done += 1
        if self._on_progress is not None:
            self._on_progress(self._done, self._tiles)


def _barrier(group: dist.ProcessGroup | None) -> None:
    import torch.distributed as dist

    dist.barrier(group=group)
