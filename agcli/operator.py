"""``AllGatherGemm``: ``C = all_gather(A) @ B`` in one fused kernel, for use inside an existing job.

    with AllGatherGemm(m, n, k, dtype=torch.bfloat16) as gemm:
        c = gemm(a, b)  # a [m, k], b [k, n] on each rank; c [W * m, n]

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

import torch
import torch.distributed as dist

from agcli.agreement import check_same, from_first
from agcli.backends import get_backend
from agcli.backends.base import Backend, Engine, EngineOptions
from agcli.errors import AgGemmError, UsageError
from agcli.operands import TORCH_DTYPES, check_operands
from agcli.problem import KernelConfig, Problem
from agcli.rank import Place, RankContext
from agcli.slotted import SlottedEngine
from agcli.tuned import Choice, agreed, default_store

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AllGatherGemm", "JobContext", "SlottedEngine"]

_log = logging.getLogger(__name__)

DTYPES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


class AllGatherGemm:
    """The fused operator for one problem, on the ranks of a process group that exists already.

    Creating and closing it is collective: all ranks, same arguments, same order. So is calling it: every rank calls
    equally often. It owns symmetric memory of ``plan.symmetric_bytes`` bytes a rank until ``close``.

    Args:
        m, n, k: sizes per rank.
        dtype: of A, B and C, ``torch.float16`` or ``torch.bfloat16``; sums are fp32 and rounded once.
        group: the process group, None for the default one. Never created or destroyed here.
        backend: ``npu``, ``cuda``, ``cpu``, or ``auto`` for the first that is ready.
        config: tiles, slots and transport; None for what fits the chip.
        tuned: take what ``ag-gemm tune`` found best instead, from this user's file or the file given; rank 0's counts.
            The attribute ``tuned`` then says which entry it was, and so does a message of level INFO.
        soc: the chip whose limits count, such as ``Ascend910B3``; None for the one present.
        cores: AI cores to use at most; None for all.
        timeout_s: seconds after which waiting for another rank is given up, where the platform can tell.

    Raises:
        UsageError (a ValueError): no process group, arguments that cannot be right, or that differ between ranks;
            the latter on every rank alike.
        EnvironmentFault: the platform is not ready, or its memory does not suffice.
    """

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        *,
        dtype: torch.dtype = torch.float16,
        group: dist.ProcessGroup | None = None,
        backend: str = "auto",
        config: KernelConfig | None = None,
        tuned: bool | str | Path = False,
        soc: str | None = None,
        cores: int | None = None,
        timeout_s: float = 300.0,
    ) -> None:
        if not dist.is_initialized():
            raise UsageError(
                "AllGatherGemm works inside a job: start it with torchrun or srun and call "
                "torch.distributed.init_process_group first"
            )
        if dist.get_rank(group) < 0:
            raise UsageError("this rank is not a member of the given group")
        refused: AgGemmError | None = None
        try:
            problem = Problem(m, n, k, dist.get_world_size(group), _dtype_name(dtype))
            ready = get_backend(backend)
            if tuned and config is not None:
                raise UsageError("give either config or tuned: tuned decides the configuration")
        except AgGemmError as error:
            refused = error
        # Before any device is touched: one rank that differs must not leave the others waiting for it.
        check_same(
            {"m": m, "n": n, "k": k, "dtype": dtype, "backend": backend if refused else ready.name}
            | {"soc": soc, "cores": cores, "tuned": bool(tuned), "refusal": refused}
            | (asdict(config) if config else {"config": "default"}),
            group,
        )
        if refused:
            raise refused
        self._engine: Engine | None = None
        self._platform = _Platform.acquire(ready, group, timeout_s)
        try:
            chip = self._platform.backend.chip(soc)
            check_same({"chip": chip.name if chip else None}, group)
            choice = Choice(asdict(config) if config else {})
            self.tuned = ""
            if tuned:
                store = default_store() if tuned is True else Path(tuned)
                choice, self.tuned = agreed(store, self._platform.backend, problem, chip, group, cores)
                _log.info("tuned: %s", self.tuned)
            self.plan = choice.plan(problem, chip)
            self._engine = self._platform.backend.engine(self.plan, EngineOptions(cores, extra=choice.extra))
        except BaseException:
            self._platform.release()
            raise

    def __call__(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``C = all_gather(a) @ b``, ``[W * M, N]``, into ``out`` if given. Queued where the device has a queue.

        ``a`` ``[M, K]``, ``b`` ``[K, N]`` and ``out`` ``[W * M, N]`` may have any strides, such as a transposed view or
        a column slice; with transport ``putmem`` an A that is not contiguous is copied first. A wrong operand raises
        UsageError (a ValueError) before anything is launched, and the operator stays usable. Only this rank's own
        operands are looked at: ranks must call alike, or one that raises leaves the others waiting.
        """
        if self._engine is None:
            raise UsageError("this AllGatherGemm is closed")
        device = self._platform.backend.device()
        check_operands(self.plan, device, a, b, out)
        c = torch.empty(self.plan.problem.c_shape, dtype=a.dtype, device=device) if out is None else out
        self._engine.run(a, b, c)
        return c

    def synchronize(self) -> None:
        """Wait for this rank's queued calls, and raise EnvironmentFault or KernelFault if one of them went wrong.

        Such as one that waited in vain for another rank. The next call and ``close`` raise that too.
        """
        if self._engine is not None:
            self._platform.backend.synchronize()

    def close(self) -> None:
        """Free the symmetric memory; collective. May be called twice."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            try:
                engine.close()
            finally:
                self._platform.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._engine is not None:  # other ranks may not come: nothing collective here
            self._engine = None
            self._platform.release()


@dataclass
class _Platform:
    """A started backend and how many operators use it: symmetric memory is initialised once in a process."""

    backend: Backend
    group: dist.ProcessGroup | None
    users: int = 1

    @staticmethod
    def acquire(backend: Backend, group: dist.ProcessGroup | None, timeout_s: float) -> _Platform:
        """The platform of that name, started on first use; collective. UsageError if it serves another group."""
        running = _platforms.get(backend.name)
        if running is not None:
            if running.group is not group:
                raise UsageError(f"backend {backend.name} serves another process group; close its operators first")
            running.users += 1
            return running
        try:
            backend.start(JobContext(group, timeout_s))
        except BaseException:
            backend.finish()
            raise
        _platforms[backend.name] = platform = _Platform(backend, group)
        return platform

    def release(self) -> None:
        """Finish the backend after its last operator."""
        self.users -= 1
        if self.users == 0:
            del _platforms[self.backend.name]
            self.backend.finish()


_platforms: dict[str, _Platform] = {}


class JobContext(RankContext):
    """The context of a rank that no launcher started: its place from the process group and torchrun's variables.

    ``rank`` and ``world`` count within ``group``. Collective, for the common ``run_id``.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout_s: float) -> None:
        self.group = group
        world = dist.get_world_size(group)
        local_rank = int(os.environ.get("LOCAL_RANK", dist.get_rank()))
        local_world = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
        super().__init__(
            Place(dist.get_rank(group), world, local_rank, min(local_world, world), device=local_rank),
            timeout_s=timeout_s,
            run_id=from_first(f"ag-gemm-{uuid.uuid4().hex[:12]}", group),
            master=(os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "0"))),
            send=lambda message: None,
            open_store=_no_store,
        )


def _no_store() -> NoReturn:
    raise NotImplementedError("a job that exists already shares no store with us; use its process group")


def _dtype_name(dtype: torch.dtype) -> str:
    if dtype not in DTYPES:
        raise UsageError(f"dtype must be one of {', '.join(map(str, DTYPES))}, got {dtype}")
    return DTYPES[dtype]
