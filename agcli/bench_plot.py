"""A benchmark as a picture: TFLOPS per problem and implementation, with the floor that no kernel beats marked.

matplotlib is an optional dependency and is imported only here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agcli.bench_rows import BenchReport, Row
from agcli.errors import EnvironmentFault, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: distinct for all kinds of colour vision, and in grey.
PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")
BAR_INCHES = 0.22  # height of one bar
SUFFIXES = (".png", ".svg")


def check_plot(path: Path | None) -> None:
    """Refuse before the run what could not be drawn after it: an unknown kind of file, or no matplotlib."""
    if path is None:
        return
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"{path} must end in {' or '.join(SUFFIXES)} (--plot)")
    if importlib.util.find_spec("matplotlib") is None:
        raise EnvironmentFault("--plot needs matplotlib: pip install 'ag-gemm[plot]'")


def plot(report: BenchReport, path: Path) -> None:
    """Draw to ``path`` (.png or .svg). The floor is ``gemm``: the product alone, with A gathered already."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = _groups(report.rows)
    names = list(dict.fromkeys(row.impl for rows in groups.values() for row in rows if _is_bar(row)))
    bars = sum(_is_bar(row) for rows in groups.values() for row in rows)
    figure = Figure(figsize=(9, 2.2 + BAR_INCHES * (bars + 1.5 * len(groups))), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    _draw(axes, groups, names)
    axes.set_xlabel("TFLOPS per rank, 2·W·M·N·K / median time of the slowest rank")
    figure.suptitle(_title(report), fontsize=10)
    if groups:
        figure.legend(loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    try:
        figure.savefig(path, dpi=150)
    except OSError as e:
        raise EnvironmentFault(f"{path} could not be written: {e.strerror or e} (--plot)") from e


def _is_bar(row: Row) -> bool:
    return row.tflops is not None and row.impl != "gemm"


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that have a figure, by problem, in the report's order."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.tflops is not None:
            label = f"{row.shape} {row.dtype}" + (f"\n{row.name}" if row.name else "")
            groups.setdefault(label, []).append(row)
    return groups


def _draw(axes: Axes, groups: dict[str, list[Row]], names: list[str]) -> None:
    """Bars from the top down, a gap between problems, and a line across each problem at its floor."""
    place, ticks, seen = 0.0, [], set()
    for label, rows in groups.items():
        top = place
        for row in rows:
            if not _is_bar(row):
                continue
            color = PALETTE[names.index(row.impl) % len(PALETTE)]
            legend: dict[str, Any] = {} if row.impl in seen else {"label": row.impl}
            seen.add(row.impl)
            drawn = axes.barh(place, row.tflops or 0.0, height=0.85, color=color, **legend)
            axes.bar_label(drawn, fmt="%.4g", padding=3, fontsize=7)
            place += 1
        for row in rows:
            if row.impl == "gemm" and row.tflops is not None:
                legend = {} if "gemm" in seen else {"label": "gemm alone: the floor of the time"}
                seen.add("gemm")
                axes.vlines(row.tflops, top - 0.6, max(place, top + 1) - 0.4, color="black", linestyle="--", **legend)
        place = max(place, top + 1)
        ticks.append(((top + place - 1) / 2, label))
        place += 1.2
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks], fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)


def _title(report: BenchReport) -> str:
    s = report.setup
    devices = ", ".join(dict.fromkeys(s.devices))
    first = "Figures of an emulation, not of a chip" if s.emulated else "All-gather + matrix product"
    return f"{first}: {s.world} ranks, {s.backend}{f', {devices}' if devices else ''}\nag-gemm {s.tool}, {s.date}"
