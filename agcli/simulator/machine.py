"""One rank's AI cores during one launch: barriers among its tasks, accesses, progress, and what it tells the world."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from agcli.simulator import context
from agcli.simulator.kept import KeptReads
from agcli.simulator.memory import Buffer, Region

if TYPE_CHECKING:
    import torch

    from agcli.simulator.scheduler import Task

VECTORS_PER_CORE = 2
UNITS = ("cube", *(f"vector{i}" for i in range(VECTORS_PER_CORE)))
MARKS = 127  # launches that the record of who wrote tells apart; eight such marks fill a signed 64-bit word
TURNS_BETWEEN_REPORTS = 200  # idle turns of the scheduler, about a millisecond each


class World(Protocol):
    """The other ranks as one rank's machine sees them."""

    size: int

    def enter(self, scope: str) -> int:
        """All tasks of this rank reached a barrier of ``scope``; returns the barrier's number."""

    def complete(self, scope: str, number: int) -> bool:
        """Whether all ranks have entered that barrier."""

    def missing(self, scope: str, number: int) -> list[int]:
        """Ranks that have not entered it."""

    def stuck(self, turn: int, waits: dict[str, int]) -> str | None:
        """Why this rank's waits can never end (None while they may); ``waits`` are numbers of entered barriers."""

    def exclusive(self) -> AbstractContextManager[None]:
        """A section in which no other rank's atomics run."""

    def waiting(self, text: str) -> None:
        """This rank has nothing to do but wait."""

    def running(self) -> None:
        """It goes on."""


class Gate:
    """A barrier among the tasks of one rank, which then waits for the other ranks."""

    def __init__(self, scope: str, members: int) -> None:
        self.scope = scope
        self.members = members
        self.generation = 0
        self.arrived: list[Task] = []
        self.number: int | None = None  # the world's number of the barrier that this rank has entered

    def full(self) -> bool:
        """Whether all members are here."""
        return len(self.arrived) == self.members


class Machine:
    """``cores`` AI cores of one rank for launch ``launch`` (counted from 0); ``units`` are the tasks of each core.

    The ``on_...`` and transfer methods are for those who watch a launch; here they do what plain simulation needs.
    """

    def __init__(
        self,
        rank: int,
        cores: int,
        world: World,
        launch: int,
        on_tile: Callable[[], None] | None = None,
        units: tuple[str, ...] = UNITS,
    ) -> None:
        self.rank = rank
        self.cores = cores
        self.units = units
        self.world = world
        self.launch = launch
        self.launch_mark = launch % MARKS + 1
        self.kept: KeptReads | None = KeptReads()
        self.ended: list[Task] = []
        self._on_tile = on_tile
        self.gates = {
            "barrier_all": Gate("barrier_all", cores * len(units)),
            "barrier_all_vec": Gate("barrier_all_vec", cores * sum(unit != "cube" for unit in units)),
        }

    # -- called by tasks -----------------------------------------------------------------------------------------
    def barrier(self, scope: str) -> None:
        """The running task reaches a barrier and waits there for all tasks of all ranks."""
        task = context.current()
        gate = self.gates[scope]
        number = gate.generation
        gate.arrived.append(task)
        if gate.full():
            gate.number = self.world.enter(scope)
        task.block(lambda: gate.generation > number, f"{scope} {number} of launch {self.launch}")

    def on_access(self, kind: str, buffer: Buffer, region: Region, values: torch.Tensor | float | None = None) -> None:
        """Called before every access of a task; ``kind`` is "read", "write" (of ``values``) or "atomic"."""

    def on_unwritten(self, buffer: Buffer, offset: int, never: bool) -> None:
        """A read of an element that nothing wrote in this launch (``never``: at all) is about to happen."""
        raise context.fault(
            f"read of symmetric memory that nothing wrote {'at all' if never else 'in this launch'}: "
            f"{buffer.describe(offset)} of rank {buffer.rank}",
            "unwritten-read",
        )

    def on_signal(self, buffer: Buffer, region: Region, adds: bool) -> None:
        """Called before a signal word is set or added to."""

    def on_wait(self, buffer: Buffer, region: Region, holds: Callable[[int], bool], condition: str) -> None:
        """Called when a task's wait for a signal word has ended; ``holds`` is what it waited for."""

    def on_transfer(self, dest: Buffer, target: Region, source: Buffer, origin: Region) -> None:
        """Called before a transfer writes to ``target`` what it has read from ``origin``."""

    def start_transfer(self, transfer: Callable[[], None]) -> None:
        """A task starts a transfer that need not be complete before ``complete_transfers``."""
        transfer()

    def complete_transfers(self) -> None:
        """The running task waits for the transfers that it started."""

    def order_transfers(self) -> None:
        """What the running task sends from now on arrives after the transfers that it started."""

    def tile_done(self) -> None:
        """A tile of the result was stored."""
        if self._on_tile is not None:
            self._on_tile()

    # -- called by the scheduler ---------------------------------------------------------------------------------
    def task_ended(self, task: Task) -> None:
        """A task has run the kernel to its end."""
        self.ended.append(task)

    def poll(self) -> None:
        """Open the gates that all ranks have entered."""
        for gate in self.gates.values():
            if gate.number is not None and self.world.complete(gate.scope, gate.number):
                gate.number = None
                gate.arrived = []
                gate.generation += 1

    def resumed(self) -> None:
        """Some task goes on."""
        if self.kept is not None:
            self.kept.forget_symmetric()
        self.world.running()

    def stuck(self, turn: int) -> str | None:
        """Why nothing can ever wake this rank's tasks, or None."""
        entered = {gate.scope: gate.number for gate in self.gates.values() if gate.number is not None}
        if turn % TURNS_BETWEEN_REPORTS == TURNS_BETWEEN_REPORTS - 1:
            self.world.waiting(self._waiting_text(entered))
        return self.unreachable_barrier() or self.world.stuck(turn, entered)

    def unreachable_barrier(self) -> str | None:
        """A barrier that some tasks of this rank have reached and others, which have ended, never will."""
        for gate in self.gates.values():
            absent = [task for task in self.ended if gate.scope == "barrier_all" or task.unit != "cube"]
            if gate.arrived and gate.number is None and absent:
                return (
                    f"{len(gate.arrived)} of {gate.members} tasks of rank {self.rank} are at {gate.scope} "
                    f"{gate.generation}, but {absent[0].label} has ended the kernel"
                )
        return None

    def _waiting_text(self, entered: dict[str, int]) -> str:
        for scope, number in entered.items():
            missing = ", ".join(map(str, self.world.missing(scope, number)))
            return f"waiting in {scope} {self.gates[scope].generation} of launch {self.launch} for rank {missing}"
        return f"waiting for a signal in launch {self.launch}"
