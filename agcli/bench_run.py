"""The parent's side of ``bench``: what to time, on what, and where the report goes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TextIO

from agcli import bench_compare, outputs, shapes, stops
from agcli.bench_hooks import BenchHooks, hooks_of
from agcli.bench_plan import BenchPlan, pick
from agcli.bench_plot import check_plot, plot
from agcli.bench_report import print_report, to_csv, to_json
from agcli.bench_rows import IMPLEMENTATIONS, BenchReport, Row, Setup, rows_from_json
from agcli.errors import KernelFault, UsageError
from agcli.outcome import Job
from agcli.outputs import check_distinct, check_writable, people_stream, reserved_stdout
from agcli.problem import ITEMSIZE, default_config
from agcli.progress import OnProgress, progress_bar
from agcli.report import versions_of
from agcli.request import SIZE, Machine, check_platform, report_failure, run_ranks
from agcli.screen import Column, render_table

RANK_TARGET = "agcli.bench:bench_rank"
WARMUP, WARMUP_EMULATED = 10, 2
EMULATION_GFLOPS = 20.0  # what simulated ranks of a host reach together at best on two cores; for a warning only
LONG_S = 300.0
MIN_CALLS = 6  # of each implementation besides warming up: to check, to calibrate and to time
CLOCKS = {True: "device events", False: "perf_counter around a synchronized call"}


@dataclass(frozen=True)
class Wanted:
    """What the command line says of problems and implementations, as it says it; None where it does not."""

    m: str | None = None
    n: str | None = None
    k: str | None = None
    preset: str | None = None
    file: Path | None = None
    dtype: str = "fp16"
    impl: str | None = None

    def check(self) -> None:
        """Refuse, before any machine is looked at, what is wrong on all. Raises UsageError."""
        self.shapes(1, emulated=False)
        for dtype in self.dtypes:
            if dtype not in ITEMSIZE:
                raise UsageError(f"dtype must be one of {', '.join(ITEMSIZE)}, got '{dtype}' (--dtype)")

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Element types, each once."""
        return tuple(dict.fromkeys(self.dtype.split(",")))

    def shapes(self, world: int, emulated: bool) -> list[shapes.Shape]:
        """The problems: of the presets and the file, or else every combination of M, N and K."""
        given = {
            o: shapes.parse_sizes(v, f"--{o}")
            for o, v in (("m", self.m), ("n", self.n), ("k", self.k))
            if v is not None
        }
        for option, values in given.items():
            if min(values) < 1:
                raise UsageError(f"{option.upper()} must be at least 1, got {min(values)} (--{option})")
        named: list[shapes.Shape] = []
        if self.preset is not None:
            if "n" in given or "k" in given:
                raise UsageError("--preset decides N and K; leave --n and --k out")
            named += shapes.preset_shapes(self.preset.split(","), world, given.get("m", shapes.PRESET_M))
        if self.file is not None:
            if "n" in given or "k" in given or (given and self.preset is None):
                raise UsageError("--shapes decides M, N and K; leave --m, --n and --k out")
            named += shapes.read_shapes(self.file)
        if named:
            return shapes.unique(named)
        if not given:
            return shapes.grid(*(shapes.EMULATION_SIZES if emulated else shapes.ACCELERATOR_SIZES))
        return shapes.grid(*(given.get(option, [SIZE]) for option in "mnk"))


def make_plan(machine: Machine, wanted: Wanted, *, warmup: int | None, graph: bool, **settings: Any) -> BenchPlan:
    """Everything that the ranks must agree on. Raises UsageError for what this platform cannot do."""
    hooks = hooks_of(machine.backend)
    if graph and not hooks.can_capture:
        raise UsageError(f"backend {machine.backend.name} cannot capture graphs; leave --graph out")
    impl = wanted.impl.split(",") if wanted.impl is not None else _all_of(hooks)
    implementations, transports = pick(impl, hooks.transports)
    plan = BenchPlan(
        backend=machine.backend.name,
        world=machine.world,
        shapes=tuple(wanted.shapes(machine.world, machine.simulated)),
        dtypes=wanted.dtypes,
        implementations=implementations,
        transports=transports,
        warmup=warmup if warmup is not None else WARMUP_EMULATED if machine.simulated else WARMUP,
        graph=graph,
        emulated=machine.simulated,
        **settings,
    )
    chip = machine.backend.chip(plan.soc)
    default_config(chip).with_options(**plan.config)
    plan.check(chip, functools.partial(check_platform, machine.backend))
    return plan


def _all_of(hooks: BenchHooks) -> list[str]:
    return [name for name in IMPLEMENTATIONS if name != "vendor" or hooks.has_vendor]


@dataclass(frozen=True)
class Outputs:
    """Where the report goes, and the earlier one it is compared with."""

    json: Path | None = None
    csv: Path | None = None
    plot: Path | None = None
    compare: Path | None = None
    allowed: float = 0.05

    def check(self) -> None:
        """Refuse before the run what would fail after it."""
        for path, option in ((self.json, "--json"), (self.csv, "--csv"), (self.plot, "--plot")):
            check_writable(path, option)
        check_distinct({"--json": self.json, "--csv": self.csv, "--plot": self.plot, "--compare": self.compare})
        check_plot(self.plot)

    def check_comparable(self, plan: BenchPlan) -> None:
        """Refuse an earlier report of another kind of run, as far as that is known before the run."""
        if self.earlier is not None:
            bench_compare.check_comparable(setup_of(plan, ()), self.earlier.setup)
            bench_compare.check_shared(plan, self.earlier)

    @functools.cached_property
    def earlier(self) -> BenchReport | None:
        """The report of ``--compare``, as it was when it was first asked for. Raises UsageError if it is none."""
        return bench_compare.read_report(self.compare) if self.compare is not None else None

    def deliver(self, report: BenchReport, stdout: TextIO) -> int:
        """Print and write the report; the exit status that it asks for. Only a complete one is drawn and compared."""
        reports = [(self.json, lambda: to_json(report)), (self.csv, lambda: to_csv(report))]
        passed = [report.passed]

        def draw() -> None:
            if self.plot is not None and report.complete:
                plot(report, self.plot)

        def compare() -> None:
            if self.earlier is not None and report.complete:
                comparison = bench_compare.compare(report, self.earlier, self.allowed)
                bench_compare.print_comparison(comparison, people_stream(stdout, self.json, self.csv))
                passed.append(comparison.passed)

        outputs.deliver(lambda stream: print_report(report, stream), reports, stdout, draw, compare)
        return 0 if all(passed) else KernelFault.exit_status


