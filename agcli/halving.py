"""Successive halving: measure many candidates briefly, the better ones again and longer, within a time. Pure.

The search is a generator: it yields what to measure next and is sent the result, so that whoever runs it may be one of
many ranks that all do the same. Candidate 0 is what runs without tuning; it stays to the end, and the winner is another
one only if it is faster than candidate 0 when both are measured in turn.

    search = halving(3, 60.0, time.monotonic)
    step = next(search)              # Step(candidate=0, iterations=10)
    step = search.send(1.7)          # it took 1.7 ms; send None for one that cannot run or is wrong
    ...                              # StopIteration.value is the Outcome
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator
from dataclasses import dataclass, field

FIRST_ITERATIONS = 10
GROWTH = 3  # from round to round: so many times as many iterations, for so many times fewer candidates
FIRST_SHARE = 0.6  # of the time, for the first round
FINAL_SHARE = 0.15  # of the time, for the final
FINAL_ROUNDS = 3  # of it: the best and candidate 0, in turn


@dataclass(frozen=True)
class Step:
    """One measurement to make."""

    candidate: int
    iterations: int


@dataclass
class Outcome:
    """What the search knows: the last time of each candidate in milliseconds, and which ones are still in."""

    ms: dict[int, float] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    survivors: list[int] = field(default_factory=list)

    @property
    def best(self) -> int | None:
        """The fastest candidate that is still in; None before the first measurement."""
        return min(self.survivors, key=self.ms.__getitem__, default=None)


Search = Generator[Step, float | None, Outcome]


def halving(count: int, budget_s: float, clock: Callable[[], float], outcome: Outcome | None = None) -> Search:
    """Search among candidates 0 to ``count - 1`` for ``budget_s`` seconds by ``clock``.

    ``outcome``, if given, is kept up to date meanwhile, for those who have to stop early. The final, of the best and of
    candidate 0, takes place however late it is, with as many iterations as its share of the time allows.
    """
    outcome = Outcome() if outcome is None else outcome
    begin = clock()
    iterations = FIRST_ITERATIONS
    for candidate in range(count):
        if outcome.survivors and clock() - begin > budget_s * FIRST_SHARE:
            break
        yield from _measure(outcome, Step(candidate, iterations))
    final_s = begin + budget_s * (1 - FINAL_SHARE)
    while len(outcome.survivors) > 2 and clock() <= final_s:
        _drop_slow(outcome, len(outcome.survivors) // GROWTH)
        iterations *= GROWTH
        for candidate in list(outcome.survivors):
            if clock() > final_s:
                break
            yield from _measure(outcome, Step(candidate, iterations))
    yield from _final(outcome, iterations * GROWTH, budget_s * FINAL_SHARE)
    return outcome


def _measure(outcome: Outcome, step: Step) -> Generator[Step, float | None, float | None]:
    ms = yield step
    candidate = step.candidate
    if ms is None:
        outcome.refused.add(candidate)
        outcome.ms.pop(candidate, None)
        outcome.survivors = [other for other in outcome.survivors if other != candidate]
    else:
        outcome.ms[candidate] = ms
        if candidate not in outcome.survivors:
            outcome.survivors.append(candidate)
    return ms


def _drop_slow(outcome: Outcome, count: int) -> None:
    """Keep the ``count`` fastest, at least one, and candidate 0."""
    fastest = sorted(outcome.survivors, key=outcome.ms.__getitem__)[: max(1, count)]
    outcome.survivors = [c for c in outcome.survivors if c in fastest or c == 0]


def _final(outcome: Outcome, iterations: int, share_s: float) -> Generator[Step, float | None, None]:
    """Measure the best and candidate 0 in turn, so that a drift of clocks or temperature meets both; one remains."""
    best = outcome.best
    if best is None:
        return
    if best == 0 or 0 not in outcome.ms:
        outcome.survivors = [best]
        return
    allowed = int(share_s * 1e3 / max(FINAL_ROUNDS * (outcome.ms[0] + outcome.ms[best]), 1e-9))
    iterations = max(FIRST_ITERATIONS, min(iterations, allowed))
    times: dict[int, list[float]] = {0: [], best: []}
    for _ in range(FINAL_ROUNDS):
        for candidate, found in times.items():
            ms = yield from _measure(outcome, Step(candidate, iterations))
            if ms is not None:
                found.append(ms)
    for candidate, found in times.items():
        if candidate not in outcome.refused:
            outcome.ms[candidate] = statistics.median(found)
    both = [c for c in (0, best) if c not in outcome.refused]
    outcome.survivors = both[:1] if len(both) < 2 or outcome.ms[0] <= outcome.ms[best] else [best]
