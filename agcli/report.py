"""Reports of ``verify``: a table for people, JSON and JUnit XML for programs. All three say the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from agcli import __version__, outputs
from agcli.errors import KernelFault
from agcli.outputs import check_distinct, check_writable, xml_text
from agcli.problem import Plan
from agcli.screen import Column, render_fields, render_table
from agcli.verdict import BadRegions, FirstBad, Tolerance, Verdict

SCHEMA = "ag-gemm-verify/1"
COLUMNS = (
    Column("rank", numeric=True),
    Column("device"),
    Column("result"),
    Column("max abs err", numeric=True),
    Column("max rel err", numeric=True),
    Column("mismatches", numeric=True),
    Column("seconds", numeric=True),
)


@dataclass(frozen=True)
class VerifyReport:
    """Verdicts of all ranks, in rank order, and what they are about. ``versions`` names devices and software."""

    backend: str
    plan: Plan
    tolerance: Tolerance
    verdicts: tuple[Verdict, ...]
    versions: Mapping[str, str]
    options: Mapping[str, Any]
    warnings: tuple[str, ...] = ()
    tuned: str = ""  # with --tuned: which configuration was taken, and why

    @property
    def passed(self) -> bool:
        """Whether every rank passed."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def exit_status(self) -> int:
        """0 if every rank passed, else 1."""
        return 0 if self.passed else KernelFault.exit_status


# -- for people --------------------------------------------------------------------------------------------------


def print_report(report: VerifyReport, stream: TextIO) -> None:
    """Header, a row per rank, and below it where each wrong rank is wrong."""
    render_fields(_header(report), stream)
    render_table(COLUMNS, [_cells(verdict) for verdict in report.verdicts], stream=stream)
    for verdict in report.verdicts:
        fields = where(verdict)
        if fields:
            stream.write(f"rank {verdict.rank} {verdict.result}\n")
            render_fields(fields, stream, indent="  ")
    passed = sum(verdict.passed for verdict in report.verdicts)
    stream.write(f"{passed} of {len(report.verdicts)} ranks passed\n")


def _header(report: VerifyReport) -> list[tuple[str, str]]:
    problem, config = report.plan.problem, report.plan.config
    shape = f"W={problem.world} M={problem.m} N={problem.n} K={problem.k} {problem.dtype}"
    blocks = ", ".join(f"{name} {value}" for name, value in asdict(config).items())
    options = ", ".join(f"{name} {value}" for name, value in report.options.items() if value is not None)
    versions = [f"{name} {value}" for name, value in report.versions.items() if name != "device"]
    fields = [
        ("backend", ", ".join([report.backend, *versions])),
        ("problem", f"{shape}, C = all_gather(A) @ B"),
        ("config", blocks + (f", limits of {report.plan.chip.name}" if report.plan.chip else "")),
        ("inputs and comparison", options),
        ("tolerance", report.tolerance.text),
    ]
    fields += [("tuned", report.tuned)] * bool(report.tuned)
    return fields + [("warning", text) for text in report.warnings]


def _cells(verdict: Verdict) -> list[str]:
    return [
        str(verdict.rank),
        verdict.device,
        verdict.result,
        _error(verdict.max_abs_err, verdict),
        _error(verdict.max_rel_err, verdict),
        str(verdict.mismatches),
        f"{verdict.seconds:.3f}",
    ]


def _error(value: float | None, verdict: Verdict) -> str:
    """An error over the finite elements, never without what it leaves out: a small number must not stand for NaN."""
    left_out = [(verdict.nan_count, "NaN"), (verdict.inf_count, "Inf")]
    parts = [] if value is None else [f"{value:.3g}"]
    return " + ".join(parts + [f"{count} {name}" for count, name in left_out if count]) or "-"


def where(verdict: Verdict) -> list[tuple[str, str]]:
    """What is wrong on a rank and where: nothing for one that passed."""
    fields = []
    if verdict.mismatches:
        fields.append(("mismatches", f"{verdict.mismatches} of {verdict.elements} elements"))
    if verdict.nan_count or verdict.inf_count:
        fields.append(("not finite", f"{verdict.nan_count} NaN and {verdict.inf_count} Inf in C"))
    if verdict.nonfinite_reference:
        text = f"{verdict.nonfinite_reference} of {verdict.elements} reference elements exceed the element type's range"
        fields.append(("reference", f"{text}; use smaller data or bf16"))
    if verdict.first_bad:
        fields += _first_bad(verdict.first_bad)
    if verdict.bad:
        fields += _regions(verdict.bad)
    return fields


