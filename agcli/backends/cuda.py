"""NVIDIA GPUs: torch symmetric memory over NVLink and one Triton kernel a call.

Imports nothing of CUDA, torch or Triton at the top, so that the parent process can ask what is missing.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import runpy
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli.backends.base import EngineOptions, Need
from agcli.backends.smi import gpu_inventory
from agcli.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    import torch

    from agcli.backends.cuda_bench import CudaBenchHooks
    from agcli.backends.cuda_engine import CudaEngine
    from agcli.chips import Chip
    from agcli.problem import KernelConfig, Plan, Problem
    from agcli.rank import RankContext
    from agcli.tuned import Choice

WAIT_SHARE = 0.8  # of the timeout: a kernel that waited so long for a peer's data says so, before others give up


def visible_devices(nodes: int, restriction: str | None) -> int:
    """How many of ``nodes`` GPUs a new process sees under ``CUDA_VISIBLE_DEVICES`` = ``restriction`` (None: unset).

    CUDA's rule: the list ends at the first entry that names no device.
    """
    if restriction is None:
        return nodes
    count = 0
    for entry in restriction.split(","):
        name = entry.strip()
        if not name or (re.fullmatch(r"-?\d+", name) and not 0 <= int(name) < nodes):
            break
        count += 1
    return min(count, nodes)


def torch_versions() -> tuple[str | None, str | None]:
    """Versions of torch and of the CUDA it was built for, without importing it (None: absent)."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    found = runpy.run_path(str(Path(spec.origin).parent / "version.py"))
    return str(found.get("__version__")), found.get("cuda")


def has_gluon() -> bool:
    """Whether Triton with its Gluon language is installed, without importing either."""
    spec = importlib.util.find_spec("triton")
    places = spec.submodule_search_locations if spec is not None else None
    return any((Path(place) / "experimental" / "gluon").is_dir() for place in places or [])


def block_overrides(config: KernelConfig) -> dict[str, int]:
    """Blocks that the user chose, as fields of ``CudaConfig``: those that differ from the defaults, the NPU's."""
    from agcli.problem import KernelConfig

    default = KernelConfig()
    names = ("block_m", "block_n", "block_k")
    return {name: getattr(config, name) for name in names if getattr(config, name) != getattr(default, name)}


