"""Rows of a benchmark and the report they make: statistics, derived figures, JSON and back. Pure: no torch, no device.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank. Times are milliseconds of one call, on the slowest rank of
that call. FLOPs of a rank are ``2 * W * M * N * K``: what it computes, not what the job computes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from agcli import __version__
from agcli.errors import UsageError

SCHEMA = "ag-gemm-bench/1"
IMPLEMENTATIONS = ("fused", "torch", "vendor", "gemm", "allgather")
TUNED = "fused-tuned"  # the fused operation as `ag-gemm tune` found it best, beside its defaults
GRAPH = "+graph"  # suffix of an implementation replayed from a captured graph
TIMED, FAILED, ABSENT = "PASS", "FAIL", "n/a"


def quantile(values: Sequence[float], q: float) -> float:
    """The ``q`` quantile (0 to 1) with linear interpolation: ``quantile([1, 2, 3, 4], 0.5)`` is 2.5."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True)
class Row:
    """One implementation on one problem.

    ``check`` is PASS (the answer was right, so there are times), FAIL (wrong: no times) or n/a (cannot run here), with
    the reason in ``note``. ``impl`` is one of ``IMPLEMENTATIONS``, ``fused`` with its transport where a platform has
    several ("fused-store"), and "+graph" behind what was replayed from a captured graph.
    """

    m: int
    n: int
    k: int
    world: int
    dtype: str
    impl: str
    name: str = ""
    check: str = TIMED
    note: str = ""
    iterations: int = 0
    caches: str = ""  # "cold" or "warm"
    input_sets: int = 0  # sets of inputs that calls took in turn
    median_ms: float | None = None
    p10_ms: float | None = None
    p90_ms: float | None = None
    host_ms: float | None = None  # per call, of a Python loop that waits for the device at its end
    tflops: float | None = None  # per rank
    peak_share: float | None = None  # of the chip's stated peak
    speedup: float | None = None  # over torch: its median divided by this one's
    times_gemm: float | None = None  # this median divided by that of the product alone
    overlap: float | None = None  # of the smaller part: 0 one after the other, 1 the smaller part is free

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank."""
        return 2 * self.world * self.m * self.n * self.k

    @property
    def shape(self) -> str:
        """``MxNxK``."""
        return f"{self.m}x{self.n}x{self.k}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two rows of two reports comparable."""
        return (self.shape, self.dtype, self.impl)


def timed(row: Row, times_ms: Sequence[float], host_ms: float | None, peak_tflops: float | None) -> Row:
    """``row`` with what follows from its own times; ``peak_tflops`` is the chip's, None if unknown."""
    median = quantile(times_ms, 0.5)
    computes = not row.impl.startswith("allgather")
    tflops = row.flops / (median * 1e-3) / 1e12 if computes and median > 0 else None
    return replace(
        row,
        iterations=len(times_ms),
        median_ms=median,
        p10_ms=quantile(times_ms, 0.1),
        p90_ms=quantile(times_ms, 0.9),
        host_ms=host_ms,
        tflops=tflops,
        peak_share=tflops / peak_tflops if tflops is not None and peak_tflops else None,
    )


def related(rows: Sequence[Row]) -> list[Row]:
    """The rows of one problem with what follows from each other: speed-up, multiple of gemm, overlap.

    Overlap is ``(gemm + allgather - t) / min(gemm, allgather)``, of the whole operations only. gemm 3 ms, allgather
    1 ms, fused 3.25 ms: three quarters of the smaller part are hidden.
    """
    medians = {row.impl: row.median_ms for row in rows if row.median_ms}
    torch_ms, gemm_ms, gather_ms = (medians.get(impl) for impl in ("torch", "gemm", "allgather"))
    result = []
    for row in rows:
        t = row.median_ms
        whole = not row.impl.startswith(("gemm", "allgather"))
        if t:
            row = replace(
                row,
                speedup=torch_ms / t if torch_ms and whole else None,
                times_gemm=t / gemm_ms if gemm_ms else None,
                overlap=(gemm_ms + gather_ms - t) / min(gemm_ms, gather_ms)
                if gemm_ms and gather_ms and whole
                else None,
            )
        result.append(row)
    return result


