"""Ascend NPUs: torch_npu with HCCL, ACLSHMEM for symmetric memory, triton-ascend and triton_dist for the kernel.

Neither torch nor any of these is imported before a rank starts, so that the parent can ask what is missing. This path
was written from the libraries' sources and has been tested with stand-ins only, not on hardware.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli.backends.base import Engine, EngineOptions, Need
from agcli.backends.npu_kernel import KernelLauncher, core_count, rank_cache
from agcli.backends.npu_needs import all_needs, chip_in, present_chip, version_of, visible_devices
from agcli.backends.smi import npu_inventory
from agcli.chips import CHIPS, DEFAULT_SOC, Chip, chip_by_name, has_udma
from agcli.errors import AgGemmError, EnvironmentFault, KernelFault
from agcli.problem import Plan, Problem

if TYPE_CHECKING:
    import torch

    from agcli.backends.npu_bench import NpuBenchHooks
    from agcli.backends.npu_shmem import SymmetricMemory, SymmetricTensor
    from agcli.rank import RankContext
    from agcli.tuned import Choice

CONNECT_VARIABLE = "HCCL_CONNECT_TIMEOUT"
CONNECT_RANGE_S = (120, 7200)  # what HCCL takes; the least is its default
MESH = 8  # cards of one full mesh; a server with 16 of 910B has two that cannot reach each other
FAILED_END_S = 10  # how long to wait for the libraries' own end after a failure, when peers may never come
# Errors of the device, found at a synchronize (CANN's error codes).
DEVICE_ERRORS: dict[str, tuple[type[AgGemmError], str]] = {
    "507018": (EnvironmentFault, "an AI core timed out or failed: a rank died or never reached a barrier"),
    "507034": (EnvironmentFault, "a vector core timed out: a rank died or never reached a barrier"),
    "507035": (KernelFault, "a vector core failed: the kernel accessed memory that it must not"),
}


class NpuBackend:
    """The platform "npu". One instance serves one rank."""

    name = "npu"

    def __init__(self) -> None:
        self._ctx: RankContext | None = None
        self._group: Any = None
        self._index = 0
        self._memory: SymmetricMemory | None = None
        self._open_engines = 0

    # -- asked by the parent -------------------------------------------------------------------------------------
    def needs(self) -> list[Need]:
        """Driver, devices, CANN, torch_npu, triton-ascend, triton_dist, shmem, variables."""
        return all_needs()

    def device_count(self) -> int:
        """NPUs that a new process sees, by the driver's device nodes and ASCEND_RT_VISIBLE_DEVICES."""
        return len(visible_devices())

    def inventory(self) -> list[tuple[str, str]]:
        """Names, memory and links of the devices, for `doctor`."""
        return npu_inventory()

    def chip(self, soc: str | None) -> Chip | None:
        """The chip named, else the one present, else one with the smaller memories."""
        if soc is not None:
            return chip_by_name(soc)
        present = chip_in(self._device_name()) if self._ctx is not None else present_chip()
        return present or CHIPS[DEFAULT_SOC]

    def bench_hooks(self) -> NpuBenchHooks:
        """Device events, the vendor's operation, cache and memory sizes."""
        from agcli.backends.npu_bench import NpuBenchHooks

        return NpuBenchHooks(self._group)

    def tuning_space(self, problem: Problem, chip: Chip | None) -> list[Choice]:
        """Tiles, slots and transports that the chip takes and triton_dist offers."""
        from agcli.tune_space import SLOTTED_AXES, slotted_space

        return slotted_space(problem, chip, {**SLOTTED_AXES, "transport": self.bench_hooks().transports})

    # -- called in a rank ----------------------------------------------------------------------------------------
    def start(self, ctx: RankContext) -> None:
        """Select the device and join or create the HCCL group; symmetric memory follows with the first engine.

        Its heap is as large as the problem needs, which only ``engine`` is told. Collective.
        """
        ctx.phase("importing torch_npu")
        npu = _import_torch_npu()
        count = npu.device_count()
        # A process that was given one device only, as some launchers do, counts it as 0 whatever its rank is.
        self._index = 0 if count == 1 and ctx.local_world > 1 and ctx.device > 0 else ctx.device
        if self._index >= count:
            raise EnvironmentFault(f"rank {ctx.rank} wants NPU {self._index}, {count} visible; lower --world")
        npu.set_device(self._index)  # before anything else: both HCCL and ACLSHMEM ask for the current device
        self._ctx = ctx
        self._group = getattr(ctx, "group", None)
        ctx.phase("joining the HCCL group", waiting=True)
        with _patience(ctx.timeout_s):
            ctx.init_process_group("hccl")
            self._check_devices(ctx)

    def device(self) -> torch.device:
        """The NPU of this rank."""
        import torch

        return torch.device("npu", self._index)

    def describe(self) -> dict[str, str]:
        """Device name, index and cores, and the versions of what took part."""
        import torch

        packages = {
            "torch_npu": ("torch-npu", "torch_npu"),
            "triton_ascend": ("triton-ascend", "triton_ascend"),
            "triton_dist": ("triton-dist", "triton_dist"),
            "shmem": ("cann-shmem", "cann_shmem", "shmem"),
        }
        return {
            "device": self._device_name(),
            "index": str(self._index),
            "ai_cores": str(core_count(self._index, self._cache())),
            "cann": os.environ.get("ASCEND_HOME_PATH", "unknown"),
            "torch": torch.__version__,
        } | {name: version_of(*distributions) or "unknown" for name, distributions in packages.items()}

    def engine(self, plan: Plan, options: EngineOptions) -> Engine:
        """Symmetric memory and the kernel for a plan, on ``options.cores`` AI cores at most. Collective.

        What one rank lacks is raised on all.
        """
        import torch.distributed as dist

        from agcli.agreement import raise_together
        from agcli.backends.npu_shmem import SymmetricMemory
        from agcli.operands import TORCH_DTYPES
        from agcli.slotted import SlottedEngine

        ctx = self._started()
        fault: AgGemmError | None = None
        try:
            cores = core_count(self._index, self._cache())
            launch = KernelLauncher(plan, min(cores, options.cores or cores), self._cache())
        except AgGemmError as error:
            fault = error
        except Exception as error:  # of the compiler and the vendor's libraries, which have many kinds
            fault = EnvironmentFault(f"the kernel cannot be prepared: {type(error).__name__}: {error}")
        raise_together(fault, self._group)
        ctx.phase("allocation of symmetric memory", waiting=True)
        if self._memory is None:
            self._memory = SymmetricMemory(
                ctx.rank,
                ctx.world,
                local_device=self._index,
                nodes=-(-ctx.world // ctx.local_world),
                group=self._group,
                timeout_s=ctx.timeout_s,
                synchronize=self.synchronize,
            )
        peer = self._memory.allocate(plan.peer_shape, TORCH_DTYPES[plan.problem.dtype], udma=_wants_udma(plan))
        assert peer.tensor is not None
        self._open_engines += 1
        engine = SlottedEngine(
            plan,
            ctx.rank,
            peer.tensor,
            launch,
            synchronize=self.synchronize,
            barrier=functools.partial(dist.barrier, self._group),
            release=lambda _: self._release(peer),
        )
        peer.moved = engine.move
        return engine

    def synchronize(self) -> None:
        """Wait for this NPU; its errors come as KernelFault or EnvironmentFault with their meaning."""
        import torch

        try:
            torch.npu.synchronize()  # type: ignore[attr-defined]
        except RuntimeError as error:
            for code, (kind, meaning) in DEVICE_ERRORS.items():
                if code in str(error):
                    raise kind(
                        f"NPU {self._index} reported {code}: {meaning}; ASCEND_LAUNCH_BLOCKING=1 shows where"
                    ) from error
            raise

    def finish(self) -> None:
        """End symmetric memory, then the group, if they were made here.

        An engine that is still open means that this rank failed, so peers may never come to the ends that wait for
        them: then these get a few seconds, and the end of the process frees the rest.
        """
        if self._ctx is None:
            return
        ctx, self._ctx = self._ctx, None
        failed, self._open_engines = self._open_engines > 0, 0
        memory, self._memory = self._memory, None
        if failed:
            ending = threading.Thread(target=_end_quietly, args=(memory, ctx), daemon=True)
            ending.start()
            ending.join(FAILED_END_S)
        else:
            fault = memory.end() if memory is not None else None
            ctx.close()
            if fault is not None:
                raise fault

    # -- parts ---------------------------------------------------------------------------------------------------
    def _started(self) -> RankContext:
        if self._ctx is None:
            raise RuntimeError("this backend is not started")
        return self._ctx

    def _release(self, peer: SymmetricTensor) -> None:
        assert self._memory is not None
        self._memory.free(peer)
        self._open_engines -= 1

    def _device_name(self) -> str:
        import torch

        return str(torch.npu.get_device_name(self._index))  # type: ignore[attr-defined]

    def _cache(self) -> Path:
        return rank_cache(self._driver_number())

    def _driver_number(self) -> int:
        """This rank's NPU as the driver counts them, whatever the process is shown."""
        devices = visible_devices()
        return devices[self._index] if self._index < len(devices) else self._index

    def _check_devices(self, ctx: RankContext) -> None:
        """Refuse two ranks on one NPU, and on a 910B server ranks in both meshes, across which MTE fails late."""
        from agcli.agreement import gather_notes

        ctx.phase("comparing devices", waiting=True)
        chip = self.chip(None)
        meshes = chip is not None and chip.name.startswith("Ascend910B")
        notes = gather_notes(f"{_host()} {self._driver_number()}", self._group)
        places = [(host, int(number)) for host, number in (note.split() for note in notes)]
        for rank, place in enumerate(places):
            if places.index(place) != rank:
                raise EnvironmentFault(
                    f"ranks {places.index(place)} and {rank} use the same NPU {place[1]}, each needs its own: "
                    "check LOCAL_RANK and ASCEND_RT_VISIBLE_DEVICES"
                )
        for host in dict(places) if meshes else ():
            if len({number // MESH for where, number in places if where == host}) > 1:
                raise EnvironmentFault(
                    "ranks of one host use NPUs of both its meshes (0 to 7 and 8 to 15), which cannot reach each "
                    "other's memory; choose devices of one, with --devices or ASCEND_RT_VISIBLE_DEVICES"
                )


def _host() -> str:
    """What is equal for processes of one host only, containers or not."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.is_file() else socket.gethostname()


@contextlib.contextmanager
def _patience(timeout_s: float) -> Iterator[None]:
    """Within, HCCL waits that long for late ranks, unless the caller's environment says how long."""
    if CONNECT_VARIABLE in os.environ:
        yield
        return
    least, most = CONNECT_RANGE_S
    os.environ[CONNECT_VARIABLE] = str(min(max(int(timeout_s), least), most))
    try:
        yield
    finally:
        del os.environ[CONNECT_VARIABLE]


def _import_torch_npu() -> Any:
    try:
        import torch

        importlib.import_module("torch_npu")  # adds torch.npu and the hccl backend
    except (ImportError, OSError) as error:
        raise EnvironmentFault(
            f"torch_npu cannot be loaded ({error}); torch, torch_npu and CANN must be versions that go together (an "
            "undefined symbol means that they are not), and CANN's set_env.sh must be sourced"
        ) from error
    return torch.npu  # type: ignore[attr-defined]


def _wants_udma(plan: Plan) -> bool:
    return plan.config.transport == "putmem" and plan.chip is not None and has_udma(plan.chip)


def _end_quietly(memory: SymmetricMemory | None, ctx: RankContext) -> None:
    """Like the end without a failure, but another failure here would only hide the first one."""
    with contextlib.suppress(Exception):
        if memory is not None:
            memory.end()
    with contextlib.suppress(Exception):
        ctx.close()
