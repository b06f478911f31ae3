"""Make the picture of docs/how-the-kernel-works.md from a trace of the simulator.

    PYTHONPATH=. python docs/make_pictures.py [FOLDER]

Two ranks run the kernel's own source on the cpu backend, each with two AI cores, and note every tile that a core copies
or multiplies and every barrier. The order of a core's work and the barriers are the trace's; how long a step takes is
not known to a simulator, so the picture counts: one unit for each communication tile and each product of two tiles, and
at a barrier all cores wait for the last one. With W ranks, A ``[M, K]`` and B ``[K, N]`` on each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agcli.launch import Job, launch
from agcli.outcome import failure
from agcli.problem import KernelConfig, Problem, make_plan
from agcli.rank import RankContext

HERE = Path(__file__).parent
PICTURE = "who-does-what-when.svg"
PROBLEM = Problem(96, 64, 64, 2)
CONFIG = KernelConfig(16, 32, 32, comm_block_m=16, comm_block_k=32, pvalue=2, transport="store")
CORES = 2
COPY, MULTIPLY, BARRIER = "copy", "multiply", "barrier"


@dataclass(frozen=True)
class Event:
    """One thing that a core did. ``rank`` is the target of a copy or the source of the rows that are multiplied."""

    kind: str
    iteration: int
    rank: int = 0
    units: int = 1


@dataclass(frozen=True)
class Span:
    """An event with its time, in units."""

    begin: int
    end: int
    event: Event


Lane = tuple[int, int, str]
"""Rank, core, and "cube", "vector0" or "vector1"."""


# -- the trace, in a rank's process --------------------------------------------------------------------------------


def trace_rank(ctx: RankContext, payload: dict[str, Any]) -> list[list[Any]]:
    """Worker function: one launch on the cpu backend; ``[[core, unit, [event, ...]], ...]``."""
    from unittest import mock

    import torch

    from agcli.backends.base import EngineOptions
    from agcli.backends.cpu import CpuBackend
    from agcli.inputs import make_inputs
    from agcli.simulator.machine import Machine

    recorder = _Recorder()
    backend = CpuBackend()
    backend.start(ctx)
    try:
        engine = backend.engine(make_plan(PROBLEM, CONFIG, backend.chip(None)), EngineOptions(cores=CORES))
        a, b = make_inputs(PROBLEM, "integers", 0, 1, ctx.rank)
        with mock.patch.multiple(Machine, on_access=recorder.access, barrier=recorder.barrier(Machine.barrier)):
            engine.run(a, b, torch.empty(PROBLEM.c_shape, dtype=a.dtype))
        engine.close()
    finally:
        backend.finish()
    return [[core, unit, [asdict(e) for e in events]] for (core, unit), events in recorder.events.items()]


class _Recorder:
    """Turns accesses into events. A copy ends with its write; a tile of C was multiplied as often as A was read."""

    def __init__(self) -> None:
        self.events: dict[tuple[int, str], list[Event]] = {}
        self._reads: dict[tuple[int, str], int] = {}
        self._source: dict[tuple[int, str], int] = {}

    def access(self, kind: str, buffer: Any, region: Any, values: Any = None) -> None:
        from agcli.simulator import context

        task = context.current()
        lane = (task.core, task.unit)
        events = self.events.setdefault(lane, [])
        passed = sum(event.kind == BARRIER for event in events)
        if task.unit != "cube" and kind == "write":
            events.append(Event(COPY, passed, buffer.rank))
        elif task.unit == "cube" and kind == "read" and buffer.symmetric:
            self._reads[lane] = self._reads.get(lane, 0) + 1
            rows = CONFIG.block_m * CONFIG.pvalue
            self._source[lane] = region.offset // PROBLEM.k // rows % PROBLEM.world
        elif task.unit == "cube" and kind == "write":
            events.append(Event(MULTIPLY, passed - 1, self._source[lane], self._reads.pop(lane)))

    def barrier(self, original: Any) -> Any:
        def noted(machine: Any, scope: str) -> None:
            from agcli.simulator import context

            task = context.current()
            events = self.events.setdefault((task.core, task.unit), [])
            events.append(Event(BARRIER, sum(event.kind == BARRIER for event in events)))
            original(machine, scope)

        return noted


# -- time ----------------------------------------------------------------------------------------------------------


def trace() -> dict[Lane, list[Event]]:
    """What every core of both ranks did, in its own order."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    world = PROBLEM.world
    results = launch(
        Job("make_pictures:trace_rank"), world=world, devices=range(world), timeout_s=60, env={"PYTHONPATH": path}
    )
    if error := failure(results):
        raise error
    return {
        (result.rank, core, unit): [Event(**event) for event in events]
        for result in results
        for core, unit, events in result.value
    }


