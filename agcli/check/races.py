"""The detector: keeps the clocks and shadows of a run and turns what breaks a rule into findings.

Order comes from program order within a task, barriers, signals, completed transfers, and launches of one rank.
"""

from __future__ import annotations

from typing import Any

import torch

from agcli.check import explain
from agcli.check.access import Access, CheckedTask, TransferTask, place_of
from agcli.check.clocks import Clock, Clocks, joined
from agcli.check.findings import Finding, Findings, Place
from agcli.check.places import Loops, Places
from agcli.check.rules import Work
from agcli.check.shadow import Shadow
from agcli.check.signals import ADD, SET, STORE, Holds, Signals
from agcli.check.sizes import Sizes
from agcli.errors import KernelFault
from agcli.simulator.context import Site
from agcli.simulator.memory import Buffer, Region

WORDS_LIMIT = 256  # a plain store to more words than this is taken for data


class Detector:
    """Watches the accesses and synchronisation of all ranks of one run."""

    def __init__(self, places: Places, findings: Findings, world: int) -> None:
        self.clocks = Clocks()
        self.signals = Signals(self.clocks)
        self.findings = findings
        self.work = Work(world)
        self.sizes = Sizes()
        self.atomics = False  # whether the kernel uses any
        self.changes = 0  # of memory, by anyone: who spins on memory waits for one
        self.barrier_names: dict[tuple[str, int], str] = {}
        self._places = places
        self._accesses: list[Access] = []
        self._shadows: dict[int, Shadow] = {}
        self._barriers: dict[tuple[str, int], Clock] = {}
        self._raced = False  # the access at hand raced, so what it reads needs no second complaint

    @property
    def accesses(self) -> int:
        """How many accesses were watched."""
        return len(self._accesses)

    # -- accesses ------------------------------------------------------------------------------------------------
    def access(self, task: CheckedTask, kind: str, buffer: Buffer, region: Region, values: Any = None) -> None:
        """An access is about to happen: races with earlier ones are found here."""
        access = self._record(task, kind)
        self._race_check(access, kind, buffer, region, values)
        if kind != "read":
            self.changes += 1
            self.atomics |= kind == "atomic"
            self.work.wrote(access, kind, buffer)
            if self.signals.tracks(buffer) and region.size <= WORDS_LIMIT:
                for offset in region.offsets().flatten().tolist():
                    self.signals.change(buffer, offset, access, STORE, [])
        if buffer.symmetric and len(buffer.shape) == 3:
            self._slot_check(access, buffer, region)

    def signal(self, task: CheckedTask, buffer: Buffer, region: Region, adds: bool) -> None:
        """A signal word is about to be set or added to: a release."""
        access = self._record(task, "signal")
        self._race_check(access, "atomic", buffer, region)
        self.changes += 1
        release = joined(self.clocks.published(task.actor), task.ordered)
        self.signals.change(buffer, region.offset, access, ADD if adds else SET, release)

    def waited(self, task: CheckedTask, buffer: Buffer, region: Region, holds: Holds, condition: str) -> None:
        """A wait for a signal word has ended: an acquire."""
        access = self._record(task, "wait")
        signal = self.signals.acquire(buffer, region.offset, access, holds, condition)
        self.clocks.learn(task.actor, signal.release)
        if signal.access is not None:
            task.heard[signal.access.task.actor] = signal.access.site
        self._race_check(access, "wait", buffer, region)

    def here(self, task: CheckedTask) -> tuple[Site | None, Loops]:
        """The running task's line and loops; those of its start for a transfer."""
        if isinstance(task, TransferTask):
            return task.origin, task.loops
        return self._places.here()

    def place_now(self, task: CheckedTask, what: str) -> Place:
        """Where the running task is, for a report."""
        return place_of(task, what, *self.here(task))

    def _record(self, task: CheckedTask, kind: str) -> Access:
        site, loops = self.here(task)
        access = Access(self.clocks.tick(), kind, task, site, loops, task.passed, task.synchronised)
        self._accesses.append(access)
        return access

    def _race_check(self, access: Access, kind: str, buffer: Buffer, region: Region, values: Any = None) -> None:
        shadow = self._shadows.get(id(buffer))
        if shadow is None:
            shadow = self._shadows[id(buffer)] = Shadow(buffer)
        actor = access.task.actor
        found = shadow.unordered(kind, region, actor, self.clocks.of(actor))
        self._raced = bool(found)
        for number, offsets in found.items():
            self._race(self._accesses[number - 1], access, buffer, region, offsets, values)
        shadow.note(kind, region, actor, access.number)

    def _race(
        self, first: Access, second: Access, buffer: Buffer, region: Region, offsets: torch.Tensor, values: Any
    ) -> None:
        if _done_twice(first, second) and _same(buffer, region, values):
            self.findings.add(_double_store(first, second, buffer, offsets))
            return
        kinds = sorted(("write" if a.kind == "signal" else a.kind for a in (first, second)), reverse=True)
        finding = Finding("race", f"{kinds[0]}-{kinds[1]} race", (first.place(), second.place()))
        if self.findings.count(finding.key):
            return
        self.findings.add(
            Finding(
                "race",
                f"{finding.what} on {explain.part(buffer, offsets)}",
                finding.places,
                explain.last_common(first, second, self.barrier_names),
                explain.why(first, second, self._places.vector_barrier),
            )
        )

    def _slot_check(self, access: Access, buffer: Buffer, region: Region) -> None:
        size = buffer.strides[0]
        if region.elements is not None:
            if not region.elements.numel():
                return
            low, high = int(region.elements.min()), int(region.elements.max())
        else:
            low, high = region.offset, region.last
        if low // size != high // size:
            what = f"one {access.kind} reaches from slot {low // size} into slot {high // size} of {buffer!r}"
            self.findings.add(Finding("outside-slot", what, (access.place(),)))

    def unwritten(self, buffer: Buffer, offset: int, never: bool) -> None:
        """The read at hand meets an element that nothing wrote."""
        if self._raced:
            return
        access = self._accesses[-1]
        when = "at all" if never else "in this launch"
        what = f"read of symmetric memory that nothing wrote {when}: {buffer.describe(offset)} of rank {buffer.rank}"
        self.findings.add(Finding("unwritten-read", what, (access.place(),)))
        self.sizes.missed(buffer, offset, access.place())

    def written(self, buffer: Buffer, region: Region) -> bool:
        """Whether anybody wrote to any element of a contiguous region in any launch."""
        shadow = self._shadows.get(id(buffer))
        return shadow is not None and shadow.written(region)

    # -- order ---------------------------------------------------------------------------------------------------
    def enter_launch(self, task: CheckedTask, actor: int | None, after: Clock) -> int:
        """A task of a launch begins; launches of one rank are in order."""
        task.actor = self.clocks.add() if actor is None else actor
        self.clocks.learn(task.actor, after)
        return task.actor

    def arrive(self, task: CheckedTask, scope: str, number: int) -> None:
        """A task has come to a barrier: a release."""
        clock = joined(self.clocks.published(task.actor), task.ordered)
        self._barriers[scope, number] = joined(self._barriers.get((scope, number), []), clock)

    def leave(self, task: CheckedTask, scope: str, number: int) -> None:
        """It passes the barrier: an acquire."""
        self.clocks.learn(task.actor, self._barriers[scope, number])
        task.passed += 1
        task.synchronised = {**task.synchronised, scope: (number, self.barrier_names[scope, number])}

    def complete(self, task: CheckedTask, transfer: TransferTask) -> None:
        """A task has waited for a transfer of its own."""
        self.clocks.learn(task.actor, self.clocks.published(transfer.actor))

    # -- faults --------------------------------------------------------------------------------------------------
    def fault(self, task: CheckedTask, fault: KernelFault) -> None:
        """A task was stopped by a fault."""
        site, loops = self._places.of_error(fault)
        self.findings.add(Finding(fault.rule, fault.what, (place_of(task, "here", site or task.origin, loops),)))


def _done_twice(first: Access, second: Access) -> bool:
    """Both vector cores of one AI core, at one line, both storing."""
    a, b = first.task, second.task
    return (
        first.kind == second.kind == "write"
        and a.machine is b.machine
        and a.core == b.core
        and first.site == second.site
        and {a.unit, b.unit} == {"vector0", "vector1"}
    )


def _same(buffer: Buffer, region: Region, values: Any) -> bool:
    """Whether a write changes nothing."""
    present = buffer.flat[region.elements] if region.elements is not None else buffer.view(region)
    new = torch.as_tensor(values).to(present.dtype).expand_as(present)
    return bool(((present == new) | (present.isnan() & new.isnan())).all())


def _double_store(first: Access, second: Access, buffer: Buffer, offsets: torch.Tensor) -> Finding:
    what = (
        f"both vector cores store the same values to {explain.part(buffer, offsets)}: give each its share by sub_vec_id"
    )
    return Finding("double-store", what, (first.place(), second.place()), warning=True)
