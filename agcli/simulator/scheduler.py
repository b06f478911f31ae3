"""Tasks and their scheduler. A task is one cube or vector core; it runs until it waits, as hardware would.

Tasks are greenlets of one thread, so between two waits a task is alone and the order of tasks is always the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import greenlet

from agcli.errors import KernelFault
from agcli.simulator import context
from agcli.simulator.context import Site
from agcli.simulator.machine import Machine

POLL_S = (0.0, 0.0, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3)  # pauses while other processes work; the last one repeats


class Wait:
    """Something a task waits for: ``ready()`` says whether it has come, ``text`` names it for messages."""

    __slots__ = ("ready", "site", "text")

    def __init__(self, ready: Callable[[], bool], text: str) -> None:
        self.ready = ready
        self.text = text
        self.site = context.site()

    def __str__(self) -> str:
        return f"{self.text} at {self.site}" if self.site else self.text


class Task:
    """One core's execution of one launch: ``unit`` is "cube", "vector0" or "vector1".

    ``origin`` is the line of the kernel that a task works for when it runs none itself.
    """

    __slots__ = ("body", "core", "done", "machine", "origin", "unit", "wait")

    def __init__(self, machine: Machine, core: int, unit: str, function: Callable[[], Any]) -> None:
        self.origin: Site | None = None
        self.machine = machine
        self.core = core
        self.unit = unit
        self.wait: Wait | None = None
        self.done = False
        self.body = greenlet.greenlet(function)

    @property
    def label(self) -> str:
        """Who this is, for messages."""
        unit = "cube" if self.unit == "cube" else f"vector {self.unit[-1]}"
        return f"rank {self.machine.rank}, core {self.core}, {unit}"

    def on_store(self) -> None:
        """A tile was stored; the cube's are tiles of the result."""
        if self.unit == "cube":
            self.machine.tile_done()

    def block(self, ready: Callable[[], bool], text: str) -> None:
        """Let other tasks run until ``ready()``."""
        if ready() and self.machine.kept is not None:  # what waits in the scheduler is forgotten there
            self.machine.kept.forget_symmetric()
        while not ready():
            self.wait = Wait(ready, text)
            self.pause()
        self.wait = None

    def pause(self) -> None:
        """Let the scheduler choose who runs."""
        parent = self.body.parent
        assert parent is not None  # the scheduler's own greenlet
        parent.switch()


class Scheduler:
    """Runs tasks of one process to their end.

    ``outside`` are the machines' ways to hear from other processes; a set of waits that nothing can end is a fault that
    says who waits for what.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self.tasks = list(tasks)
        self.machines: list[Machine] = list({id(t.machine): t.machine for t in self.tasks}.values())

    def run(self) -> None:
        """Run all tasks. A fault of one ends all."""
        ready = deque(self.tasks)
        blocked: list[Task] = []
        try:
            while ready or blocked:
                while ready:
                    task = ready.popleft()
                    self._step(task)
                    if task.done:
                        task.machine.task_ended(task)
                    else:
                        blocked.append(task)
                if blocked:
                    woken = self._wake(blocked)
                    ready.extend(task for task in blocked if task in woken)  # in their order, which a set has not
                    blocked = [task for task in blocked if task not in woken]
        finally:
            context.task = None
            self._abandon()

    def _step(self, task: Task) -> None:
        context.task = task
        task.body.switch()
        task.done = task.body.dead

    def _wake(self, blocked: list[Task]) -> set[Task]:
        """Wait until at least one blocked task can go on."""
        context.task = None
        turn = 0
        while True:
            for machine in self.machines:
                machine.poll()
            woken = {task for task in blocked if task.wait is None or task.wait.ready()}
            if woken:
                for machine in self.machines:
                    machine.resumed()
                return woken
            for machine in self.machines:
                reason = machine.stuck(turn)
                if reason:
                    raise KernelFault(self._deadlock(blocked, reason))
            time.sleep(POLL_S[min(turn, len(POLL_S) - 1)])
            turn += 1

    def _deadlock(self, blocked: list[Task], reason: str) -> str:
        return "\n  ".join([f"a wait that can never end: {reason}", *who_waits(blocked)])

    def _abandon(self) -> None:
        abandon(self.tasks)


def who_waits(blocked: Iterable[Task]) -> list[str]:
    """What blocked tasks wait for, a line for each wait with those who are in it."""
    groups: dict[str, list[Task]] = {}
    for task in blocked:
        groups.setdefault(str(task.wait), []).append(task)
    lines = []
    for text, tasks in groups.items():
        names = ", ".join(f"({task.label})" for task in tasks[:4])
        more = f" and {len(tasks) - 4} more" if len(tasks) > 4 else ""
        lines.append(f"waiting for {text}: {names}{more}")
    return lines


def abandon(tasks: Iterable[Task]) -> None:
    """Drop the greenlets of a launch that failed; they must not run again."""
    for task in tasks:
        if not task.body.dead:
            task.body.throw(greenlet.GreenletExit)