class Collector:
    """Gathers what ranks publish, so that there is a report even when the run is stopped."""

    def __init__(self) -> None:
        self._about: dict[int, Mapping[str, Any]] = {}
        self._rows: list[Row] = []

    def on_data(self, rank: int, data: Mapping[str, Any]) -> None:
        """Take in one message of ``bench.run``."""
        if "about" in data:
            self._about[rank] = data["about"]
        self._rows += rows_from_json(data.get("rows", ()))

    def on_values(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take in the ranks' results, which say all there is."""
        self._about = {rank: value["about"] for rank, value in enumerate(values)}
        self._rows = rows_from_json(values[0]["rows"])

    def deliver_partial(self, plan: BenchPlan, outputs: Outputs, stdout: TextIO) -> None:
        """Deliver the rows so far, if there are any."""
        if self._rows:
            outputs.deliver(self.report(plan, complete=False), stdout)

    def report(self, plan: BenchPlan, complete: bool) -> BenchReport:
        """The rows so far and what is known of the devices."""
        return BenchReport(setup_of(plan, [self._about[r] for r in sorted(self._about)]), tuple(self._rows), complete)


def setup_of(plan: BenchPlan, about: Sequence[Mapping[str, Any]]) -> Setup:
    """The setup that a plan and what ranks say of themselves (``bench.about``) make."""
    described = [a["describe"] for a in about]
    versions = versions_of(described)
    first = about[0] if about else {}
    return Setup(
        backend=plan.backend,
        world=plan.world,
        dtypes=plan.dtypes,
        devices=tuple(d.get("device", "unknown") for d in described),
        versions={name: value for name, value in versions.items() if name not in ("device", "index")},
        emulated=plan.emulated,
        chip=first.get("chip", ""),
        peak_tflops=first.get("peak_tflops"),
        peak_source=first.get("peak_source", ""),
        warmup=plan.warmup,
        warm=plan.warm,
        clock=CLOCKS[bool(first.get("events"))],
        graph=plan.graph,
        seed=plan.seed,
        config=plan.config,
        date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def run(machine: Machine, plan: BenchPlan, outputs: Outputs, timeout_s: float, debug: bool) -> int:
    """Run all ranks, deliver the report, and return the exit status.

    When the run fails or is stopped, the rows so far are delivered all the same; a stop goes on as KeyboardInterrupt.
    """
    _warn_of_length(plan)
    collector = Collector()
    job = Job(RANK_TARGET, plan.to_json())
    with stops.until_delivered(), reserved_stdout() as stdout:
        try:
            with progress_bar("% of the work") as bar:
                ranks = run_ranks(machine, job, timeout_s, _percent(bar), collector.on_data)
        except KeyboardInterrupt:
            collector.deliver_partial(plan, outputs, stdout)
            raise
        error = report_failure(ranks, timeout_s, debug)
        if error is None:
            collector.on_values([result.value for result in ranks.results])
            report = collector.report(plan, complete=True)
            status = outputs.deliver(report, stdout) if ranks.speaks else _status(report)
        else:
            status = error.exit_status
            if ranks.speaks:
                collector.deliver_partial(plan, outputs, stdout)
    return ranks.leave(status)


def _percent(bar: OnProgress | None) -> OnProgress | None:
    """Show hundredths: the ranks' own unit, thousandths of a problem on each rank, says little to people."""
    return bar and (lambda done, total: bar(100 * done // max(total, 1), 100))


def _status(report: BenchReport) -> int:
    return 0 if report.passed else KernelFault.exit_status


def _warn_of_length(plan: BenchPlan) -> None:
    """Say on stderr when an emulation will take long: a preset is meant for accelerators."""
    if not plan.emulated:
        return
    calls = (len(plan.transports) + 2) * (plan.warmup + MIN_CALLS)
    seconds = sum(p.flops for p, _ in plan.problems) * plan.world * calls / (EMULATION_GFLOPS * 1e9)
    if seconds > LONG_S:
        text = (
            f"emulating these problems takes about {seconds / 60:.0f} minutes or more; smaller --m, --n, --k take less"
        )
        print(f"ag-gemm: warning: {text}", file=sys.stderr)


def list_presets(world: int) -> int:
    """Print every preset's N and K on one of ``world`` ranks, and their source."""
    rows = []
    for model, sizes in shapes.MODELS.items():
        rows += [[f"{model}/{part}", str(n), str(k), sizes.source] for part, (n, k) in sizes.projections(world).items()]
    heads = [Column("preset"), Column("N", numeric=True), Column("K", numeric=True), Column("source")]
    with reserved_stdout() as stdout:
        render_table(heads, rows, f"N and K on each of {world} ranks (--world); M is {shapes.PRESET_M} or --m", stdout)
    return 0
