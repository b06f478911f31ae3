"""One access of a run, as the detector remembers it, and the tasks that make accesses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agcli.check.clocks import Clock
from agcli.check.findings import Place
from agcli.check.places import NOWHERE, Loops
from agcli.simulator.context import Site
from agcli.simulator.machine import Machine
from agcli.simulator.scheduler import Task

UNIT_NAMES = {"cube": "cube", "vector0": "vector 0", "vector1": "vector 1"}


class CheckedTask(Task):
    """A task with what the check keeps of it.

    ``actor`` is its index among the clocks, ``passed`` the barriers it has passed in this launch, ``synchronised`` the
    last barrier of each scope over all launches, ``pending`` its transfers under way, ``ordered`` what a fence made all
    that it sends or transfers later come after, ``heard`` where each actor sent the last signal that ended its wait.
    """

    __slots__ = ("actor", "changes", "free", "heard", "ordered", "passed", "pending", "spins", "synchronised")

    def __init__(self, machine: Machine, core: int, unit: str, function: Callable[[], Any]) -> None:
        super().__init__(machine, core, unit, function)
        self.actor = -1
        self.passed = 0
        self.synchronised: dict[str, tuple[int, str]] = {}
        self.pending: list[TransferTask] = []
        self.free: list[int] = []  # actors of its complete transfers, for new ones
        self.ordered: Clock = []
        self.heard: dict[int, Site | None] = {}
        self.spins: dict[tuple[int, int, int], int] = {}  # reads of each region since memory changed last
        self.changes = 0  # of memory, as it was then

    @property
    def unit_name(self) -> str:
        """The unit in words."""
        return UNIT_NAMES[self.unit]


class TransferTask(CheckedTask):
    """An asynchronous transfer: it runs whenever it likes between its start and its owner's ``quiet`` or barrier."""

    __slots__ = ("loops", "owner")

    def __init__(self, owner: CheckedTask, function: Callable[[], Any], origin: Site | None, loops: Loops) -> None:
        super().__init__(owner.machine, owner.core, owner.unit, function)
        assert owner.body.parent is not None  # the scheduler's greenlet
        self.body.parent = owner.body.parent
        self.owner = owner
        self.origin = origin
        self.loops = loops
        self.passed = owner.passed
        self.synchronised = dict(owner.synchronised)

    @property
    def unit_name(self) -> str:
        """The unit in words."""
        return f"a transfer of {UNIT_NAMES[self.unit]}"


@dataclass(slots=True)
class Access:
    """Access ``number`` of a run. ``synchronised`` are the barriers that its task had passed, by scope."""

    number: int
    kind: str
    task: CheckedTask
    site: Site | None
    loops: Loops
    passed: int
    synchronised: dict[str, tuple[int, str]]

    def place(self) -> Place:
        """As reports show it."""
        task, site = self.task, self.site or NOWHERE
        return Place(
            self.kind, site.file, site.line, site.function, task.machine.rank, task.core, task.unit_name,
            task.machine.launch, self.loops, self.passed,
        )  # fmt: skip


def place_of(task: CheckedTask, what: str, site: Site | None, loops: Loops = ()) -> Place:
    """The place of something other than an access."""
    return Access(0, what, task, site, loops, task.passed, {}).place()
