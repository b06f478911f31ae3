"""The parent's side of ``tune``: what to try for which problems, and what is kept of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO, cast

from agcli import __version__, outputs, stops, tuned
from agcli.bench_report import number
from agcli.bench_run import Wanted
from agcli.chips import Chip
from agcli.errors import AgGemmError, EnvironmentFault, UsageError
from agcli.outcome import Job
from agcli.outputs import reserved_stdout
from agcli.problem import Problem
from agcli.progress import progress_bar
from agcli.request import Machine, report_failure, run_ranks
from agcli.screen import Column, render_fields, render_table
from agcli.tune_plan import Task, TunePlan
from agcli.tune_space import Tunable
from agcli.tuned import Choice, Entry

RANK_TARGET = "agcli.tune:tune_rank"
SCHEMA = "ag-gemm-tune/1"
COLUMNS = (
    Column("shape"),
    Column("dtype"),
    Column("default ms", numeric=True),
    Column("best ms", numeric=True),
    Column("gain", numeric=True),
    Column("tried", numeric=True),
    Column("refused", numeric=True),
    Column("not tried", numeric=True),
    Column("best"),
)


def check_measures(machine: Machine) -> None:
    """Refuse a platform whose times mean nothing, or that has nothing to tune. Raises UsageError."""
    if machine.simulated:
        raise UsageError(
            "tuning an emulation means nothing: the times of simulated cores are those of this host's CPU, and what is "
            "fast here says nothing about a chip; tune where the NPUs or GPUs are (--backend npu, --backend cuda)"
        )
    if not hasattr(machine.backend, "tuning_space"):
        raise UsageError(f"backend {machine.backend.name} has nothing to tune")


def make_plan(machine: Machine, wanted: Wanted, budget_s: float, soc: str | None) -> TunePlan:
    """What the ranks must agree on. Raises UsageError for what this platform cannot do."""
    chip = machine.backend.chip(soc)
    platform = cast(Tunable, machine.backend)
    problems = [
        Problem(shape.m, shape.n, shape.k, machine.world, dtype)
        for dtype in wanted.dtypes
        for shape in wanted.shapes(machine.world, emulated=False)
    ]
    spaces = [platform.tuning_space(problem, chip) for problem in problems]
    TunePlan(machine.backend.name, (), budget_s, soc)  # refuses a wrong time before the compiler takes its own
    compiles = _compiler(problems, spaces, chip)
    tasks = []
    for problem, space in zip(problems, spaces):
        kept = tuple(choice for i, choice in enumerate(space) if i == 0 or compiles(problem, choice))
        tasks.append(Task(problem, kept, len(space) - len(kept)))
    return TunePlan(machine.backend.name, tuple(tasks), budget_s, soc)


def _compiler(
    problems: Sequence[Problem], spaces: Sequence[Sequence[Choice]], chip: Chip | None
) -> Callable[[Problem, Choice], bool]:
    """Whether the vendor's compiler takes a candidate: all are compiled here if it is installed, else all are taken.

    Candidates that differ only in what is no compile-time constant, such as sizes and slots, are compiled once.
    """
    from agcli.toolchain import find_toolchain

    toolchain = find_toolchain() if chip is not None else None
    if toolchain is None or chip is None:
        return lambda problem, choice: True
    from agcli.compiler.compile import CompileRequest
    from agcli.compiler.sweep import sweep

    def request(problem: Problem, choice: Choice) -> tuple[str, CompileRequest]:
        asked = CompileRequest(chip, choice.plan(problem, chip).config, problem.dtype)
        return json.dumps([problem.dtype, asked.constants()]), asked

    distinct = dict(request(problem, choice) for problem, space in zip(problems, spaces) for choice in space)
    try:
        with progress_bar("candidates compiled") as on_progress:
            rows = sweep(list(distinct.values()), toolchain, on_progress)
    except EnvironmentFault as error:
        print(f"ag-gemm: warning: candidates are not compiled beforehand: {error}", file=sys.stderr)
        return lambda problem, choice: True
    fits = {key: row.report.fits for key, row in zip(distinct, rows)}
    return lambda problem, choice: fits[request(problem, choice)[0]]


class Collector:
    """The best so far of each problem, so that a run that is stopped has not been in vain."""

    def __init__(self, plan: TunePlan) -> None:
        self._plan = plan
        self._results: dict[int, Mapping[str, Any]] = {}

    def on_data(self, rank: int, data: Mapping[str, Any]) -> None:
        """Take in what rank 0 publishes."""
        self._results[data["index"]] = data["result"]

    def on_values(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take in the ranks' results; only rank 0's are complete."""
        self._results = dict(enumerate(values[0]["results"]))

    @property
    def entries(self) -> list[Entry]:
        """What goes to the file: each problem's best."""
        return [Entry.from_json(r["entry"]) for r in self._results.values() if r["entry"] is not None]

    @property
    def hopeless(self) -> list[Problem]:
        """Those for which there is no best."""
        return [self._plan.tasks[i].problem for i, result in sorted(self._results.items()) if result["entry"] is None]

    def print(self, store: Path | None, stream: TextIO) -> None:
        """A row per problem, why candidates were refused, and where the best ones are, if they are stored."""
        rows = [_cells(self._plan.tasks[index].problem, result) for index, result in sorted(self._results.items())]
        render_table(COLUMNS, rows, stream=stream)
        notes = dict.fromkeys(note for result in self._results.values() for note in result["notes"])
        render_fields([("refused", note) for note in notes], stream)
        if store is not None:
            render_fields([("stored", f"{len(self.entries)} in {store}; used with --tuned")], stream)

    def to_json(self, store: Path, complete: bool) -> str:
        """The same as a JSON document."""
        data = {
            "schema": SCHEMA,
            "tool": {"name": "ag-gemm", "version": __version__},
            "backend": self._plan.backend,
            "budget_s": self._plan.budget_s,
            "complete": complete,
            "store": str(store),
            "results": [self._results[index] for index in sorted(self._results)],
        }
        return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _cells(problem: Problem, result: Mapping[str, Any]) -> list[str]:
    counts = [str(result[name]) for name in ("measured", "refused", "left")]
    shape = [f"{problem.m}x{problem.n}x{problem.k}", problem.dtype]
    if result["entry"] is None:
        return [*shape, "-", "-", "-", *counts, "nothing could run"]
    entry = Entry.from_json(result["entry"])
    gain = f"{entry.default_ms / entry.median_ms:.2f}x"
    return [*shape, number(entry.default_ms), number(entry.median_ms), gain, *counts, entry.choice.text]


