"""The detector agrees with a brute-force explorer of all interleavings, which knows nothing of clocks."""

import interleavings as small
from hypothesis import example, given, settings
from hypothesis import strategies as st

cells, words = st.integers(0, small.CELLS - 1), st.integers(0, small.WORDS - 1)
accesses = st.tuples(st.sampled_from(["read", "write"]), cells)
waits = st.tuples(st.just("wait"), words, st.just(">="), st.integers(1, 2))
barriers = st.just(("barrier",))
transfers = st.one_of(st.tuples(st.just("put"), cells), st.sampled_from([("quiet",), ("fence",)]))


@st.composite
def growing(draw):
    """Words have one sender each, which counts up; waits are for >=. Here one schedule says all."""
    programs = []
    for rank in range(draw(st.integers(2, 3))):
        sent = 0
        operations = []
        for op in draw(st.lists(st.one_of(accesses, waits, barriers, transfers, st.just("send")), max_size=5)):
            if op == "send":
                sent += 1
                op = ("set", rank, sent) if rank < small.WORDS else ("read", 0)
            operations.append(op)
        programs.append(tuple(operations))
    return programs


signals = st.one_of(
    st.tuples(st.just("set"), words, st.integers(1, 2)),
    st.tuples(st.just("add"), words),
    st.tuples(st.just("wait"), words, st.sampled_from([">=", "=="]), st.integers(1, 2)),
)
anything = st.lists(
    st.lists(st.one_of(accesses, signals, barriers, transfers), max_size=4).map(tuple), min_size=2, max_size=3
)


@settings(max_examples=400, derandomize=True, deadline=None)
@given(growing())
@example([(("write", 0), ("set", 0, 1), ("write", 0), ("set", 0, 2)), (("wait", 0, ">=", 1), ("read", 0))])
@example([(("write", 0), ("set", 0, 1)), (("wait", 0, ">=", 1), ("set", 1, 1)), (("wait", 1, ">=", 1), ("write", 0))])
def test_one_schedule_says_all_where_words_have_one_sender(program):
    race, deadlock = small.explore(program)
    found = set(small.detect(program, schedules=1))
    if not deadlock:  # a schedule that ends early has not seen all
        assert ("race" in found) == race
    assert ("race" in found) <= race
    assert ("deadlock" in found) == deadlock


@settings(max_examples=400, derandomize=True, deadline=None)
@given(anything)
@example([(("set", 0, 1), ("set", 0, 2)), (("wait", 0, "==", 1),)])
@example([(("write", 0), ("add", 0)), (("add", 0),), (("wait", 0, ">=", 1), ("read", 0))])
def test_some_schedules_find_what_all_interleavings_show(program):
    race, deadlock = small.explore(program)
    found = set(small.detect(program, schedules=40))
    assert ("race" in found) <= race, "a race that no interleaving has"
    assert found & {"deadlock", "lost-signal"} <= ({"deadlock", "lost-signal"} if deadlock else set())
    assert deadlock == bool(found & {"deadlock", "lost-signal"})
    if not deadlock:
        assert ("race" in found) == race
