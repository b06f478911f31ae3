"""What one rank does to tune: measure candidates, all ranks the same one at a time, each only while it is right.

Rank 0 alone searches (``halving``) and looks at the clock; it tells the others the next step, so that every rank makes
the same collective calls.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from agcli.agreement import from_first, gather_notes
from agcli.backends import get_backend
from agcli.backends.base import Backend, Engine, EngineOptions
from agcli.bench_hooks import HostTimer, hooks_of
from agcli.bench_inputs import input_sets, slowest
from agcli.bench_parts import InputSet, complaint
from agcli.bench_rows import quantile
from agcli.halving import Outcome, Search, Step, halving
from agcli.outcome import rank_names
from agcli.problem import Problem
from agcli.reference import gather
from agcli.tune_plan import TunePlan
from agcli.tuned import Choice, Entry

if TYPE_CHECKING:
    from agcli.chips import Chip
    from agcli.rank import RankContext

WARMUP = 3  # calls of a candidate between the one that is checked and those that are timed
UNITS = 100  # of progress: what one problem counts
SEED = 0  # of the inputs


def tune_rank(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Worker function of the launcher; ``payload`` is ``TunePlan.to_json()``."""
    plan = TunePlan.from_json(payload)
    return run(ctx, plan, get_backend(plan.backend))


def run(ctx: RankContext, plan: TunePlan, backend: Backend) -> dict[str, Any]:
    """Tune all problems of ``plan``: ``{"describe", "results", "steps"}``.

    Rank 0 publishes ``{"index", "result"}`` after each step that changes what is best, so that nothing is lost when the
    run is stopped. ``steps`` are the candidates that this rank ran, by problem.
    """
    ctx.phase("start of the backend", waiting=True)
    try:
        backend.start(ctx)
        chip = backend.chip(plan.soc)
        results, steps = [], []
        begin = time.monotonic()
        for index in range(len(plan.tasks)):
            share_s = (plan.budget_s - (time.monotonic() - begin)) / (len(plan.tasks) - index)
            tuning = _Tuning(ctx, plan, backend, chip, index, share_s)
            results.append(tuning.run())
            steps.append(tuning.steps)
        return {"describe": backend.describe(), "results": results, "steps": steps}
    finally:  # after a failure nothing collective: the others may not come
        backend.finish()


