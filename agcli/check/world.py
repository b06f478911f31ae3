"""All ranks in one process: their symmetric memory, their barriers, and their cores under the detector's eyes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch

from agcli.check.access import CheckedTask, TransferTask, place_of
from agcli.check.clocks import joined
from agcli.check.findings import Finding
from agcli.check.races import Detector
from agcli.check.schedules import Schedule
from agcli.check.signals import Holds
from agcli.check.sizes import Transfer
from agcli.errors import UsageError
from agcli.simulator import context
from agcli.simulator.machine import UNITS, Machine
from agcli.simulator.memory import Buffer, Region
from agcli.simulator.scheduler import who_waits
from agcli.simulator.split import SplitKernel

SPIN_PAUSE, SPIN_LIMIT = 64, 4096  # reads of the same elements while nothing changes: let others run; give up


def units_of(kernel: SplitKernel) -> tuple[str, ...]:
    """The tasks of an AI core: a kernel without products is launched on vector cores alone, one a program."""
    return UNITS if kernel.multiplies else ("vector0",)


class LocalWorld:
    """``size`` ranks, their barriers and their symmetric memory."""

    def __init__(self, size: int, detector: Detector) -> None:
        self.size = size
        self.detector = detector
        self.symmetric: list[dict[int, Buffer]] = [{} for _ in range(size)]
        self.ended: list[int] = [0] * size  # launches
        self._by_name: dict[str, list[torch.Tensor]] = {}
        self._entered: dict[str, list[int]] = {}
        self._launches: dict[tuple[str, int], dict[int, int]] = {}  # barrier -> rank -> its launch then
        self._before: list[dict[str, int]] = [{} for _ in range(size)]  # barriers entered when the launch began

    def allocate(self, name: str, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Rank's part of the symmetric memory ``name``, zeroed when the first rank asks for it.

        Raises UsageError if the ranks disagree on its shape or type.
        """
        if name not in self._by_name:
            tensors = [torch.zeros(shape, dtype=dtype) for _ in range(self.size)]
            written = [torch.zeros(tensor.numel(), dtype=torch.uint8) for tensor in tensors]
            buffers = tuple(Buffer(tensor, name, r, written[r]) for r, tensor in enumerate(tensors))
            for r, buffer in enumerate(buffers):
                buffer.peers = buffers
                self.symmetric[r][tensors[r].data_ptr()] = buffer
            self._by_name[name] = tensors
        own = self._by_name[name][rank]
        if tuple(own.shape) != tuple(shape) or own.dtype is not dtype:
            raise UsageError(
                f"symmetric memory '{name}' is {list(own.shape)} of {own.dtype}, rank {rank} asks for {list(shape)} of "
                f"{dtype}: shape and type must be the same on all ranks and in all launches"
            )
        return own

    def entered(self, scope: str, rank: int) -> int:
        """How many barriers of a scope a rank has entered."""
        return self._entered.setdefault(scope, [0] * self.size)[rank]

    def enter(self, scope: str, rank: int, launch: int) -> int:
        """All tasks of a rank are at a barrier."""
        number = self.entered(scope, rank) + 1
        self._entered[scope][rank] = number
        names = self.detector.barrier_names
        launches = self._launches.setdefault((scope, number), {})
        launches[rank] = launch
        names.setdefault((scope, number), f"{scope} {number - 1 - self._before[rank].get(scope, 0)} of launch {launch}")
        if len(set(launches.values())) > 1:
            raise context.fault(
                f"the ranks reach {scope} unequally often in a launch, so that one barrier joins different launches: "
                + ", ".join(f"rank {r} in launch {n}" for r, n in sorted(launches.items())),
                "barrier-not-reached",
            )
        return number

    def end_launch(self, rank: int) -> int:
        """All tasks of a rank's launch have ended; returns the number of the next."""
        self.ended[rank] += 1
        self._before[rank] = {scope: counts[rank] for scope, counts in self._entered.items()}
        return self.ended[rank]

    def missing(self, scope: str, number: int) -> list[int]:
        """Ranks that have not entered a barrier."""
        return [rank for rank in range(self.size) if self.entered(scope, rank) < number]


class RankView:
    """One rank's side of the world (see ``machine.World``)."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self.world = world
        self.size = world.size
        self.rank = rank

    def enter(self, scope: str) -> int:
        """All tasks of this rank reached a barrier."""
        return self.world.enter(scope, self.rank, self.world.ended[self.rank])

    def complete(self, scope: str, number: int) -> bool:
        """Whether all ranks have entered it."""
        return not self.missing(scope, number)

    def missing(self, scope: str, number: int) -> list[int]:
        """Ranks that have not entered it."""
        return self.world.missing(scope, number)

    def stuck(self, turn: int, waits: dict[str, int]) -> str | None:
        """Why this rank's waits cannot end, given that no task of any rank can go on."""
        for scope, number in waits.items():
            gone = [
                rank for rank in self.missing(scope, number) if self.world.ended[rank] > self.world.ended[self.rank]
            ]
            if gone:
                return f"rank {gone[0]} has ended the kernel with one {scope} fewer than rank {self.rank}"
        return None

    def exclusive(self) -> AbstractContextManager[None]:
        """All ranks are in this thread: nothing to lock."""
        return nullcontext()

    def waiting(self, text: str) -> None:
        """Nothing to report to."""

    def running(self) -> None:
        """Nothing to report to."""