class CudaBackend:
    """The platform "cuda"."""

    name = "cuda"

    def __init__(self) -> None:
        self._ctx: RankContext | None = None
        self._group: Any = None
        self._index = 0
        self._engines: list[CudaEngine] = []

    # -- asked by the parent -------------------------------------------------------------------------------------
    def needs(self) -> list[Need]:
        """The driver, devices, torch built for CUDA, Triton with Gluon."""
        try:
            ctypes.CDLL("libcuda.so.1")
            driver = True
        except OSError:
            driver = False
        count = self.device_count()
        torch, cuda = torch_versions()
        built = f"torch {torch}, built for {'CUDA ' + cuda if cuda else 'no CUDA'}" if torch else "no torch"
        return [
            Need("NVIDIA driver", driver, "libcuda.so.1" if driver else "no libcuda.so.1", "install NVIDIA's driver"),
            Need("devices", count > 0, f"{count} GPUs visible", "see nvidia-smi and CUDA_VISIBLE_DEVICES"),
            Need("torch for CUDA", cuda is not None, built, "install a torch wheel built for CUDA, 2.9 or newer"),
            Need("Triton with Gluon", has_gluon(), "found" if has_gluon() else "none", "pip install 'triton>=3.6'"),
        ]

    def device_count(self) -> int:
        """GPUs that a new process sees, by the driver's device nodes and CUDA_VISIBLE_DEVICES: no CUDA, no NVML."""
        nodes = sum(1 for node in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", node.name))
        return visible_devices(nodes, os.environ.get("CUDA_VISIBLE_DEVICES"))

    def inventory(self) -> list[tuple[str, str]]:
        """Names, memory and links of the devices, for `doctor`."""
        return gpu_inventory()

    def chip(self, soc: str | None) -> Chip | None:
        """None: the limits that a ``Chip`` holds are those of Ascend cores."""
        return None

    def bench_hooks(self) -> CudaBenchHooks:
        """Device events, torch's own fused operation, graphs, cache and memory sizes."""
        from agcli.backends.cuda_bench import CudaBenchHooks

        return CudaBenchHooks(self._group)

    def tuning_space(self, problem: Problem, chip: Chip | None) -> list[Choice]:
        """Tiles, ring depths, splits and chunks of the CUDA kernel."""
        from agcli.backends.cuda_space import candidates

        return candidates(problem)

    def check_plan(self, plan: Plan) -> None:
        """Raise UsageError for blocks that the kernel cannot take."""
        from agcli.backends.cuda_tuning import choose

        choose(plan.problem, **block_overrides(plan.config))

    def check_extra(self, plan: Plan, extra: dict[str, Any], cores: int | None) -> None:
        """Raise UsageError or TypeError if a choice of ``tuning_space`` for another problem cannot run this plan.

        ``cores`` as in ``EngineOptions``. In a rank, once the backend is started.
        """
        from agcli.backends.cuda_tuning import choose

        choose(plan.problem, self._programs(cores), **block_overrides(plan.config) | extra)

    # -- called in a rank ----------------------------------------------------------------------------------------
    def start(self, ctx: RankContext) -> None:
        """Select the GPU, join or create the NCCL group. Collective."""
        import torch

        if not torch.cuda.is_available():
            raise EnvironmentFault(
                f"torch {torch.__version__} finds no usable GPU; see nvidia-smi, and try a newer driver"
            )
        count = torch.cuda.device_count()
        # A process that was given one device only, as some launchers do, counts it as 0 whatever its rank is.
        alone = count == 1 and ctx.local_world > 1 and ctx.device > 0
        self._index = 0 if alone else ctx.device
        if self._index >= count:
            raise EnvironmentFault(f"rank {ctx.rank} wants GPU {self._index}, {count} visible; lower --world")
        torch.cuda.set_device(self._index)
        self._ctx = ctx
        self._group = getattr(ctx, "group", None)
        ctx.phase("joining the NCCL group", waiting=True)
        ctx.init_process_group("nccl", device_id=self.device())
        self._check_peers()

    def device(self) -> torch.device:
        """The GPU of this rank."""
        import torch

        return torch.device("cuda", self._index)

    def describe(self) -> dict[str, str]:
        """Device name, multiprocessors and the versions of what took part."""
        import torch
        import triton

        properties = torch.cuda.get_device_properties(self._index)
        nccl: Any = torch.cuda.nccl
        return {
            "device": properties.name,
            "index": str(self._index),
            "multiprocessors": str(properties.multi_processor_count),
            "torch": torch.__version__,
            "cuda": str(torch.version.cuda),
            "triton": triton.__version__,
            "nccl": ".".join(map(str, nccl.version())),
        }

    def _programs(self, cores: int | None) -> int:
        """One a multiprocessor, but no more than ``cores``."""
        import torch

        count = int(torch.cuda.get_device_properties(self._index).multi_processor_count)
        return min(count, cores or count)

    def engine(self, plan: Plan, options: EngineOptions) -> CudaEngine:
        """Symmetric memory and kernels for a plan. Collective.

        ``options.cores`` is a number of multiprocessors to use, at most. ``options.extra`` may hold fields of
        ``CudaConfig``, which override both the tuning and the plan's blocks.
        """
        import torch.distributed as dist

        from agcli.backends.cuda_engine import CudaEngine, symmetric_bytes, symmetric_memory
        from agcli.backends.cuda_tuning import choose

        if self._ctx is None:
            raise UsageError("the cuda backend is not started")
        overrides = block_overrides(plan.config) | options.extra
        programs = self._programs(options.cores)
        config = choose(plan.problem, programs, **overrides)
        self._ctx.phase("allocation of symmetric memory", waiting=True)
        size = symmetric_bytes(plan.problem, config)[1]
        memory = symmetric_memory(size, self._group or dist.group.WORLD, self.device())
        engine = CudaEngine(plan.problem, config, memory, WAIT_SHARE * self._ctx.timeout_s, programs)
        self._engines = [*self._open_engines(), engine]
        return engine

    def synchronize(self) -> None:
        """Wait for all queued work of this rank's GPU, and raise what the kernels reported."""
        import torch

        torch.cuda.synchronize(self._index)
        for engine in self._open_engines():
            engine.check()

    def finish(self) -> None:
        """Forget the engines, and destroy the process group if ``start`` made it."""
        self._engines.clear()
        if self._ctx is not None:
            ctx, self._ctx = self._ctx, None
            ctx.close()

    def _open_engines(self) -> list[CudaEngine]:
        return [engine for engine in self._engines if engine.is_open]

    def _check_peers(self) -> None:
        """Refuse a GPU that cannot read and write the memory of the GPUs that its host's other ranks use. Collective.

        A process that was given one GPU alone calls it 0 like the others theirs, and cannot ask.
        """
        import torch

        from agcli.agreement import gather_notes, raise_together

        host = socket.gethostname()
        places = [note.rpartition(" ") for note in gather_notes(f"{host} {self._index}", self._group)]
        peers = {int(index) for where, _, index in places if where == host} - {self._index}
        seen = [peer for peer in sorted(peers) if peer < torch.cuda.device_count()]
        cut = [peer for peer in seen if not torch.cuda.can_device_access_peer(self._index, peer)]
        fault = None
        if cut:
            fault = EnvironmentFault(
                f"GPU {self._index} cannot access the memory of GPU {', '.join(map(str, cut))}, which the kernel "
                "needs; see `nvidia-smi topo -p2p rw`, and choose others with --devices or CUDA_VISIBLE_DEVICES"
            )
        raise_together(fault, self._group)