def run(machine: Machine, plan: TunePlan, store: Path, json_path: Path | None, timeout_s: float, debug: bool) -> int:
    """Run all ranks, keep and print the best of each problem, and return the exit status.

    When the run fails or is stopped, what was best so far is kept all the same; a stop goes on as KeyboardInterrupt.
    """
    collector = Collector(plan)
    with stops.until_delivered(), reserved_stdout() as stdout:
        try:
            with progress_bar("per cent of all ranks' time") as on_progress:
                job = Job(RANK_TARGET, plan.to_json())
                ranks = run_ranks(machine, job, timeout_s, on_progress, collector.on_data)
        except KeyboardInterrupt:
            if machine.job is None or machine.job.rank == 0:
                _keep(collector, store, json_path, stdout, complete=False)
            raise
        error = report_failure(ranks, timeout_s, debug)
        if error is None:
            collector.on_values([result.value for result in ranks.results])
        if ranks.speaks:
            _keep(collector, store, json_path, stdout, complete=error is None)
            if error is None and collector.hopeless:
                problems = ", ".join(f"{p.m}x{p.n}x{p.k} {p.dtype}" for p in collector.hopeless)
                print(f"ag-gemm: error: nothing ran and was right for {problems}; the report says why", file=sys.stderr)
    if error is None and not collector.hopeless:
        return ranks.leave(0)
    return ranks.leave(error.exit_status if error is not None else EnvironmentFault.exit_status)


def _keep(collector: Collector, store: Path, json_path: Path | None, stdout: TextIO, complete: bool) -> None:
    """Store, print and report. A store that fails is an error only after the rest, which has all that was found."""
    fault = None
    with stops.held(firm=False):
        try:
            if collector.entries:
                tuned.add(store, collector.entries)
        except AgGemmError as error:
            fault = error
        stored = store if fault is None else None
        reports = [(json_path, lambda: collector.to_json(store, complete))]
        outputs.deliver(lambda stream: collector.print(stored, stream), reports, stdout)
        if fault is not None:
            raise fault
