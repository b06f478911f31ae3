"""Reports of ``smoke``: a table and one summary line for people, JSON and JUnit XML for programs. All say the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TextIO
from xml.etree import ElementTree

from agcli import __version__
from agcli.backends.base import Need
from agcli.bench_report import number
from agcli.bench_rows import FAILED, TIMED, Row
from agcli.errors import KernelFault
from agcli.outputs import xml_text
from agcli.report import where
from agcli.screen import Column, render_fields, render_table
from agcli.smoke import Case
from agcli.verdict import FAIL, PASS, Verdict

SCHEMA = "ag-gemm-smoke/1"
ERROR, SKIPPED = "ERROR", "not run"
COLUMNS = (
    Column("case"),
    Column("M x N x K"),
    Column("launches", numeric=True),
    Column("result"),
    Column("mismatches", numeric=True),
    Column("seconds", numeric=True),
)


@dataclass(frozen=True)
class CaseResult:
    """What the ranks that reported found for one case; ``error`` is why others did not, if the run ended here.

    ``complete`` if all ranks reported. A rank of a job that is stopped knows only what it found itself.
    """

    case: Case
    verdicts: tuple[Verdict, ...] = ()
    error: str = ""
    complete: bool = False

    @property
    def result(self) -> str:
        """FAIL if a rank was wrong, else ERROR if the run ended here, PASS if all ranks said so, else "not run"."""
        wrong = [verdict.result for verdict in self.verdicts if not verdict.passed]
        if wrong:
            return FAIL if FAIL in wrong else wrong[0]
        return ERROR if self.error else PASS if self.complete else SKIPPED


@dataclass(frozen=True)
class SmokeReport:
    """Everything that was found. ``error`` is why the run could not be completed, with the exit status it asks for."""

    backend: str
    world: int
    needs: tuple[Need, ...]
    cases: tuple[CaseResult, ...]
    rows: tuple[Row, ...] = ()
    versions: Mapping[str, str] | None = None
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""
    error_status: int = 0

    @property
    def wrong(self) -> list[str]:
        """Names of the cases and benchmark rows with a wrong result."""
        failed = [c.case.name for c in self.cases if any(not verdict.passed for verdict in c.verdicts)]
        return failed + [f"bench {row.impl}" for row in self.rows if row.check == FAILED]

    @property
    def exit_status(self) -> int:
        """A wrong result outranks what kept the run from its end."""
        return KernelFault.exit_status if self.wrong else self.error_status

    @property
    def result(self) -> str:
        """PASS, FAIL or ERROR."""
        return FAIL if self.exit_status == KernelFault.exit_status else ERROR if self.error else PASS


# -- for people --------------------------------------------------------------------------------------------------


def print_report(report: SmokeReport, stream: TextIO) -> None:
    """What the platform has, a row per case, where wrong ones are wrong, the benchmark, and the summary line."""
    versions = [f"{name} {value}" for name, value in (report.versions or {}).items()]
    render_fields([("backend", ", ".join([report.backend, f"{report.world} ranks", *versions]))], stream)
    render_fields([("warning", text) for text in report.warnings], stream)
    unmet = [need for need in report.needs if not need.ok]
    render_fields([("missing", f"{need.name}: {need.found}. {need.cure}") for need in unmet], stream)
    if report.cases:
        render_table(COLUMNS, [_cells(found) for found in report.cases], stream=stream)
    for found in report.cases:
        for verdict in found.verdicts:
            if fields := where(verdict):
                stream.write(f"{found.case.name}, rank {verdict.rank} {verdict.result}\n")
                render_fields(fields, stream, indent="  ")
    render_fields([("bench", _figure(row)) for row in report.rows], stream)
    stream.write(summary(report) + "\n")


def summary(report: SmokeReport) -> str:
    """One line: the result, what it rests on, and which cases are to blame."""
    passed = sum(found.result == PASS for found in report.cases)
    text = (
        f"smoke {report.result}: {passed} of {len(report.cases)} cases passed on {report.world} {report.backend} ranks"
    )
    if report.wrong:
        text += f"; wrong: {', '.join(report.wrong)}"
    if report.error:
        text += f"; not completed: {report.error.splitlines()[0].rstrip(':;')}"
    return f"{text}; {report.seconds:.1f} s"


def _cells(found: CaseResult) -> list[str]:
    case = found.case
    seconds = f"{max(v.seconds for v in found.verdicts):.3f}" if found.verdicts else "-"
    mismatches = str(sum(v.mismatches for v in found.verdicts)) if found.verdicts else "-"
    return [case.name, f"{case.m}x{case.n}x{case.k}", str(case.repeat), found.result, mismatches, seconds]


def _figure(row: Row) -> str:
    name = f"{row.impl} {row.shape} {row.dtype} {row.check}"
    return f"{name}, {number(row.median_ms)} ms" if row.check == TIMED else f"{name}: {row.note}"


# -- for programs ------------------------------------------------------------------------------------------------


def to_json(report: SmokeReport) -> str:
    """The report as a JSON document."""
    data = {
        "schema": SCHEMA,
        "tool": {"name": "ag-gemm", "version": __version__},
        "backend": report.backend,
        "world": report.world,
        "versions": dict(report.versions or {}),
        "needs": [asdict(need) for need in report.needs],
        "warnings": list(report.warnings),
        "cases": [
            {**asdict(found.case), "result": found.result, "error": found.error}
            | {"verdicts": [verdict.to_json() for verdict in found.verdicts]}
            for found in report.cases
        ],
        "bench": [asdict(row) for row in report.rows],
        "seconds": round(report.seconds, 3),
        "error": report.error,
        "result": report.result,
        "exit_status": report.exit_status,
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def to_junit(report: SmokeReport) -> str:
    """The report as JUnit XML: a test case for the platform, one per case and rank, one per row of the benchmark."""
    suite = ElementTree.Element("testsuite", {"name": "ag-gemm smoke", "time": f"{report.seconds:.3f}"})
    _add_needs(suite, report)
    for found in report.cases:
        for rank in range(report.world):
            _add_case(suite, report, found, rank)
    for row in report.rows:
        entry = _entry(suite, report, f"bench {row.impl}", (row.median_ms or 0.0) / 1e3)
        if row.check == FAILED:
            ElementTree.SubElement(entry, "failure", {"type": FAILED, "message": row.note})
    for counted, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(counted, str(len(suite.findall(f"testcase/{element}"))))
    suite.set("tests", str(len(suite)))
    return xml_text(suite)


def _entry(suite: ElementTree.Element, report: SmokeReport, name: str, seconds: float) -> ElementTree.Element:
    names = {"classname": f"ag-gemm.smoke.{report.backend}", "name": name, "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(suite, "testcase", names)


def _add_needs(suite: ElementTree.Element, report: SmokeReport) -> None:
    entry = _entry(suite, report, "doctor", 0.0)
    unmet = [f"{need.name}: {need.found}. {need.cure}" for need in report.needs if not need.ok]
    if unmet:
        _add(entry, "error", ERROR, f"backend {report.backend} is not ready", unmet)
    elif report.error and not any(found.error for found in report.cases):  # it has no case to be shown with
        _add(entry, "error", ERROR, report.error.splitlines()[0], report.error.splitlines())


def _add_case(suite: ElementTree.Element, report: SmokeReport, found: CaseResult, rank: int) -> None:
    verdict = next((v for v in found.verdicts if v.rank == rank), None)
    entry = _entry(suite, report, f"{found.case.name} rank {rank}", verdict.seconds if verdict else 0.0)
    if verdict is None and found.error:
        _add(entry, "error", ERROR, found.error.splitlines()[0], found.error.splitlines())
    elif verdict is None:
        ElementTree.SubElement(entry, "skipped", {"message": "the run ended before"})
    elif not verdict.passed:
        message = f"{verdict.result}: {verdict.mismatches} of {verdict.elements} elements are wrong"
        _add(entry, "failure", verdict.result, message, [f"{name}: {value}" for name, value in where(verdict)])


def _add(entry: ElementTree.Element, element: str, kind: str, message: str, lines: Sequence[str]) -> None:
    ElementTree.SubElement(entry, element, {"type": kind, "message": message}).text = "\n".join(lines)


def results_of(
    cases: Sequence[Case], verdicts: Mapping[int, Sequence[Mapping[str, Any]]], world: int, error: str
) -> tuple[CaseResult, ...]:
    """Each case with the verdicts that came for it, by index; ``error`` belongs to the first that not all reported."""
    found = []
    for index, case in enumerate(cases):
        known = sorted((Verdict.from_json(v) for v in verdicts.get(index, ())), key=lambda v: v.rank)
        ended_here = bool(error) and len(known) < world
        found.append(CaseResult(case, tuple(known), error if ended_here else "", len(known) == world))
        error = "" if ended_here else error
    return tuple(found)
