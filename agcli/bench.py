"""What one rank does to time: inputs, implementations, the check of each answer, and times that all ranks agree on.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, gathered A ``[W * M, K]``, C ``[W * M, N]`` on each rank.

Ranks stay in step because everything that decides how often a collective operation is called comes from rank 0: no rank
looks at its own clock for it. Before each timed call the ranks meet, and the time of a call is the slowest rank's.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from agcli import bench_rows
from agcli.agreement import from_first, gather_notes
from agcli.backends import get_backend
from agcli.backends.base import Backend, Engine, EngineOptions
from agcli.bench_hooks import BenchHooks, HostTimer, hooks_of
from agcli.bench_inputs import input_sets, slowest, temperature
from agcli.bench_parts import PARTS, Call, Implementation, InputSet, complaint, of_set, replay
from agcli.bench_plan import BenchPlan
from agcli.bench_rows import ABSENT, FAILED, GRAPH, TIMED, TUNED, Row
from agcli.errors import AgGemmError
from agcli.outcome import rank_names
from agcli.problem import Plan, Problem
from agcli.reference import gather
from agcli.tuned import agreed

if TYPE_CHECKING:
    from agcli.rank import RankContext, Reporter

BLOCK = 5  # calls of one implementation before the next one has its turn
MIN_ITERATIONS, MAX_ITERATIONS = 3, 200
HOST_CALLS = 20  # of the loop that a Python program would write
CHECK_UNITS, CASE_UNITS = 200, 1000  # of progress: what warming up and one whole problem count


def bench_rank(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Worker function of the launcher; ``payload`` is ``BenchPlan.to_json()``."""
    plan = BenchPlan.from_json(payload)
    return run(ctx, plan, get_backend(plan.backend))


def run(ctx: RankContext, plan: BenchPlan, backend: Backend) -> dict[str, Any]:
    """Time all problems of ``plan``; publish this rank's description and, on rank 0, rows as they are done.

    Returns ``{"about", "rows", "launches"}``: rows only on rank 0; ``launches`` counts this rank's calls by problem
    and implementation.
    """
    ctx.phase("start of the backend", waiting=True)
    try:
        backend.start(ctx)
        about = _about(backend, plan)
        ctx.publish({"about": about})
        launches: dict[str, dict[str, int]] = {}
        rows: list[Row] = []
        for text, done, counts in measure(ctx, plan, backend, about["peak_tflops"]):
            launches[text] = counts
            if ctx.rank == 0:
                rows += done
                ctx.publish({"rows": [asdict(row) for row in done]})
        return {"about": about, "rows": [asdict(row) for row in rows], "launches": launches}
    finally:  # after a failure nothing collective: the others may not come
        backend.finish()


def measure(
    ctx: Reporter, plan: BenchPlan, backend: Backend, peak_tflops: float | None = None
) -> Iterator[tuple[str, list[Row], dict[str, int]]]:
    """Time one problem after the other on a backend that is started. Collective.

    Yields the problem's name, its rows, which are the same on every rank, and how often this rank called each
    implementation.
    """
    for index, (problem, name) in enumerate(plan.problems):
        case = _Case(ctx, plan, backend, problem, name, index, peak_tflops)
        rows = case.rows()
        yield f"{problem.m}x{problem.n}x{problem.k} {problem.dtype}", rows, dict(case.launches)


def _about(backend: Backend, plan: BenchPlan) -> dict[str, Any]:
    """What this rank says of itself: description, chip, stated peak (None if unknown or emulated), kind of clock."""
    chip, hooks = backend.chip(plan.soc), hooks_of(backend)
    peak = hooks.peak() or ((chip.peak_tflops, chip.peak_source) if chip else None)
    if plan.emulated or peak is None or peak[0] is None:
        peak = (None, "")
    return {
        "describe": backend.describe(),
        "chip": chip.name if chip else "",
        "peak_tflops": peak[0],
        "peak_source": peak[1],
        "events": hooks.timer() is not None,
    }


