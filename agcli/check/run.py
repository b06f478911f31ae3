"""Check any kernel: ``run(kernel, arguments, world=4)`` simulates all ranks in this process and returns what it found.

from agcli.simulator import run

def arguments(rank):  # called for each launch of each rank
    peer_mem = rank.symmetric("peer_mem", (2, 64, 32), torch.float16)
    return {"a_ptr": torch.randn(16, 32).half(), "peer_mem_ptr": peer_mem, "rank": rank.rank, ...}

result = run("my_kernel.py:kernel", arguments, world=4)
print(result)
assert result.clean
"""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch

from agcli.check.access import CheckedTask, TransferTask
from agcli.check.clocks import Clock, joined
from agcli.check.findings import Finding, Findings, Place
from agcli.check.places import Places
from agcli.check.races import Detector
from agcli.check.schedules import Schedule, Stuck
from agcli.check.world import CheckedMachine, LocalWorld, deadlock, units_of
from agcli.errors import AgGemmError, KernelFault, UsageError
from agcli.simulator.binding import load_kernel
from agcli.simulator.launch import bind, tasks_of
from agcli.simulator.memory import Buffer
from agcli.simulator.split import SplitKernel
from agcli.simulator.syntax import call_kind_of

SCOPES = ("gpu", "cta", "sys")


