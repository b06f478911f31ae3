"""The parent's side of ``smoke``: is the platform ready, then the ranks, then a report, whatever happened."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from agcli import outputs, request, smoke, stops
from agcli.backends.base import Need
from agcli.bench_hooks import hooks_of
from agcli.bench_rows import rows_from_json
from agcli.deadline import deadline
from agcli.doctor import Diagnosis, examine
from agcli.errors import AgGemmError, EnvironmentFault
from agcli.jobenv import JobEnv
from agcli.outcome import Job, failure
from agcli.outputs import reserved_stdout
from agcli.progress import progress_bar
from agcli.report import versions_of
from agcli.smoke import SmokePlan, cases, sanity_bench
from agcli.smoke_report import SmokeReport, print_report, results_of, to_json, to_junit


@dataclass(frozen=True)
class SmokeOptions:
    """What the command line says."""

    backend: str
    world: int | None
    devices: tuple[int, ...] | None
    soc: str | None
    timeout_s: float
    limit_s: float
    json: Path | None
    junit: Path | None
    debug: bool


def run(options: SmokeOptions, job: JobEnv | None) -> int:
    """Examine, verify, time, report; the exit status. A stop by the user goes on as KeyboardInterrupt."""
    collector = Collector(time.monotonic(), options.backend)
    with stops.until_delivered(), reserved_stdout() as stdout:
        try:
            collector.examined(examine(), options.backend)
            with request.one_voice(job):
                machine = request.Machine.resolve(options.backend, options.world, options.devices, job)
                plan = make_plan(machine, options.soc)
            collector.planned(machine, plan)
            ranks = _run_ranks(machine, plan, options, collector)
        except (AgGemmError, KeyboardInterrupt) as error:
            collector.failed(error if isinstance(error, AgGemmError) else EnvironmentFault(str(error) or "interrupted"))
            if job is None or job.rank == 0:
                _deliver(collector.report(), options, stdout)
            raise
        report = collector.report()
        if ranks.speaks:
            _deliver(report, options, stdout)
    return ranks.leave(report.exit_status)


def make_plan(machine: request.Machine, soc: str | None) -> SmokePlan:
    """The list for this platform. Raises UsageError where its chip cannot take a case."""
    transports = hooks_of(machine.backend).transports
    bench = sanity_bench(machine.backend.name, machine.world, transports, emulated=machine.simulated, soc=soc)
    chip = machine.backend.chip(soc)
    plan = SmokePlan(tuple(cases(transports)), bench)
    for case in plan.cases:
        case.plan(machine.world, chip)
    bench.check(chip)
    return plan


def _run_ranks(machine: request.Machine, plan: SmokePlan, options: SmokeOptions, collector: Collector) -> request.Ranks:
    """All ranks' doings, which ``collector`` takes in. Raises EnvironmentFault when the time is up."""
    job = Job(smoke.RANK_TARGET, plan.to_json())
    with deadline(options.limit_s) as limit:
        try:
            with progress_bar("thousandths of all ranks' cases") as on_progress:
                ranks = request.run_ranks(machine, job, options.timeout_s, on_progress, collector.on_data)
        except KeyboardInterrupt as stop:
            if not limit.passed:
                raise
            late = EnvironmentFault(f"the time was up after {options.limit_s / 60:g} minutes (--max-minutes)")
            raise late from stop
        finally:
            if limit.passed:
                stops.forget()
    error = failure(ranks.results, options.timeout_s)
    if error is None:
        collector.on_values([result.value for result in ranks.results])
    else:
        collector.failed(error)
        request.report_failure(ranks, options.timeout_s, options.debug)
    return ranks


def _deliver(report: SmokeReport, options: SmokeOptions, stdout: TextIO) -> None:
    """Print the table, to stderr if a report goes to stdout; then write the files asked for."""
    reports = [(options.json, lambda: to_json(report)), (options.junit, lambda: to_junit(report))]
    outputs.deliver(lambda stream: print_report(report, stream), reports, stdout)


@dataclass
class Collector:
    """What is known so far, from which there is a report at any time."""

    begin: float
    backend: str = ""
    needs: tuple[Need, ...] = ()
    machine: request.Machine | None = None
    plan: SmokePlan | None = None
    about: dict[int, Mapping[str, str]] = field(default_factory=dict)
    verdicts: dict[int, list[Mapping[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    error: AgGemmError | None = None

    def examined(self, diagnosis: Diagnosis, wanted: str) -> None:
        """Take in what the machine has. Raises EnvironmentFault if the backend wanted is not ready."""
        self.backend = (diagnosis.chosen or wanted) if wanted == "auto" else wanted
        own = [need for platform in diagnosis.platforms if platform.name == self.backend for need in platform.needs]
        self.needs = (*diagnosis.machine, *own)
        if not diagnosis.ready(wanted):
            unmet = [f"  {need.name}: {need.found}. {need.cure}" for need in self.needs if not need.ok]
            text = f"backend {self.backend} is not ready" if wanted != "auto" else "no backend is ready"
            raise EnvironmentFault("\n".join([f"{text}; `ag-gemm doctor` shows more:", *unmet]))

    def planned(self, machine: request.Machine, plan: SmokePlan) -> None:
        """Take in what is going to be done."""
        self.machine, self.plan = machine, plan

    def on_data(self, rank: int, data: Mapping[str, Any]) -> None:
        """Take in what a rank publishes."""
        if "about" in data:
            self.about[rank] = data["about"]
        else:
            self.verdicts[data["case"]].append(data["verdict"])

    def on_values(self, values: Sequence[Mapping[str, Any]]) -> None:
        """Take in the ranks' results, which say all there is."""
        self.about = {rank: value["about"] for rank, value in enumerate(values)}
        self.verdicts = {
            index: list(verdicts) for index, verdicts in enumerate(zip(*(value["verdicts"] for value in values)))
        }
        self.rows = values[0]["rows"]

    def failed(self, error: AgGemmError) -> None:
        """Take in why the run has come to its end."""
        self.error = error

    def report(self) -> SmokeReport:
        """All of it."""
        error = str(self.error) if self.error else ""
        world = self.machine.world if self.machine else 0
        known = self.plan.cases if self.plan else ()
        versions = versions_of([self.about[rank] for rank in sorted(self.about)])
        return SmokeReport(
            backend=self.backend,
            world=world,
            needs=self.needs,
            cases=results_of(known, self.verdicts, world, error),
            rows=tuple(rows_from_json(self.rows)),
            versions=versions,
            warnings=tuple(self.machine.warnings()) if self.machine else (),
            seconds=time.monotonic() - self.begin,
            error=error,
            error_status=self.error.exit_status if self.error else 0,
        )
