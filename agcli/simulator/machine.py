"""One rank's AI cores during one launch: barriers among its tasks, accesses, progress, and what it tells the world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from agcli.simulator import context
from agcli.simulator.memory import Buffer, Region

if TYPE_CHECKING:
    from agcli.simulator.scheduler import Task

VECTORS_PER_CORE = 2
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
    """``cores`` AI cores of one rank, each one cube and two vector tasks, for launch ``launch`` (counted from 0)."""

    def __init__(
        self,
        rank: int,
        cores: int,
        world: World,
        launch: int,
        on_tile: Callable[[], None] | None = None,
    ) -> None:
        self.rank = rank
        self.cores = cores
        self.world = world
        self.launch = launch
        self.launch_mark = launch % 255 + 1
        self.ended: list[Task] = []
        self._on_tile = on_tile
        self.gates = {
            "barrier_all": Gate("barrier_all", cores * (1 + VECTORS_PER_CORE)),
            "barrier_all_vec": Gate("barrier_all_vec", cores * VECTORS_PER_CORE),
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

    def on_access(self, kind: str, buffer: Buffer, region: Region) -> None:
        """Called before every access of a task; ``kind`` is "read", "write" or "atomic"."""

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
        self.world.running()

    def stuck(self, turn: int) -> str | None:
        """Why nothing can ever wake this rank's tasks, or None."""
        for gate in self.gates.values():
            absent = [task for task in self.ended if gate.scope == "barrier_all" or task.unit != "cube"]
            if gate.arrived and gate.number is None and absent:
                return (
                    f"{len(gate.arrived)} of {gate.members} tasks of rank {self.rank} are at {gate.scope} "
                    f"{gate.generation}, but {absent[0].label} has ended the kernel"
                )
        entered = {gate.scope: gate.number for gate in self.gates.values() if gate.number is not None}
        if turn % TURNS_BETWEEN_REPORTS == TURNS_BETWEEN_REPORTS - 1:
            self.world.waiting(self._waiting_text(entered))
        return self.world.stuck(turn, entered)

    def _waiting_text(self, entered: dict[str, int]) -> str:
        for scope, number in entered.items():
            missing = ", ".join(map(str, self.world.missing(scope, number)))
            return f"waiting in {scope} {self.gates[scope].generation} of launch {self.launch} for rank {missing}"
        return f"waiting for a signal in launch {self.launch}"