@dataclass(frozen=True)
class Rank:
    """What ``arguments`` is told: which rank and launch it is to make arguments for."""

    rank: int
    world: int
    launch: int
    _memory: LocalWorld = field(repr=False)

    def symmetric(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """This rank's part of symmetric memory, zeroed before the first launch and kept from launch to launch."""
        return self._memory.allocate(name, self.rank, tuple(shape), dtype)


Arguments = Callable[[Rank], Mapping[str, Any]]


@dataclass(frozen=True)
class Result:
    """What a check found. ``faults`` make the kernel wrong, ``warnings`` slow."""

    kernel: str
    faults: list[Finding]
    warnings: list[Finding]
    schedules: int
    accesses: int
    seconds: float

    @property
    def clean(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def __str__(self) -> str:
        from agcli.check.report import describe

        return describe(self.kernel, self.faults, self.warnings)


def run(
    kernel: Any, arguments: Arguments, *, world: int = 2, cores: int = 2, launches: int = 3, schedules: int = 8
) -> Result:
    """Check a kernel: a function, what ``triton.jit`` made of one, or ``"file.py:name"``.

    ``arguments(rank)`` returns the kernel's arguments by name, for each launch of each rank anew; tensors of its own
    making keep the results. Kernels with signals or atomics run under ``schedules`` further schedules, since there what
    happens depends on who comes first. Raises UsageError if the kernel cannot be loaded or run at all.
    """
    for name, value in (("world", world), ("cores", cores), ("launches", launches)):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, got {value}")
    began = time.perf_counter()
    split = split_kernel(kernel)
    findings = Findings()
    for finding in _static_findings(split):
        findings.add(finding)
    accesses = 0
    tried = 0
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tiles are small
    try:
        for seed in range(schedules + 1):
            one = _Simulation(split, arguments, findings, world, cores, launches, seed)
            one.run()
            tried += 1
            accesses += one.detector.accesses
            if not one.depends_on_schedule:
                break
    finally:
        torch.set_num_threads(threads)
    _grade(findings)
    return Result(split.name, findings.faults, findings.warnings, tried, accesses, time.perf_counter() - began)


def split_kernel(kernel: Any) -> SplitKernel:
    """The kernel, read and split. Raises UsageError if it is none."""
    if isinstance(kernel, SplitKernel):
        return kernel
    if isinstance(kernel, (str, Path)):
        file, colon, name = str(kernel).rpartition(":")
        if not colon:
            raise UsageError(f"name the kernel as FILE:NAME, got '{kernel}'")
        kernel = load_kernel(file, name)
    try:
        return SplitKernel(kernel)
    except (TypeError, OSError) as error:
        raise UsageError(f"this is not a kernel: {error}") from error


class _Simulation:
    """All launches of all ranks under one schedule."""

    def __init__(
        self, kernel: SplitKernel, arguments: Arguments, findings: Findings, world: int, cores: int, launches: int,
        seed: int,
    ) -> None:  # fmt: skip
        self._kernel = kernel
        self._arguments = arguments
        self._findings = findings
        self._cores = cores
        self._launches = launches
        self.detector = Detector(Places(kernel), findings, world)
        self._world = LocalWorld(world, self.detector)
        self._machines: dict[int, CheckedMachine] = {}
        self._tasks: dict[int, list[CheckedTask]] = {}
        self._schedule = Schedule(seed, self._ended, self._poll)

    @property
    def depends_on_schedule(self) -> bool:
        """Whether another schedule may show something else."""
        return bool(self.detector.signals) or self.detector.atomics

    def run(self) -> None:
        """Run to the end or to the first fault that stops it."""
        for rank in range(self._world.size):
            self._start(rank)
        try:
            self._schedule.run()
        except Stuck as stuck:
            self._findings.add(deadlock(list(self._machines.values()), stuck.blocked))
        except KernelFault as fault:
            task = self._schedule.running
            assert task is not None
            self.detector.fault(task, fault)
        except AgGemmError:
            raise
        except Exception as error:
            site, _ = Places(self._kernel).of_error(error)
            if site is None:
                raise
            raise UsageError(f"the kernel raised {type(error).__name__}: {error} at {site}") from error
        detector = self.detector
        for findings in (
            detector.sizes.findings(detector.written),
            detector.signals.findings(),
            detector.work.warnings(),
        ):
            for finding in findings:
                self._findings.add(finding)

    def _start(self, rank: int) -> None:
        launch = self._world.ended[rank]
        named = self._arguments(Rank(rank, self._world.size, launch, self._world))
        known = _shared_buffers(named, rank) | self._world.symmetric[rank]
        try:
            bound = bind(self._kernel, (), named, rank, known)
        except TypeError as error:
            raise UsageError(f"the arguments do not fit {self._kernel.name}: {error}") from error
        units = units_of(self._kernel)
        machine = CheckedMachine(rank, self._cores, self._world, launch, units, self._schedule)
        after: Clock = []
        before = self._tasks.get(rank, [])
        for task in before:
            after = joined(after, self.detector.clocks.published(task.actor))
        tasks = tasks_of(self._kernel, machine, bound, CheckedTask)
        for i, task in enumerate(tasks):
            self.detector.enter_launch(task, before[i].actor if before else None, after)
            if before:
                task.synchronised = before[i].synchronised
            self._schedule.add(task)
        self._machines[rank] = machine
        self._tasks[rank] = tasks

    def _ended(self, task: CheckedTask) -> None:
        machine = cast(CheckedMachine, task.machine)
        machine.task_ended(task)
        if isinstance(task, TransferTask) or len(machine.ended) < len(self._tasks[machine.rank]):
            return
        if self._world.end_launch(machine.rank) < self._launches:
            self._start(machine.rank)
        else:
            del self._machines[machine.rank]

    def _poll(self) -> None:
        for machine in self._machines.values():
            machine.poll()


def _shared_buffers(named: Mapping[str, Any], rank: int) -> dict[int, Buffer]:
    """One buffer for a tensor that is given for several parameters, such as input and output of what works in place."""
    buffers: dict[int, Buffer] = {}
    for name, value in named.items():
        if isinstance(value, torch.Tensor):
            buffer = buffers.setdefault(value.data_ptr(), Buffer(value, name, rank))
            if value.numel() > buffer.flat.numel():
                buffers[value.data_ptr()] = Buffer(value, name, rank)
    return buffers


def _grade(findings: Findings) -> None:
    """An old signal that satisfies a new wait is a fault only where something else went wrong through it."""
    if any(fault.kind in ("race", "unwritten-read", "wrong-result") for fault in findings.faults):
        return
    findings.demote("signal-reuse")


def _static_findings(kernel: SplitKernel) -> Iterator[Finding]:
    for file, line in kernel.dead_waits:
        what = "the token of this dl.wait is never consumed: the compiler deletes the wait, and it orders nothing"
        yield Finding("dead-wait", what, (Place("wait", file, line, kernel.name, -1, -1, "", -1),))
    for source in kernel.sources:
        for call in ast.walk(source.tree):
            if isinstance(call, ast.Call) and call_kind_of(call, source.names) == "wait":
                yield from _scope_finding(call, source.function.__code__.co_filename, kernel.name)


def _scope_finding(call: ast.Call, file: str, name: str) -> Iterator[Finding]:
    scope = next((k.value for k in call.keywords if k.arg == "scope"), call.args[2] if len(call.args) > 2 else None)
    if not isinstance(scope, ast.Constant) or scope.value in SCOPES:
        return
    place = (Place("wait", file, call.lineno, name, -1, -1, "", -1),)
    if scope.value == "npu":
        what = 'the scope "npu" of dl.wait raises in triton-ascend ("gpu", "cta" and "sys" do not)'
        yield Finding("wait-scope", what, place, warning=True)
    else:
        yield Finding("misuse", f"dl.wait knows the scopes {', '.join(SCOPES)}, not {scope.value!r}", place)
