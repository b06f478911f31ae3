"""Reports of ``bench``: tables for people, JSON and CSV for programs. All say the same."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Callable, Sequence
from typing import TextIO

from agcli.bench_rows import ABSENT, FAILED, TUNED, BenchReport, Row
from agcli.screen import Column, Screen, render_fields, render_table

TABLE_WIDTH = 100  # columns of a terminal from which on each problem has a table of its own; below, rows are stacked
NOTHING = "-"

Cell = Callable[[Row], str]


def number(value: float | None, digits: int = 4) -> str:
    """A positive figure with ``digits`` significant digits and no exponent, so that a column can be compared."""
    if value is None:
        return NOTHING
    whole = len(str(int(abs(value))))
    if abs(value) < 1:
        leading = f"{abs(value):.10f}"[2:]
        whole = -(len(leading) - len(leading.lstrip("0"))) if leading.strip("0") else 0
    return f"{value:.{max(0, digits - whole)}f}"


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value * 100:.0f}%"


# Every column: heading, cell, and whether it is left out where no row has it.
_PROBLEM: tuple[tuple[Column, Cell, bool], ...] = (
    (Column("shape"), lambda r: r.shape, False),
    (Column("name"), lambda r: r.name or NOTHING, True),
    (Column("dtype"), lambda r: r.dtype, False),
)
_FIGURES: tuple[tuple[Column, Cell, bool], ...] = (
    (Column("impl"), lambda r: r.impl, False),
    (Column("check"), lambda r: r.check, False),
    (Column("ms", numeric=True), lambda r: number(r.median_ms), False),
    (Column("p10", numeric=True), lambda r: number(r.p10_ms), False),
    (Column("p90", numeric=True), lambda r: number(r.p90_ms), False),
    (Column("TFLOPS", numeric=True), lambda r: number(r.tflops), False),
    (Column("peak", numeric=True), lambda r: _percent(r.peak_share), True),
    (Column("x torch", numeric=True), lambda r: _times(r.speedup), True),
    (Column("x gemm", numeric=True), lambda r: _times(r.times_gemm), True),
    (Column("overlap", numeric=True), lambda r: _percent(r.overlap), True),
    (Column("host ms", numeric=True), lambda r: number(r.host_ms), True),
)


def print_report(report: BenchReport, stream: TextIO) -> None:
    """Header, tables, then what went wrong or could not run, and one line that sums up."""
    render_fields(header(report), stream)
    screen = Screen.of(stream)
    if screen.width is None or screen.width < TABLE_WIDTH:
        _print_table(_PROBLEM + _FIGURES, report.rows, "", stream)
    else:
        for _, group in itertools.groupby(report.rows, key=lambda r: (r.shape, r.name, r.dtype)):
            rows = list(group)
            _print_table(_FIGURES, rows, f"{rows[0].shape} {rows[0].dtype} {rows[0].name}".rstrip(), stream)
    notes = [
        (f"{r.shape} {r.dtype} {r.impl} {r.check}", r.note or "not reached")
        for r in report.rows
        if r.check in (FAILED, ABSENT) or r.impl.startswith(TUNED)
    ]
    render_fields([*notes, ("rows", summary(report))], stream)


def _print_table(columns: Sequence[tuple[Column, Cell, bool]], rows: Sequence[Row], title: str, stream: TextIO) -> None:
    shown = [(c, cell) for c, cell, optional in columns if not optional or any(cell(r) != NOTHING for r in rows)]
    render_table([c for c, _ in shown], [[cell(row) for _, cell in shown] for row in rows], title, stream)


def header(report: BenchReport) -> list[tuple[str, str]]:
    """What was measured and how, as names and values."""
    s = report.setup
    fields = []
    if s.emulated:
        fields.append(("EMULATION", "figures of the emulation on this machine's CPU, not of a chip"))
    versions = ", ".join(f"{name} {value}" for name, value in s.versions.items())
    fields += [
        ("backend", f"{s.backend}, {versions}".rstrip(", ")),
        ("devices", f"{s.world} ranks on {_counted(s.devices) or 'unknown devices'}"),
    ]
    if s.chip:
        known = f", stated peak {s.peak_tflops:g} TFLOPS fp16 ({s.peak_source})" if s.peak_tflops else ""
        stands = ": only its limits, not its speed, are emulated" if s.emulated else ""
        fields.append(("chip", s.chip + known + stands))
    fields += [
        (
            "timing",
            f"{s.clock}; slowest rank of each call; median, p10, p90 of {_iterations(report)}, {s.warmup} to warm up",
        ),
        ("caches", _caches(report)),
        ("inputs", f"random normal, different on each rank, seed {s.seed}"),
        ("FLOPs", "of a rank: 2 * W * M * N * K; shapes are M x N x K per rank"),
    ]
    if s.config:
        fields.append(("config", ", ".join(f"{name} {value}" for name, value in s.config.items())))
    return fields + [("warning", text) for text in report.warnings()]


def _counted(names: Sequence[str]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _iterations(report: BenchReport) -> str:
    counts = sorted({row.iterations for row in report.rows if row.iterations})
    if not counts:
        return "no calls"
    return f"{counts[0]} calls" if len(counts) == 1 else f"{counts[0]} to {counts[-1]} calls"


def _caches(report: BenchReport) -> str:
    if report.setup.warm:
        return "warm: every call has the same inputs"
    states = dict.fromkeys(row.caches for row in report.rows if row.caches)
    sets = sorted({row.input_sets for row in report.rows if row.input_sets})
    counts = "" if not sets else f" ({sets[0]} sets)" if len(sets) == 1 else f" ({sets[0]} to {sets[-1]} sets)"
    return f"{' or '.join(states) or 'cold'}: inputs rotated over several sets{counts}"


def summary(report: BenchReport) -> str:
    """How many rows were timed, how many failed, and whether the run was cut short."""
    checks = [row.check for row in report.rows]
    parts = [f"{len(checks) - checks.count(FAILED) - checks.count(ABSENT)} timed"]
    if FAILED in checks:
        parts.append(f"{checks.count(FAILED)} FAIL")
    if ABSENT in checks:
        parts.append(f"{checks.count(ABSENT)} not available here")
    if not report.complete:
        parts.append("stopped before the end")
    return ", ".join(parts)


def to_json(report: BenchReport) -> str:
    """The report as a JSON document."""
    return json.dumps(report.to_json(), indent=2, allow_nan=False) + "\n"


CSV_SETUP = ("backend", "emulated", "chip")
CSV_ROW = (
    *("name", "m", "n", "k", "world", "dtype", "impl", "check", "iterations", "caches", "input_sets"),
    *("median_ms", "p10_ms", "p90_ms", "host_ms", "tflops", "peak_share", "speedup", "times_gemm", "overlap", "note"),
)


def to_csv(report: BenchReport) -> str:
    """A line for each row, with a heading; figures unrounded, empty where there is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_SETUP + CSV_ROW)
    setup = [getattr(report.setup, name) for name in CSV_SETUP]
    writer.writerows([*setup, *(getattr(row, name) for name in CSV_ROW)] for row in report.rows)
    return text.getvalue()