class _Tuning:
    """The search for one problem on one rank."""

    def __init__(
        self, ctx: RankContext, plan: TunePlan, backend: Backend, chip: Chip | None, index: int, budget_s: float
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._backend = backend
        self._chip = chip
        self._index = index
        self._task = plan.tasks[index]
        self._budget_s = budget_s
        self._outcome = Outcome()
        self._notes: dict[int, str] = {}
        self._published: dict[str, Any] | None = None
        self.steps: list[int] = []

    def run(self) -> dict[str, Any]:
        """Search to the end; the result, which only rank 0's is complete of."""
        problem = self._task.problem
        text = f"{problem.m}x{problem.n}x{problem.k} {problem.dtype}"
        self._ctx.phase(f"{text}: inputs", waiting=True)
        sets, _ = input_sets(self._ctx, self._backend, problem, SEED)
        trial = Trial(self._ctx, self._backend, problem, self._chip, sets)
        begin = time.monotonic()
        search = halving(len(self._task.space), self._budget_s, time.monotonic, self._outcome)
        step = self._next(search, None)
        while step is not None:
            self.steps.append(step.candidate)
            self._ctx.phase(f"{text}: candidate {step.candidate}, {step.iterations} calls", waiting=True)
            ms, note = trial.measure(self._task.space[step.candidate], step.iterations)
            if note:
                self._notes[step.candidate] = note
            done = min(1.0, (time.monotonic() - begin) / max(self._budget_s, 1e-9))
            self._ctx.progress(int((self._index + done) * UNITS), len(self._plan.tasks) * UNITS)
            step = self._next(search, ms)
        return self.result()

    def _next(self, search: Search, ms: float | None) -> Step | None:
        """The step after one that took ``ms``, by rank 0's search, on every rank; None at its end. Collective."""
        said = "null"
        if self._ctx.rank == 0:
            with contextlib.suppress(StopIteration):
                said = json.dumps(asdict(search.send(ms)))
            self._publish()
        step = json.loads(from_first(said, None))
        return Step(**step) if step else None

    def _publish(self) -> None:
        result = self.result()
        if result["entry"] is not None and result["entry"] != (self._published or {}).get("entry"):
            self._published = result
            self._ctx.publish({"index": self._index, "result": result})

    def result(self) -> dict[str, Any]:
        """What is known now: the best entry (None before the first), how many were measured, why some were refused."""
        best, ms = self._outcome.best, self._outcome.ms
        return {
            "entry": self._entry(best, ms[best], ms.get(0, ms[best])) if best is not None else None,
            "measured": len(ms),
            "refused": len(self._outcome.refused) + self._task.refused,
            "left": len(self._task.space) - len(ms) - len(self._outcome.refused),
            "notes": sorted(set(self._notes.values())),
        }

    def _entry(self, candidate: int, median_ms: float, default_ms: float) -> dict[str, Any]:
        p = self._task.problem
        name = self._chip.name if self._chip is not None else self._backend.describe()["device"]
        date = datetime.now(timezone.utc).date().isoformat()
        choice = self._task.space[candidate]
        entry = Entry(
            self._backend.name, name, p.world, p.dtype, p.m, p.n, p.k, choice, median_ms, default_ms, date=date
        )
        return entry.to_json()


class Trial:
    """Measures one candidate after the other on the same inputs. All ranks make the same calls."""

    def __init__(
        self, ctx: RankContext, backend: Backend, problem: Problem, chip: Chip | None, sets: list[InputSet]
    ) -> None:
        self._ctx = ctx
        self._backend = backend
        self._problem = problem
        self._chip = chip
        self._sets = sets
        self._turn: Iterator[InputSet] = itertools.cycle(sets)
        self._meeting = torch.zeros(1, device=backend.device())

    def measure(self, choice: Choice, iterations: int) -> tuple[float | None, str]:
        """The median of ``iterations`` calls in milliseconds, of the slowest rank of each call.

        None, and why, if the candidate cannot run here or a rank's answer was wrong, alone or after many calls in a
        row. Collective.
        """
        engine, note = self._made(choice)
        if engine is None:
            return None, note
        ms = 0.0
        note = note or self._checked(engine, self._sets[0], "first call")
        if not note:
            ms = self._timed(engine, iterations)
            note = self._checked(engine, next(self._turn), "last call")
        engine.close()  # collective, so not after an exception: the others may not come
        return (None, note) if note else (ms, "")

    def _made(self, choice: Choice) -> tuple[Engine | None, str]:
        """An engine that has run once, which compiles it; else why not. What one rank meets counts for all."""
        engine, note = None, ""
        try:
            plan = choice.plan(self._problem, self._chip)
            engine = self._backend.engine(plan, EngineOptions(extra=dict(choice.extra)))
            s = self._sets[0]
            engine.run(s.a, s.b, s.c)
            self._backend.synchronize()
        except Exception as error:  # of the compiler and the platform's libraries, which have many kinds
            note = str(error).strip().partition("\n")[0] or type(error).__name__
        reasons = [text for text in gather_notes(note, None) if text]
        return engine, f"cannot run: {reasons[0]}" if reasons else ""

    def _checked(self, engine: Engine, s: InputSet, when: str) -> str:
        """What is wrong with an answer on any rank, starting from a C full of NaN; "" if nothing is. Collective."""
        s.c.fill_(float("nan"))
        engine.run(s.a, s.b, s.c)
        self._backend.synchronize()
        notes = gather_notes(complaint(self._problem, gather(s.a), s.b, s.c), None)
        wrong = [rank for rank, text in enumerate(notes) if text]
        return f"{when}: {rank_names(wrong)} wrong; {notes[wrong[0]]}" if wrong else ""

    def _timed(self, engine: Engine, iterations: int) -> float:
        timer = hooks_of(self._backend).timer() or HostTimer(self._backend.synchronize)
        for call in range(WARMUP + iterations):
            s = next(self._turn)
            dist.all_reduce(self._meeting)
            if call >= WARMUP:
                timer.start()
            engine.run(s.a, s.b, s.c)
            if call >= WARMUP:
                timer.stop()
        return quantile(slowest([timer.ms()])[0], 0.5)
