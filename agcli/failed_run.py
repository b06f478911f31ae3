"""The reports of a ``verify`` that ended without all verdicts: which ranks reported, and why the others did not.

What CI collects is then there in any case, and no report of an earlier run is taken for this one's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO
from xml.etree import ElementTree

from agcli import __version__, outputs
from agcli.errors import AgGemmError
from agcli.outcome import RankResult
from agcli.outputs import xml_text
from agcli.problem import Plan
from agcli.report import SCHEMA


@dataclass(frozen=True)
class FailedRun:
    """A run whose ``error`` is the cause; ``results`` has one entry a rank."""

    backend: str
    plan: Plan
    error: AgGemmError
    results: Sequence[RankResult]


def to_json(run: FailedRun) -> str:
    """The failure as a JSON document of ``verify``'s schema, with ``"result": "ERROR"``."""
    data = {
        "schema": SCHEMA,
        "tool": {"name": "ag-gemm", "version": __version__},
        "backend": run.backend,
        "chip": run.plan.chip.name if run.plan.chip else None,
        "problem": asdict(run.plan.problem),
        "config": asdict(run.plan.config),
        "verdicts": [result.value["verdict"] for result in run.results if result.ok],
        "ranks": [_rank(result) for result in run.results],
        "result": "ERROR",
        "error": str(run.error),
        "exit_status": run.error.exit_status,
    }
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def _rank(result: RankResult) -> dict[str, Any]:
    names = ("rank", "status", "message", "exit_code", "signal", "phase")
    return {name: getattr(result, name) for name in names}


def to_junit(run: FailedRun) -> str:
    """The failure as JUnit XML: a test case per rank, an error for each that did not report."""
    lost = [result for result in run.results if not result.ok]
    counts = {"tests": str(len(run.results)), "failures": "0", "errors": str(len(lost)), "skipped": "0"}
    suite = ElementTree.Element("testsuite", {"name": "ag-gemm verify", **counts})
    for result in run.results:
        names = {"classname": f"ag-gemm.verify.{run.backend}", "name": f"rank {result.rank}"}
        case = ElementTree.SubElement(suite, "testcase", names)
        if not result.ok:
            message = result.message or result.status
            error = ElementTree.SubElement(case, "error", {"type": result.status, "message": message})
            error.text = "\n".join([str(run.error), *result.log_lines()])
    return xml_text(suite)


def deliver(run: FailedRun, stdout: TextIO, json_path: Path | None, junit_path: Path | None) -> None:
    """Write the reports asked for; the message itself is on stderr already."""
    reports = [(json_path, lambda: to_json(run)), (junit_path, lambda: to_junit(run))]
    outputs.deliver(lambda _: None, reports, stdout)