def _first_bad(first: FirstBad) -> list[tuple[str, str]]:
    slot = "" if first.slot is None else f", slot {first.slot}"
    return [
        ("first", f"row {first.row}, column {first.col}: got {first.got}, want {first.want} (launch {first.repeat})"),
        (
            "it belongs to",
            f"source rank {first.source_rank}, its row {first.local_row}, iteration {first.iteration}{slot}, "
            f"tile ({first.tile_row}, {first.tile_col})",
        ),
    ]


def _regions(bad: BadRegions) -> list[tuple[str, str]]:
    fields = [
        (name, ", ".join(f"{key}: {count}" for key, count in entries))
        for name, entries in (
            ("by source rank", bad.source_ranks),
            ("by iteration", bad.iterations),
            ("by slot", bad.slots),
        )
        if entries
    ]
    tiles = [f"source rank {s} iteration {i} tile ({r}, {c}): {count}" for s, i, r, c, count in bad.tiles]
    more = bad.tiles_total - len(tiles)
    fields.append(("by output tile", "; ".join(tiles) + (f"; and {more} more" if more else "")))
    return fields


# -- for programs ------------------------------------------------------------------------------------------------


def to_json(report: VerifyReport) -> str:
    """The report as a JSON document; numbers that JSON does not have are null or strings."""
    data = {
        "schema": SCHEMA,
        "tool": {"name": "ag-gemm", "version": __version__},
        "backend": report.backend,
        "devices": [verdict.device for verdict in report.verdicts],
        "versions": dict(report.versions),
        "chip": report.plan.chip.name if report.plan.chip else None,
        "problem": asdict(report.plan.problem),
        "config": asdict(report.plan.config),
        "tuned": report.tuned or None,
        "options": dict(report.options),
        "tolerance": asdict(report.tolerance),
        "warnings": list(report.warnings),
        "verdicts": [verdict.to_json() for verdict in report.verdicts],
        "result": "PASS" if report.passed else "FAIL",
        "exit_status": report.exit_status,
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def to_junit(report: VerifyReport) -> str:
    """The report as JUnit XML: a test case per rank."""
    failures = sum(not verdict.passed for verdict in report.verdicts)
    counts = {"tests": str(len(report.verdicts)), "failures": str(failures), "errors": "0", "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "ag-gemm verify", **counts})
    suite.set("time", f"{max(verdict.seconds for verdict in report.verdicts):.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _header(report):
        ElementTree.SubElement(properties, "property", {"name": name, "value": value})
    for verdict in report.verdicts:
        names = {"classname": f"ag-gemm.verify.{report.backend}", "name": f"rank {verdict.rank} ({verdict.device})"}
        case = ElementTree.SubElement(suite, "testcase", {**names, "time": f"{verdict.seconds:.3f}"})
        if not verdict.passed:
            message = f"{verdict.result}: {verdict.mismatches} of {verdict.elements} elements are wrong"
            failure = ElementTree.SubElement(case, "failure", {"type": verdict.result, "message": message})
            failure.text = "\n".join(f"{name}: {value}" for name, value in where(verdict))
    return xml_text(suite)


def check_outputs(json_path: Path | None, junit_path: Path | None) -> None:
    """Refuse, before the run, files that ``deliver`` could not write. Raises UsageError."""
    check_writable(json_path, "--json")
    check_writable(junit_path, "--junit")
    check_distinct({"--json": json_path, "--junit": junit_path})


def deliver(report: VerifyReport, stdout: TextIO, json_path: Path | None, junit_path: Path | None) -> None:
    """Print the table, to ``stdout``, or to stderr if a report goes there (``-``); then write the files asked for."""
    reports = [(json_path, lambda: to_json(report)), (junit_path, lambda: to_junit(report))]
    outputs.deliver(lambda stream: print_report(report, stream), reports, stdout)


def versions_of(descriptions: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """What ranks say of their platform, where all say the same; else the different answers."""
    names = dict.fromkeys(name for description in descriptions for name in description)
    found = {name: dict.fromkeys(d[name] for d in descriptions if name in d) for name in names}
    return {name: " / ".join(values) for name, values in found.items()}
