"""The search: what it measures when, who wins, and that time and faults end it well. Pure; times are made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli.halving import FINAL_ROUNDS, FIRST_ITERATIONS, GROWTH, Outcome, Step, halving


class Bench:
    """Candidates with given times in milliseconds, None for one that cannot run, and a clock that they move."""

    def __init__(self, times: list[float | None], step_s: float = 1.0) -> None:
        self.times = times
        self.step_s = step_s
        self.now_s = 0.0
        self.steps: list[Step] = []

    def search(self, budget_s: float, measure: Callable[[Step], float | None] | None = None) -> Outcome:
        search = halving(len(self.times), budget_s, lambda: self.now_s)
        ms: float | None = None
        while True:
            try:
                step = search.send(ms)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            self.steps.append(step)
            self.now_s += self.step_s
            ms = measure(step) if measure else self.times[step.candidate]


def test_better_ones_are_measured_again_and_longer() -> None:
    bench = Bench([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0])
    assert bench.search(1000).best == 8
    first = [step.candidate for step in bench.steps if step.iterations == FIRST_ITERATIONS]
    again = [step.candidate for step in bench.steps if step.iterations == FIRST_ITERATIONS * GROWTH]
    assert first == list(range(9))
    assert again == [0, 6, 7, 8]
    assert [s.candidate for s in bench.steps[-2 * FINAL_ROUNDS :]] == [0, 8] * FINAL_ROUNDS


@given(
    times=st.lists(st.floats(0.01, 100), min_size=1, max_size=40),
    budget_s=st.floats(0.1, 200),
)
def test_the_winner_is_the_fastest_that_was_tried(times: list[float], budget_s: float) -> None:
    bench = Bench(list(times))
    best = bench.search(budget_s).best
    tried = {step.candidate for step in bench.steps}
    assert best is not None
    assert times[best] == min(times[c] for c in tried)
    assert 0 in tried
    assert bench.now_s <= budget_s + 1 + 2 * FINAL_ROUNDS  # the step under way and the final


def test_the_final_has_as_many_iterations_as_its_time_allows() -> None:
    def final(budget_s: float) -> int:
        bench = Bench([300.0, 100.0], step_s=0.0)
        bench.search(budget_s)
        return bench.steps[-1].iterations

    assert final(1000) == FIRST_ITERATIONS * GROWTH
    assert final(160) == 20  # 0.15 of 160 s for three rounds of 0.4 s a call of both
    assert final(1) == FIRST_ITERATIONS


def test_at_least_one_is_measured_however_short_the_time() -> None:
    assert Bench([5.0, 4.0]).search(1e-9).best == 0


def test_those_that_cannot_run_are_left_out() -> None:
    outcome = Bench([5.0, None, 4.0, None]).search(1000)
    assert (outcome.best, outcome.refused) == (2, {1, 3})
    outcome = Bench([None, None]).search(1000)
    assert (outcome.best, outcome.refused) == (None, {0, 1})


def test_when_the_defaults_cannot_run_the_best_of_the_others_wins() -> None:
    assert Bench([None, 3.0, 2.0]).search(1000).best == 2


def test_one_that_turns_out_wrong_in_the_end_loses() -> None:
    bench = Bench([2.0, 1.0])
    outcome = bench.search(
        1000, lambda step: None if step.candidate == 1 and len(bench.steps) > 3 else bench.times[step.candidate]
    )
    assert (outcome.best, outcome.refused) == (0, {1})


def test_a_flattering_first_measurement_does_not_win() -> None:
    bench = Bench([2.0, 1.0])
    outcome = bench.search(
        1000, lambda s: 3.0 if s.candidate == 1 and s.iterations > FIRST_ITERATIONS else bench.times[s.candidate]
    )
    assert outcome.best == 0


def test_what_is_best_is_known_at_any_time() -> None:
    outcome = Outcome()
    search = halving(3, 1000, lambda: 0.0, outcome)
    assert outcome.best is None
    next(search)
    search.send(2.0)
    assert outcome.best == 0
    search.send(1.0)
    assert outcome.best == 1


@pytest.mark.parametrize("count", [1, 2])
def test_few_candidates(count: int) -> None:
    assert Bench([2.0, 1.0][:count]).search(1000).best == count - 1
