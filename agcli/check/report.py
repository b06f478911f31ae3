"""Findings for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from agcli import __version__, outputs
from agcli.check.findings import FAULTS, WARNINGS, Finding, Findings, Place
from agcli.errors import KernelFault
from agcli.screen import Column, render_fields, render_table

if TYPE_CHECKING:
    from agcli.check.cases import Checked, Sweep

SCHEMA = "ag-gemm-check/1"
COLUMNS = (
    Column("case"),
    Column("result"),
    Column("faults", numeric=True),
    Column("accesses", numeric=True),
    Column("schedules", numeric=True),
    Column("seconds", numeric=True),
)


# -- one kernel in one case ------------------------------------------------------------------------------------------
def describe(kernel: str, faults: Sequence[Finding], warnings: Sequence[Finding]) -> str:
    """All findings of a kernel, faults first, and a last line that counts them."""
    lines = [line for finding in (*faults, *warnings) for line in (*finding_lines(finding), "")]
    return "\n".join([*lines, summary(kernel, faults, warnings)])


def summary(kernel: str, faults: Sequence[Finding], warnings: Sequence[Finding]) -> str:
    """How many findings of which kinds."""
    found = [_counted(faults, "fault") if faults else "no fault found"]
    return f"{kernel}: " + "; ".join(found + ([_counted(warnings, "warning")] if warnings else []))


def finding_lines(finding: Finding) -> list[str]:
    """One finding: what, who, and why, a line each."""
    times = f" (seen {finding.count} times)" if finding.count > 1 else ""
    lines = [f"{'warning' if finding.warning else 'FAULT'} {finding.kind}: {finding.what}{times}"]
    if finding.case:
        lines.append(f"  first in: {finding.case}")
    width = max((len(place.what) for place in finding.places), default=0)
    for place in finding.places:
        lines += _place_lines(place, width)
    if finding.last_common:
        lines.append(f"  last common synchronisation: {finding.last_common}")
    if finding.why:
        lines.append(f"  why: {finding.why}")
    return lines + [f"  {detail}" for detail in finding.details]


def _place_lines(place: Place, width: int) -> Iterable[str]:
    yield f"  {place.what.ljust(width)}  {place.source}"
    if not place.static:
        yield f"  {' ' * width}  {place.who}"


def _counted(findings: Sequence[Finding], noun: str) -> str:
    kinds = ", ".join(dict.fromkeys(finding.kind for finding in findings))
    return f"{len(findings)} {noun}{'s' * (len(findings) != 1)} ({kinds})"


# -- a sweep ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class CheckReport:
    """All cases of a kernel."""

    kernel: str
    sweep: Sweep
    checked: tuple[Checked, ...]

    @cached_property
    def findings(self) -> Findings:
        """What was found in all cases, each thing once, with its first case."""
        findings = Findings()
        for checked in self.checked:
            findings.extend([*checked.result.faults, *checked.result.warnings], checked.case.label)
        return findings

    @property
    def exit_status(self) -> int:
        """0 if no fault was found, else 1."""
        return KernelFault.exit_status if self.findings.faults else 0

    @property
    def seconds(self) -> float:
        """Time of all cases."""
        return sum(checked.result.seconds for checked in self.checked)


def deliver(report: CheckReport, stdout: TextIO, json_path: Path | None) -> None:
    """Print the report to ``stdout``, or to stderr if the JSON is to be there (``-``); write the file asked for."""
    outputs.deliver(lambda stream: print_report(report, stream), [(json_path, lambda: to_json(report))], stdout)


def print_report(report: CheckReport, stream: TextIO) -> None:
    """A row per case, then every finding with its places."""
    launches = report.sweep.launches
    fields = [("kernel", report.kernel), ("launches", f"{launches} of each rank, ordered by the kernel alone")]
    render_fields(fields, stream)
    rows = [
        [
            checked.case.label,
            "PASS" if checked.result.clean else "FAIL",
            str(len(checked.result.faults)),
            str(checked.result.accesses),
            str(checked.result.schedules),
            f"{checked.result.seconds:.2f}",
        ]
        for checked in report.checked
    ]
    render_table(COLUMNS, rows, stream=stream)
    faults, warnings = report.findings.faults, report.findings.warnings
    stream.write("\n".join(["", *(describe(report.kernel, faults, warnings).splitlines())]) + "\n")
    clean = sum(checked.result.clean for checked in report.checked)
    stream.write(f"{clean} of {len(report.checked)} cases are free of faults ({report.seconds:.0f} s)\n")


def to_json(report: CheckReport) -> str:
    """The report as a JSON document."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": "ag-gemm", "version": __version__},
        "kernel": report.kernel,
        "launches": report.sweep.launches,
        "kinds": {**WARNINGS, **FAULTS},
        "cases": [
            {
                "problem": asdict(checked.case.problem),
                "config": asdict(checked.case.config),
                "cores": checked.case.cores,
                "clean": checked.result.clean,
                "faults": len(checked.result.faults),
                "accesses": checked.result.accesses,
                "schedules": checked.result.schedules,
                "seconds": round(checked.result.seconds, 3),
            }
            for checked in report.checked
        ],
        "faults": [finding.to_json() for finding in report.findings.faults],
        "warnings": [finding.to_json() for finding in report.findings.warnings],
        "result": "FAIL" if report.findings.faults else "PASS",
        "exit_status": report.exit_status,
    }
    return json.dumps(data, indent=2) + "\n"
