"""The sweep of ``ag-gemm check``: an AllGather+GEMM kernel over worlds, transports, slots, iteration counts and tails.

Legend: W ranks, A ``[M, K]``, B ``[K, N]``, C ``[W * M, N]``. Inputs are small integers, so that C must be right to the
last bit.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from agcli.check.findings import Finding
from agcli.check.run import Rank, Result, run
from agcli.check.shadow import check_size
from agcli.errors import UsageError
from agcli.problem import KernelConfig, Plan, Problem, make_plan
from agcli.simulator.split import SplitKernel
from agcli.slotted import kernel_arguments

WORLDS = (2, 3, 4)
BUFFER_NUMS = (2, 3)
TRANSPORTS = ("store", "putmem")
ITERATIONS = (1, 2, 3)
BLOCKS = KernelConfig(block_m=16, block_n=16, block_k=16, comm_block_m=8, comm_block_k=16, pvalue=2)
N, K = 24, 40  # both with tails
CORES = 3  # more than the ranks of a world of 2, fewer than those of a world of 4
SIGNAL_WORDS = 4096


@dataclass(frozen=True)
class Case:
    """One configuration to check."""

    problem: Problem
    config: KernelConfig
    cores: int
    strided: bool = False  # A is a part of a wider tensor

    @property
    def plan(self) -> Plan:
        """All sizes."""
        return make_plan(self.problem, self.config, None)

    @property
    def label(self) -> str:
        """Short and unique."""
        problem, config, plan = self.problem, self.config, self.plan
        tail = "" if plan.tail_rows == plan.rows_per_iteration else f" and a tail of {plan.tail_rows} rows"
        return (
            f"W={problem.world} {config.transport} buffer_num={config.buffer_num} M={problem.m} N={problem.n} "
            f"K={problem.k}, {plan.iterations} iterations{tail}, {self.cores} cores{', strided A' * self.strided}"
        )


@dataclass(frozen=True)
class Checked:
    """A case and what was found."""

    case: Case
    result: Result


@dataclass(frozen=True)
class Sweep:
    """What to check; None stands for the default range."""

    world: int | None = None
    m: int | None = None
    n: int | None = None
    k: int | None = None
    dtype: str = "fp16"
    cores: int | None = None
    launches: int = 3
    schedules: int = 8
    kernel_options: Mapping[str, Any] = field(default_factory=dict)

    def cases(self, kernel: SplitKernel) -> Iterator[Case]:
        """All cases for a kernel. Raises UsageError for sizes that make no problem."""
        options = dict(self.kernel_options)
        given = {name: options.pop(name, None) for name in ("transport", "buffer_num")}
        transports = TRANSPORTS if given["transport"] in (None, "auto") else (given["transport"],)
        if "TRANSPORT" not in kernel.signature.parameters:
            transports = ("putmem",)  # A contiguous, as any kernel may want it
        for world in WORLDS if self.world is None else (self.world,):
            for transport in transports:
                for buffer_num in BUFFER_NUMS if given["buffer_num"] is None else (given["buffer_num"],):
                    config = BLOCKS.with_options(**options, transport=transport, buffer_num=buffer_num)
                    yield from self._shapes(world, config)

    def _shapes(self, world: int, config: KernelConfig) -> Iterator[Case]:
        rows = config.block_m * config.pvalue
        cut = config.block_m // 2 - 1
        sizes = [i * rows - less for i in ITERATIONS for less in (0, cut) if i > 1 or less]
        for m in sizes if self.m is None else [self.m]:
            problem = Problem(m, self.n or N, self.k or K, world, self.dtype)
            strided = config.transport == "store" and m % rows != 0
            yield Case(problem, config, self.cores or CORES, strided)


def check_case(kernel: SplitKernel, case: Case, sweep: Sweep) -> Checked:
    """Check a kernel in one case, and compare every launch's C with the product. Raises UsageError if it cannot run."""
    for shape in (case.problem.a_shape, case.problem.b_shape, case.problem.c_shape, case.plan.peer_shape):
        check_size(math.prod(shape))
    memory: dict[tuple[int, int], torch.Tensor] = {}

    def arguments(rank: Rank) -> dict[str, Any]:
        c = memory[rank.launch, rank.rank] = torch.full(case.problem.c_shape, float("nan"), dtype=_dtype(case))
        return _arguments(kernel, case, rank, c)

    result = run(
        kernel, arguments, world=case.problem.world, cores=case.cores, launches=sweep.launches,
        schedules=sweep.schedules,
    )  # fmt: skip
    stopped = {"outside-tensor", "deadlock", "barrier-not-reached", "overflow", "misuse", "symm-at-block"}
    if not stopped & {fault.kind for fault in result.faults}:
        wrong = [finding for key in sorted(memory) for finding in _compare(case, key, memory[key])]
        result = replace(result, faults=[*result.faults, *wrong[:1]])
    return Checked(case, result)


def _arguments(kernel: SplitKernel, case: Case, rank: Rank, c: torch.Tensor) -> dict[str, Any]:
    plan = case.plan
    peer_mem = rank.symmetric("peer_mem", plan.peer_shape, _dtype(case))
    first_slot = rank.launch * plan.iterations % case.config.buffer_num
    a, b = _operands(case, rank.rank, rank.launch)
    known = kernel_arguments(plan, rank.rank, a, b, c, peer_mem, first_slot) | {"launch": rank.launch}
    parameters = kernel.signature.parameters
    for name in ("sig_ptr", "signal_ptr"):
        if name in parameters:
            known[name] = rank.symmetric(name, (SIGNAL_WORDS,), torch.int32)
    needed = [name for name, p in parameters.items() if p.default is inspect.Parameter.empty]
    unknown = [name for name in needed if name not in known]
    if unknown:
        raise UsageError(
            f"{kernel.name} has parameters that check cannot give: {', '.join(unknown)}. It knows those of the "
            f"AllGather+GEMM kernel ({', '.join(known)}) and sig_ptr; for others call agcli.simulator.run in a script"
        )
    return {name: known[name] for name in parameters if name in known}


def _operands(case: Case, rank: int, launch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * launch + rank)
    a = torch.randint(-3, 4, case.problem.a_shape, generator=generator).to(_dtype(case))
    b = torch.randint(-3, 4, case.problem.b_shape, generator=generator).to(_dtype(case))
    if case.strided:
        wide = torch.zeros((case.problem.m, case.problem.k + 8), dtype=a.dtype)
        a = wide[:, : case.problem.k].copy_(a)
    return a, b


def _compare(case: Case, key: tuple[int, int], c: torch.Tensor) -> Iterator[Finding]:
    launch, rank = key
    world = case.problem.world
    gathered = torch.cat([_operands(case, r, launch)[0] for r in range(world)]).float()
    want = (gathered @ _operands(case, rank, launch)[1].float()).to(c.dtype)
    wrong = (c != want).nonzero()
    if len(wrong):
        row, column = (int(i) for i in wrong[0])
        source = case.plan.locate(row, column, 0)
        yield Finding(
            "wrong-result",
            f"C of rank {rank}, launch {launch}, differs from the product in {len(wrong)} of {c.numel()} elements, "
            f"first in row {row}, column {column} (source rank {source['source_rank']}, "
            f"iteration {source['iteration']}): got {c[row, column].item():g}, want {want[row, column].item():g}",
        )


def _dtype(case: Case) -> torch.dtype:
    return torch.float16 if case.problem.dtype == "fp16" else torch.bfloat16
