"""Who runs next. Cores of all ranks are tasks of one thread; a schedule decides which goes on when several could.

The detector does not depend on it for barriers and signals with one sender. Where several senders share a word, or a
wait can miss its signal, schedules differ; so some are tried: each is a function of its seed, seed 0 is plain order.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from agcli.check.access import CheckedTask, TransferTask
from agcli.simulator import context
from agcli.simulator.scheduler import abandon

CHANGE = 0.3  # how often a task that gives way gets a new priority


class Stuck(Exception):
    """No task can go on; ``blocked`` are all that have not ended."""

    def __init__(self, blocked: list[CheckedTask]) -> None:
        super().__init__("no task can go on")
        self.blocked = blocked


class Schedule:
    """Runs tasks of all ranks until none is left; ``ended`` may add more.

    With seed 0 tasks run in order, and a transfer as late as it may. With another seed random priorities choose, and
    tasks give way before signals too.
    """

    def __init__(self, seed: int, ended: Callable[[CheckedTask], None], poll: Callable[[], None]) -> None:
        self.preempts = seed > 0
        self._random = random.Random(seed)
        self._ended = ended
        self._poll = poll
        self._ready: list[CheckedTask] = []
        self._blocked: list[CheckedTask] = []
        self._priority: dict[CheckedTask, float] = {}
        self._yielded: dict[CheckedTask, int] = {}  # numbered, so that those who give way take turns
        self._yields = 0
        self.running: CheckedTask | None = None  # after an error: who made it

    def add(self, task: CheckedTask) -> None:
        """A new task."""
        self._ready.append(task)

    def yield_turn(self, task: CheckedTask) -> None:
        """The running task lets all others go first."""
        self._yields += 1
        self._yielded[task] = self._yields
        task.pause()

    def run(self) -> None:
        """Run all. Raises Stuck, and whatever a task raises."""
        try:
            while True:
                if self.preempts or not any(self._rank(task) == 0 for task in self._ready):
                    self._wake()
                if not self._ready:
                    if not self._blocked:
                        return
                    raise Stuck(self._blocked)
                self._step(self._next())
        finally:
            context.task = None
            abandon([*self._ready, *self._blocked])

    def _next(self) -> CheckedTask:
        best = max(self._ready, key=self._rank)  # the first of equals
        self._ready.remove(best)
        return best

    def _rank(self, task: CheckedTask) -> float:
        if self.preempts and task in self._yielded:
            return -self._yielded[task]
        if self.preempts:
            return self._priority.setdefault(task, self._random.random())
        return -2 if task in self._yielded else -1 if isinstance(task, TransferTask) else 0

    def _step(self, task: CheckedTask) -> None:
        context.task = self.running = task
        self._yielded.pop(task, None)
        task.body.switch()
        task.done = task.body.dead
        context.task = self.running = None
        if task.done:
            self._priority.pop(task, None)
            self._ended(task)
            return
        if self._random.random() < CHANGE:
            self._priority.pop(task, None)
        self._blocked.append(task)

    def _wake(self) -> None:
        self._poll()
        woken = [task for task in self._blocked if task.wait is None or task.wait.ready()]
        if woken:
            chosen = set(woken)
            self._blocked = [task for task in self._blocked if task not in chosen]
            self._ready += woken