class CheckedMachine(Machine):
    """A rank's cores in one launch; tells the detector all that they do."""

    def __init__(
        self, rank: int, cores: int, world: LocalWorld, launch: int, units: tuple[str, ...], schedule: Schedule
    ) -> None:
        super().__init__(rank, cores, RankView(world, rank), launch, units=units)
        self._world = world
        self._detector = world.detector
        self._schedule = schedule
        self.kept = None  # the detector sees every read

    def barrier(self, scope: str) -> None:
        """The running task completes its transfers and waits for all tasks of all ranks."""
        self.complete_transfers()
        task = _current()
        number = self._world.entered(scope, self.rank) + 1
        self._detector.arrive(task, scope, number)
        super().barrier(scope)
        self._detector.leave(task, scope, number)

    def on_access(self, kind: str, buffer: Buffer, region: Region, values: torch.Tensor | float | None = None) -> None:
        """Watch an access; a task that reads the same elements over and over lets others run."""
        task = _current()
        self._detector.access(task, kind, buffer, region, values)
        if kind == "write":
            task.spins.clear()
        elif region.size:
            self._spin(task, kind, buffer, region)

    def on_unwritten(self, buffer: Buffer, offset: int, never: bool) -> None:
        """Note it and go on."""
        self._detector.unwritten(buffer, offset, never)

    def on_transfer(self, dest: Buffer, target: Region, source: Buffer, origin: Region) -> None:
        """Note what a transfer covers."""
        self._detector.sizes.transferred(
            Transfer(self._detector.place_now(_current(), "transfer"), dest, target, source, origin)
        )

    def on_signal(self, buffer: Buffer, region: Region, adds: bool) -> None:
        """A release."""
        task = _current()
        if self._schedule.preempts:
            task.pause()
        self._detector.signal(task, buffer, region, adds)

    def on_wait(self, buffer: Buffer, region: Region, holds: Holds, condition: str) -> None:
        """An acquire."""
        self._detector.waited(_current(), buffer, region, holds, condition)

    def start_transfer(self, transfer: Callable[[], None]) -> None:
        """A task of its own, which runs when the schedule likes."""
        owner = _current()
        task = TransferTask(owner, transfer, *self._detector.here(owner))
        clock = joined(self._detector.clocks.published(owner.actor), owner.ordered)
        self._detector.enter_launch(task, owner.free.pop() if owner.free else None, clock)
        owner.pending.append(task)
        self._schedule.add(task)

    def complete_transfers(self) -> None:
        """Wait for the transfers of the running task, and come after them."""
        task = _current()
        self._await_transfers(task)
        for transfer in task.pending:
            self._detector.complete(task, transfer)
            task.free.append(transfer.actor)
        task.pending = []

    def order_transfers(self) -> None:
        """Later signals and transfers come after the transfers under way; the task itself does not."""
        task = _current()
        self._await_transfers(task)
        for transfer in task.pending:
            task.ordered = self._detector.clocks.joined_with(task.ordered, transfer.actor)

    def task_ended(self, task: object) -> None:
        """A task has ended; transfers that it left under way are a fault."""
        ended = cast(CheckedTask, task)
        if isinstance(ended, TransferTask):
            return
        super().task_ended(ended)
        for transfer in ended.pending:
            what = "the kernel ends without quiet or a barrier after this transfer: nothing says that it is complete"
            self._detector.findings.add(
                Finding("unfinished-transfer", what, (place_of(transfer, "transfer", transfer.origin, transfer.loops),))
            )

    def _await_transfers(self, task: CheckedTask) -> None:
        task.block(lambda: all(transfer.done for transfer in task.pending), "its transfers")

    def _spin(self, task: CheckedTask, kind: str, buffer: Buffer, region: Region) -> None:
        offset = region.offset if region.elements is None else int(region.elements.flatten()[0])
        place = (id(buffer), offset, region.size)
        if kind == "atomic" and place in task.spins:
            self._detector.changes -= 1  # spinning with atomics is no progress for other spinning tasks
        if task.changes != self._detector.changes:
            task.spins.clear()
            task.changes = self._detector.changes
        count = task.spins[place] = task.spins.get(place, 0) + 1
        if count % SPIN_PAUSE == 0:
            self._schedule.yield_turn(task)
        if count > SPIN_LIMIT:
            name = buffer.describe(offset)
            raise context.fault(f"this loop reads {name} over and over, and no task changes it any more", "deadlock")


def deadlock(machines: list[CheckedMachine], blocked: list[CheckedTask]) -> Finding:
    """What to say when no task can go on."""
    reason = next((text for machine in machines if (text := machine.unreachable_barrier())), None)
    if reason is None:
        entered = [(m, {g.scope: g.number for g in m.gates.values() if g.number is not None}) for m in machines]
        reason = next((text for m, numbers in entered if (text := m.world.stuck(0, numbers))), None)
    places = tuple(place_of(task, "wait", task.wait.site if task.wait else None) for task in blocked[:1])
    if reason is not None:
        return Finding("barrier-not-reached", reason, places, details=tuple(who_waits(blocked)))
    what = "no task of any rank can go on"
    return Finding("deadlock", what, places, details=tuple(who_waits(blocked)))


def _current() -> CheckedTask:
    return cast(CheckedTask, context.current())
