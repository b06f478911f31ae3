"""Vector clocks. Time is the number of the last access: every access of a run has one, counted from 1.

Component ``[a]`` of an actor's clock is the last access of actor ``a`` that is known to have happened before. An actor
is a core's unit of a rank (over all launches, which are in order) or one asynchronous transfer.
"""

from __future__ import annotations

Clock = list[int]


def joined(a: Clock, b: Clock) -> Clock:
    """What is known by either; a missing component is 0."""
    if len(a) < len(b):
        a, b = b, a
    return [*map(max, a, b), *a[len(b) :]]


class Clocks:
    """The clocks of all actors of a run."""

    def __init__(self) -> None:
        self.now = 0
        self._of: list[Clock] = []

    def add(self) -> int:
        """A new actor, which knows of nothing; returns its index."""
        for clock in self._of:
            clock.append(0)
        self._of.append([0] * (len(self._of) + 1))
        return len(self._of) - 1

    def tick(self) -> int:
        """The number of the next access."""
        self.now += 1
        return self.now

    def of(self, actor: int) -> Clock:
        """An actor's clock (not its own component, since all it did it did before)."""
        return self._of[actor]

    def published(self, actor: int) -> Clock:
        """All that happened before a release by this actor now, its own accesses included."""
        clock = list(self._of[actor])
        clock[actor] = self.now
        return clock

    def learn(self, actor: int, clock: Clock) -> None:
        """An acquire: the actor now comes after all in ``clock``."""
        self._of[actor] = joined(self._of[actor], clock)

    def ordered(self, access: int, by: int, actor: int) -> bool:
        """Whether access number ``access`` of actor ``by`` happened before what ``actor`` does now."""
        return by == actor or self._of[actor][by] >= access

    def joined_with(self, clock: Clock, actor: int) -> Clock:
        """``clock`` and all that an actor has done."""
        return joined(clock, self.published(actor))