class _Case:
    """All implementations on one problem."""

    def __init__(
        self,
        ctx: Reporter,
        plan: BenchPlan,
        backend: Backend,
        problem: Problem,
        name: str,
        index: int,
        peak_tflops: float | None,
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._backend = backend
        self._hooks: BenchHooks = hooks_of(backend)
        self._problem = problem
        self._chip = backend.chip(plan.soc)
        self._peak_tflops = peak_tflops
        self._text = f"{problem.m}x{problem.n}x{problem.k} {problem.dtype}"
        self._row = Row(problem.m, problem.n, problem.k, problem.world, problem.dtype, "", name)
        self._first_unit = index * CASE_UNITS
        self._unit, self._units_per_call = float(self._first_unit), 0.0
        self._meeting = torch.zeros(1, device=backend.device())
        self._rows: dict[str, Row] = {}
        self._engines: list[Engine] = []
        self.launches: Counter[str] = Counter()

    def rows(self) -> list[Row]:
        """A row for each implementation, the same on every rank."""
        implementations = self._implementations()
        self._phase("making inputs")
        self._sets, self._caches = input_sets(self._ctx, self._backend, self._problem, self._plan.seed, self._plan.warm)
        self._turn: Iterator[InputSet] = itertools.cycle(self._sets)
        good = self._checked(implementations)
        if self._plan.graph:
            good += self._captured(good)
        if good:
            self._time(good)
        self._phase("release of symmetric memory")
        for engine in self._engines:
            engine.close()
        return bench_rows.related(list(self._rows.values()))

    # -- what is timed -------------------------------------------------------------------------------------------

    def _implementations(self) -> list[Implementation]:
        """What can run here; a row says so of the rest."""
        found: list[Implementation] = []
        for name in self._plan.implementations:
            if name == "fused":
                self._phase("allocation of symmetric memory")
                for fused, plan in self._plan.fused(self._problem, self._chip).items():
                    if isinstance(plan, Plan):
                        found.append(Implementation(fused, self._fused(plan)))
                    self._set(fused, ABSENT, plan if isinstance(plan, str) else "")
                if self._plan.tuned is not None:
                    found.append(Implementation(TUNED, self._tuned(Path(self._plan.tuned))))
                continue
            note = ""
            if name == "vendor":
                note, product = self._hooks.vendor(self._problem)
                if product is not None:
                    found.append(Implementation(name, of_set(product)))
            else:
                found.append(PARTS[name])
            self._set(name, ABSENT, note)
        return found

    def _tuned(self, store: Path) -> Call:
        """The fused call as ``store`` has it for this problem; the row says which entry that is. Collective."""
        choice, note = agreed(store, self._backend, self._problem, self._chip, None, self._plan.cores)
        self._set(TUNED, ABSENT, note)
        return self._fused(choice.plan(self._problem, self._chip), choice.extra)

    def _fused(self, plan: Plan, extra: Mapping[str, Any] | None = None) -> Call:
        options = EngineOptions(cores=self._plan.cores, on_progress=self._heartbeat, extra=dict(extra or {}))
        engine = self._backend.engine(plan, options)
        self._engines.append(engine)

        def call(s: InputSet) -> torch.Tensor:
            engine.run(s.a, s.b, s.c)
            return s.c

        return call

    # -- is it right ---------------------------------------------------------------------------------------------

    def _checked(self, implementations: Sequence[Implementation]) -> list[Implementation]:
        """Call each once, which also compiles it; those with the right answer on all ranks."""
        self._units_per_call = CHECK_UNITS / max(len(implementations), 1)
        return [impl for impl in implementations if self._first_call(impl, "first call")]

    def _first_call(self, impl: Implementation, when: str) -> bool:
        """Whether a call that starts from results full of NaN gives the right answer. Collective."""
        self._phase(f"{impl.name}, {when}")
        s = self._sets[0]
        _blank(impl, s)
        try:
            answer, refusal = self._run(impl, s), ""
            self._backend.synchronize()
        except RuntimeError as error:
            if impl.name != "vendor" or isinstance(error, AgGemmError):
                raise
            answer, refusal = s.c, _first_line(error)
        if self._agreed_reason(impl.name, f"refused: {refusal}" if refusal else ""):
            return False
        return self._is_right(impl, s, answer, when)

    def _agreed_reason(self, impl: str, reason: str) -> bool:
        """Whether any rank has a reason why ``impl`` cannot run here; the first becomes the row's. Collective."""
        reasons = [text for text in gather_notes(reason, None) if text]
        if reasons:
            self._set(impl, ABSENT, reasons[0])
        return bool(reasons)

    def _is_right(self, impl: Implementation, s: InputSet, answer: torch.Tensor, when: str) -> bool:
        """Compare on every rank; a wrong answer on any turns the row into FAIL. Collective.

        Leaves in ``s.gathered`` what belongs there, whatever ``impl`` did to it.
        """
        self._backend.synchronize()
        self._phase(f"{impl.name}, comparison of the {when}")
        want = gather(s.a)
        if impl.gathers:
            note = "" if torch.equal(answer, want) else "the gathered A differs"
        else:
            note = complaint(self._problem, want, s.b, answer)
        notes = gather_notes(note, None)
        wrong = [rank for rank, text in enumerate(notes) if text]
        if wrong:
            self._set(impl.name, FAILED, f"{when}: {rank_names(wrong)} wrong; {notes[wrong[0]]}")
        s.gathered.copy_(want)
        return not wrong

    # -- graphs --------------------------------------------------------------------------------------------------

    def _captured(self, good: Sequence[Implementation]) -> list[Implementation]:
        """Each implementation again, as graphs that are replayed: one for each set of inputs."""
        found = []
        for impl in good:
            name = impl.name + GRAPH
            self._phase(f"{impl.name}, capture")
            graphs: dict[int, Callable[[], torch.Tensor]] = {}
            note = ""
            try:
                for s in self._sets:
                    graphs[id(s)] = self._hooks.capture(functools.partial(impl.call, s))
            except RuntimeError as e:
                note = f"cannot be captured: {_first_line(e)}"
            self._set(name, ABSENT, "")
            replayed = Implementation(name, replay(graphs), impl.gathers)
            if not self._agreed_reason(name, note) and self._first_call(replayed, "first replay"):
                found.append(replayed)
        return found

    # -- how long it takes ---------------------------------------------------------------------------------------

    def _time(self, good: Sequence[Implementation]) -> None:
        iterations = self._warm_up(good)
        self._phase(f"{iterations} timed iterations")
        host_calls = min(HOST_CALLS, iterations) if self._plan.host else 0
        self._units_per_call = (self._first_unit + CASE_UNITS - self._unit) / ((iterations + host_calls) * len(good))
        times = self._rounds(good, iterations)
        if host_calls:
            times = [[*own, self._host_ms(impl, host_calls)] for impl, own in zip(good, times, strict=True)]
        for impl, ms in zip(good, slowest(times), strict=True):
            row = self._rows[impl.name]
            if row.check != FAILED:
                row = replace(row, check=TIMED, caches=self._caches_of(impl), input_sets=len(self._sets))
                host_ms = ms.pop() if host_calls else None
                self._rows[impl.name] = bench_rows.timed(row, ms, host_ms, self._peak_tflops)

    def _caches_of(self, impl: Implementation) -> str:
        """How caches are for ``impl``: the all-gather alone touches the least of a set, A and the gathered A."""
        if not impl.gathers or self._caches != "cold":
            return self._caches
        p = self._problem
        return temperature(len(self._sets), p.itemsize * (p.m + p.world * p.m) * p.k, self._hooks.cache_bytes())

    def _warm_up(self, good: Sequence[Implementation]) -> int:
        """Warm up, and decide on rank 0 how many iterations the budget allows."""
        estimate_s = 0.0
        for impl in good:
            self._phase(f"{impl.name}, warm-up")
            self._units_per_call = CHECK_UNITS / len(good) / (self._plan.warmup + 2)
            for _ in range(self._plan.warmup):
                self._run(impl, next(self._turn))
            self._backend.synchronize()
            begin = time.perf_counter()
            for _ in range(2):
                self._run(impl, next(self._turn))
            self._backend.synchronize()
            estimate_s += (time.perf_counter() - begin) / 2
        if self._plan.iterations:
            return self._plan.iterations
        own = max(MIN_ITERATIONS, min(MAX_ITERATIONS, int(self._plan.budget_s / max(estimate_s, 1e-9))))
        return int(from_first(str(own), None))

    def _rounds(self, good: Sequence[Implementation], iterations: int) -> list[list[float]]:
        """Milliseconds of each call on this rank, by implementation.

        Implementations take turns of ``BLOCK`` calls, in alternating order, so that a drift of clocks or temperature
        hits all alike. The last answer of each is checked again, from results full of NaN: calls in a row may do what a
        single one does not, and the set may hold the right answer of another implementation.
        """
        timers = [self._hooks.timer() or HostTimer(self._backend.synchronize) for _ in good]
        for first in range(0, iterations, BLOCK):
            order = list(zip(good, timers, strict=True))
            for impl, timer in order if first // BLOCK % 2 == 0 else reversed(order):
                for call in range(first, min(first + BLOCK, iterations)):
                    s = next(self._turn)
                    if call == iterations - 1:
                        _blank(impl, s)
                    dist.all_reduce(self._meeting)
                    timer.start()
                    answer = self._run(impl, s)
                    timer.stop()
                if first + BLOCK >= iterations:
                    self._is_right(impl, s, answer, "last timed call")
        return [timer.ms() for timer in timers]

    def _host_ms(self, impl: Implementation, calls: int) -> float:
        """Milliseconds a call of a plain loop, waited for at its end: what a Python program sees on this rank."""
        dist.all_reduce(self._meeting)
        self._backend.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            self._run(impl, next(self._turn))
        self._backend.synchronize()
        return (time.perf_counter() - begin) * 1e3 / calls

    def _run(self, impl: Implementation, s: InputSet) -> torch.Tensor:
        self.launches[impl.name] += 1
        answer = impl.call(s)
        self._unit += self._units_per_call
        self._progress(self._unit)
        return answer

    def _set(self, impl: str, check: str, note: str) -> None:
        self._rows[impl] = replace(self._row, impl=impl, check=check, note=note)

    # -- progress ------------------------------------------------------------------------------------------------

    def _phase(self, text: str) -> None:
        self._ctx.phase(f"{self._text}: {text}", waiting=True)

    def _heartbeat(self, done: int, total: int) -> None:
        """Progress within a call, from platforms that can tell."""
        self._progress(self._unit + self._units_per_call * done / max(total, 1))

    def _progress(self, unit: float) -> None:
        self._ctx.progress(int(unit), len(self._plan.problems) * CASE_UNITS)


def _blank(impl: Implementation, s: InputSet) -> None:
    """Fill with NaN what ``impl`` is to make."""
    s.c.fill_(float("nan"))
    if impl.gathers or impl.name.startswith("torch"):
        s.gathered.fill_(float("nan"))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
