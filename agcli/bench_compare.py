"""A report against an earlier one: the ratio of each row's medians, and whether one has become too slow. Pure.

A ratio is new time divided by old time: 1.05 is 5 % slower.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from agcli.bench_plan import BenchPlan
from agcli.bench_report import number
from agcli.bench_rows import BenchReport, Row, Setup, report_from_json
from agcli.errors import UsageError
from agcli.screen import Column, render_fields, render_table

NOTHING_SHARED = "the reports have no row in common: same shapes, dtypes and implementations are needed (--compare)"
COLUMNS = (
    Column("shape"),
    Column("dtype"),
    Column("impl"),
    Column("old ms", numeric=True),
    Column("new ms", numeric=True),
    Column("ratio", numeric=True),
    Column("verdict"),
)


@dataclass(frozen=True)
class Change:
    """A row of both reports. ``ratio`` is None where one of them has no time for it."""

    new: Row
    old: Row
    allowed: float

    @property
    def ratio(self) -> float | None:
        """New time divided by old time."""
        return self.new.median_ms / self.old.median_ms if self.new.median_ms and self.old.median_ms else None

    @property
    def too_slow(self) -> bool:
        """Whether the new time is longer than allowed."""
        return self.ratio is not None and self.ratio > 1 + self.allowed


@dataclass(frozen=True)
class Comparison:
    """All rows that two reports share, and how many of each the other lacks."""

    changes: tuple[Change, ...]
    only_new: int
    only_old: int
    allowed: float

    @property
    def passed(self) -> bool:
        """Whether nothing has become slower than allowed."""
        return not any(change.too_slow for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        rows = [
            {"shape": c.new.shape, "dtype": c.new.dtype, "impl": c.new.impl, "ratio": c.ratio, "too_slow": c.too_slow}
            for c in self.changes
        ]
        return {"max_slowdown": self.allowed, "passed": self.passed, "rows": rows}


def parse_slowdown(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05. Raises UsageError for anything else."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"expected a share such as 5% or 0.05, got '{text}' (--max-slowdown)")
    return value


def read_report(path: Path) -> BenchReport:
    """An earlier report. Raises UsageError if it cannot be read or is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as e:
        raise UsageError(f"cannot read {path}: {e} (--compare)") from e
    return report_from_json(data, path)


def check_comparable(new: Setup, old: Setup) -> None:
    """Refuse what would compare apples with pears, naming both values. Raises UsageError.

    Fields that ``new`` does not know yet (its devices, before the ranks have told) are not judged.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ("backend", new.backend, old.backend),
        ("world", new.world, old.world),
        ("dtypes", ", ".join(sorted(new.dtypes)), ", ".join(sorted(old.dtypes))),
        ("caches", "warm" if new.warm else "cold", "warm" if old.warm else "cold"),
    ]
    if new.devices:
        pairs += [
            ("devices", ", ".join(sorted(set(new.devices))), ", ".join(sorted(set(old.devices)))),
            ("chip", new.chip or "unknown", old.chip or "unknown"),
            ("clock", new.clock, old.clock),
        ]
    for what, now, before in pairs:
        if now != before:
            raise UsageError(f"the reports cannot be compared: {what} {now} now, {before} then (--compare)")


def check_shared(plan: BenchPlan, old: BenchReport) -> None:
    """Refuse an earlier report that has no problem or no kind of implementation of ``plan``. Raises UsageError."""
    problems = {(f"{p.m}x{p.n}x{p.k}", p.dtype) for p, _ in plan.problems}
    if not any((r.shape, r.dtype) in problems and r.impl.startswith(plan.implementations) for r in old.rows):
        raise UsageError(NOTHING_SHARED)


def compare(new: BenchReport, old: BenchReport, allowed: float) -> Comparison:
    """Row by row, by shape, dtype and implementation. Raises UsageError if they share none, or not the setup."""
    check_comparable(new.setup, old.setup)
    before = {row.key: row for row in old.rows}
    changes = tuple(Change(row, before[row.key], allowed) for row in new.rows if row.key in before)
    if not changes:
        raise UsageError(NOTHING_SHARED)
    return Comparison(changes, len(new.rows) - len(changes), len(old.rows) - len(changes), allowed)


def print_comparison(comparison: Comparison, stream: TextIO) -> None:
    """A row for each shared row, and what it comes to."""
    rows = [
        [c.new.shape, c.new.dtype, c.new.impl, number(c.old.median_ms), number(c.new.median_ms), _ratio(c), _verdict(c)]
        for c in comparison.changes
    ]
    render_table(COLUMNS, rows, f"against the earlier report, {comparison.allowed * 100:g}% slower allowed", stream)
    slow = sum(change.too_slow for change in comparison.changes)
    parts = [f"{slow} of {len(rows)} rows slower than allowed"]
    parts += [
        f"{count} {what}"
        for count, what in ((comparison.only_new, "only now"), (comparison.only_old, "only then"))
        if count
    ]
    render_fields([("comparison", ", ".join(parts))], stream)


def _ratio(change: Change) -> str:
    return "-" if change.ratio is None else f"{change.ratio:.3f}"


def _verdict(change: Change) -> str:
    if change.ratio is None:
        return "not timed"
    return "SLOWER" if change.too_slow else "ok"
