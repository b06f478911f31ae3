"""The history of every signal word: which signal a wait is guaranteed to come after, whatever the timing.

A wait that ended now could have ended as soon as its condition held. So it acquires from the earliest signal that
satisfies it, among those it cannot already know to be overwritten, and not from whatever the word holds when this
schedule happens to look. ``add`` continues what it adds to: who sees the sum comes after all that are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agcli.check.access import Access
from agcli.check.clocks import Clock, Clocks, joined
from agcli.check.findings import Finding
from agcli.simulator.memory import Buffer

Holds = Callable[[int], bool]
SET, ADD, STORE = "set", "add", "store"


@dataclass(slots=True)
class Entry:
    """A change of a word. ``release`` is what a wait that sees it comes after, ``sender`` what its sender knew."""

    access: Access | None  # None: a change by the host, or by a store that is not watched
    operation: str
    release: Clock
    sender: Clock
    value: int | None = None  # known when the change has been made

    def after(self, wait: Access) -> bool:
        """Whether this change comes after a wait, in every schedule; the host is trusted to know when it writes."""
        if self.access is None:
            return True
        actor = wait.task.actor
        if self.access.task.actor == actor:
            return self.access.number > wait.number
        return actor < len(self.sender) and self.sender[actor] >= wait.number


@dataclass(slots=True)
class Waited:
    """A wait that has ended: it acquired from ``history[entry]``."""

    access: Access
    entry: int
    condition: str
    holds: Holds


class Word:
    """One signal word."""

    def __init__(self, buffer: Buffer, offset: int) -> None:
        self.buffer = buffer
        self.offset = offset
        self.history = [Entry(None, SET, [], [])]
        self.waits: list[Waited] = []

    @property
    def name(self) -> str:
        """The word in words."""
        return f"{self.buffer.describe(self.offset)} of rank {self.buffer.rank}"

    def settle(self) -> None:
        """Note the value that the last change has left, or a change that was not watched."""
        last, value = self.history[-1], int(self.buffer.flat[self.offset])
        if last.value is None:
            last.value = value
        elif last.value != value:
            self.history.append(Entry(None, STORE, [], [], value))

    def value(self, entry: int) -> int:
        """The word's value after an entry."""
        value = self.history[entry].value
        assert value is not None
        return value


class Signals:
    """All signal words of a run."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._words: dict[tuple[int, int], Word] = {}

    def __bool__(self) -> bool:
        return any(word.waits for word in self._words.values())

    def change(self, buffer: Buffer, offset: int, access: Access, operation: str, release: Clock) -> None:
        """A word is about to change; ``release`` is empty for a plain store, which orders nothing."""
        word = self._word(buffer, offset)
        word.settle()
        carried = joined(word.history[-1].release, release) if operation == ADD else release
        sender = self._clocks.published(access.task.actor)
        word.history.append(Entry(access, operation, carried, sender))

    def acquire(self, buffer: Buffer, offset: int, access: Access, holds: Holds, condition: str) -> Entry:
        """A wait has ended; returns the change that it comes after."""
        word = self._word(buffer, offset)
        word.settle()
        first = next(i for i in range(len(word.history) - 1, -1, -1) if self._known(word.history[i], access))
        entry = next(i for i in range(first, len(word.history)) if holds(word.value(i)))
        word.waits.append(Waited(access, entry, condition, holds))
        return word.history[entry]

    def tracks(self, buffer: Buffer) -> bool:
        """Whether a buffer can hold signal words."""
        return buffer.symmetric and not buffer.dtype.is_float and buffer.dtype.itemsize >= 4

    def findings(self) -> Iterator[Finding]:
        """Signals that may be lost, and old signals that satisfy new waits."""
        for word in self._words.values():
            word.settle()
            for i, waited in enumerate(word.waits):
                yield from _lost(word, waited)
                yield from _reused(word, waited, word.waits[:i])

    def _known(self, entry: Entry, access: Access) -> bool:
        if entry.access is None:
            return True
        return self._clocks.ordered(entry.access.number, entry.access.task.actor, access.task.actor)

    def _word(self, buffer: Buffer, offset: int) -> Word:
        key = (id(buffer), offset)
        if key not in self._words:
            self._words[key] = Word(buffer, offset)
        return self._words[key]


def _lost(word: Word, waited: Waited) -> Iterator[Finding]:
    """A later value that does not satisfy the wait can come before the wait has looked, and no other value follows."""
    later = range(waited.entry + 1, len(word.history))
    early = [i for i in later if not word.history[i].after(waited.access)]
    spoils = [i for i in early if not waited.holds(word.value(i))]
    if not spoils or any(waited.holds(word.value(i)) for i in early if i > spoils[0]):
        return
    change = word.history[spoils[0]].access
    assert change is not None
    yield Finding(
        "lost-signal",
        f"{word.name} can change from {word.value(waited.entry)} to {word.value(spoils[0])} before the wait for "
        f"{waited.condition} has looked at it: that wait then never ends",
        (waited.access.place(), change.place()),
        why="the sender does not wait until the signal before has been seen; wait for >= with growing values, or let "
        "the receiver acknowledge",
    )


def _reused(word: Word, waited: Waited, earlier: list[Waited]) -> Iterator[Finding]:
    """The same task has consumed this signal before, and its sender then sends the very same value again."""
    actor = waited.access.task.actor
    before = [w for w in earlier if w.access.task.actor == actor and w.entry == waited.entry]
    signal = word.history[waited.entry].access
    if not before or signal is None:
        return
    for i in range(waited.entry + 1, len(word.history)):
        entry = word.history[i]
        if word.value(i) != word.value(waited.entry) or entry.after(waited.access):
            return
        if entry.access is not None and entry.access.task.actor == signal.task.actor and entry.operation == SET:
            yield Finding(
                "signal-reuse",
                f"{word.name}: the wait for {waited.condition} can end with the signal that an earlier wait consumed, "
                f"since the next signal sets the same value {word.value(i)}",
                (waited.access.place(), before[-1].access.place(), entry.access.place()),
                why="a word that already has the value says nothing about the new signal; send a new value each time, "
                "or reset the word",
            )
            return