def timed(lanes: dict[Lane, list[Event]]) -> tuple[dict[Lane, list[Span]], list[int]]:
    """Spans of every lane, and when each barrier ends: when the last lane has come to it."""
    spans: dict[Lane, list[Span]] = {lane: [] for lane in lanes}
    ends: list[int] = []
    now = 0
    for part in _between_barriers(lanes):
        latest = now
        for lane, events in part.items():
            at = now
            for event in events:
                spans[lane].append(Span(at, at + event.units, event))
                at += event.units
            latest = max(latest, at)
        now = latest
        ends.append(now)
    return spans, ends[:-1]


def _between_barriers(lanes: dict[Lane, list[Event]]) -> Iterator[dict[Lane, list[Event]]]:
    """What each lane does before the first barrier, between the first and the second, and so on."""
    count = {sum(event.kind == BARRIER for event in events) for events in lanes.values()}
    assert len(count) == 1, f"cores met {count} barriers"
    for number in range(count.pop() + 1):
        part: dict[Lane, list[Event]] = {}
        for lane, events in lanes.items():
            cuts = [-1, *(i for i, event in enumerate(events) if event.kind == BARRIER), len(events)]
            part[lane] = events[cuts[number] + 1 : cuts[number + 1]]
        yield part


# -- the picture ---------------------------------------------------------------------------------------------------

COLORS = ("#4878a8", "#d1813f", "#5b9a5b")  # of the iterations
NAMES = {"vector0": "vector 0", "vector1": "vector 1", "cube": "cube"}


def draw(spans: dict[Lane, list[Span]], barriers: list[int], path: Path) -> None:
    """One row per unit of every core, one box per copy or tile of C, one line per barrier."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    plt.rcParams.update({"svg.hashsalt": "ag-gemm", "svg.fonttype": "none", "font.size": 8})
    order = [(r, c, unit) for r in range(PROBLEM.world) for c in range(CORES) for unit in ("vector0", "cube")]
    figure, axes = plt.subplots(figsize=(10, 4.4), layout="constrained")
    for row, lane in enumerate(order):
        for span in spans[lane]:
            _box(axes, row + 0.8 * lane[0], span)
    rows = [row + 0.8 * lane[0] for row, lane in enumerate(order)]
    axes.set_yticks(rows, [f"rank {r}  core {c}  {NAMES[unit]}" for r, c, unit in order])
    axes.set_ylim(max(rows) + 0.7, -1.1)
    for number, at in enumerate(barriers):
        axes.axvline(at, ymax=0.93, color="black", linewidth=1.5)
        axes.text(at, -0.68, f"barrier {number}", ha="center", va="bottom")
    axes.set_xlim(-0.1, 0.1 + max(span.end for lane in spans.values() for span in lane))
    axes.set_xlabel("units of work: one tile of A copied, or one product of two tiles")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    handles = [Patch(color=color) for color in COLORS]
    labels = [f"iteration {i}, slot {i % CONFIG.buffer_num}" for i in range(len(COLORS))]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(COLORS), frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _box(axes: Any, row: float, span: Span) -> None:
    event = span.event
    copies = event.kind == COPY
    color = COLORS[event.iteration % len(COLORS)]
    text = f"to r{event.rank}" if copies else f"r{event.rank}'s A"
    axes.barh(
        row, span.end - span.begin, left=span.begin, height=0.8, facecolor="white" if copies else color,
        edgecolor=color if copies else "white", linewidth=1.2,
    )  # fmt: skip
    axes.text(
        (span.begin + span.end) / 2,
        row,
        text,
        ha="center",
        va="center",
        fontsize=7 if copies else 8,
        color=color if copies else "white",
    )


def main(folder: str = str(HERE)) -> None:
    """Trace, time, draw."""
    spans, barriers = timed(trace())
    path = Path(folder) / PICTURE
    draw(spans, barriers, path)
    print(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