@dataclass(frozen=True)
class Setup:
    """What was measured, on what, and how: all that a reader needs to believe a row or to repeat it."""

    backend: str
    world: int
    dtypes: tuple[str, ...]
    devices: tuple[str, ...] = ()  # one name per rank
    versions: dict[str, str] = field(default_factory=dict)
    emulated: bool = False
    chip: str = ""
    peak_tflops: float | None = None
    peak_source: str = ""
    warmup: int = 0
    warm: bool = False
    clock: str = ""  # what the times come from
    graph: bool = False
    seed: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    tool: str = __version__
    date: str = ""  # UTC, ISO 8601


@dataclass(frozen=True)
class BenchReport:
    """Setup and rows. ``complete`` is False when the run was stopped before all problems were done."""

    setup: Setup
    rows: tuple[Row, ...]
    complete: bool = True

    @property
    def passed(self) -> bool:
        """Whether no answer was wrong."""
        return all(row.check != FAILED for row in self.rows)

    def warnings(self) -> list[str]:
        """What a reader should know before quoting a figure, a sentence each."""
        impossible = [f"{r.shape} {r.impl}" for r in self.rows if r.peak_share is not None and r.peak_share > 1]
        if not impossible:
            return []
        peak = f"{self.setup.peak_tflops:g} TFLOPS of {self.setup.chip} ({self.setup.peak_source})"
        return [f"faster than the stated peak, {peak}; the peak or the clock is wrong: {', '.join(impossible)}"]

    def to_json(self) -> dict[str, Any]:
        """As JSON data; ``report_from_json`` is the way back."""
        setup = {**asdict(self.setup), "dtypes": list(self.setup.dtypes), "devices": list(self.setup.devices)}
        rows = [{**asdict(row), "flops_per_rank": row.flops} for row in self.rows]
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "complete": self.complete,
            "setup": setup,
            "warnings": self.warnings(),
            "rows": rows,
        }


def report_from_json(data: Any, where: str | Path) -> BenchReport:
    """The report that ``to_json`` made; unknown fields of a newer version are left out. UsageError if it is not one."""
    try:
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema is {data['schema']!r}, not {SCHEMA!r}")
        setup = Setup(**_known(Setup, {k: tuple(v) if isinstance(v, list) else v for k, v in data["setup"].items()}))
        rows = tuple(row_from_json(row) for row in data["rows"])
        _check_types(setup, rows)
        return BenchReport(setup, rows, bool(data["complete"]))
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise UsageError(f"{where} is not a report of 'ag-gemm bench --json': {type(e).__name__}: {e}") from e


def _check_types(setup: Setup, rows: Iterable[Row]) -> None:
    """What comparisons count on. Raises TypeError."""
    for name in ("dtypes", "devices"):
        values = getattr(setup, name)
        if not (isinstance(values, tuple) and all(isinstance(value, str) for value in values)):
            raise TypeError(f"{name} is {values!r}, not a list of names")
    for row in rows:
        if not all(isinstance(text, str) for text in (row.dtype, row.impl)):
            raise TypeError(f"dtype {row.dtype!r} and impl {row.impl!r} are no names")
        if not isinstance(row.median_ms, (int, float, type(None))):
            raise TypeError(f"median_ms is {row.median_ms!r}, not a number")


def row_from_json(data: Mapping[str, Any]) -> Row:
    """One row of ``to_json``."""
    return Row(**_known(Row, data))


def rows_from_json(data: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Several rows of ``to_json``."""
    return [row_from_json(row) for row in data]


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {name: value for name, value in data.items() if name in names}
