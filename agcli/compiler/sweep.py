"""Many compilations: over configurations, types and chips; and near a configuration that does not fit, some that do."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace

from agcli.compiler.compile import CompileReport, CompileRequest, compile_kernel
from agcli.errors import UsageError
from agcli.problem import (
    FRACTAL,
    ITEMSIZE,
    KernelConfig,
    doubled_memories,
    memory_sizes,
    single_buffered,
    tile_memory,
)
from agcli.toolchain import Toolchain

# What to halve when a memory is too small: the fields that make its tiles large.
_FIELDS = {
    "L1": ("block_k", "block_m", "block_n"),
    "L0C": ("block_n", "block_m"),
    "UB": ("comm_block_m", "comm_block_k"),
}
MAX_HALVINGS = 5
MAX_TRIES = 6
# The default sweep, as groups that are crossed within and varied one group at a time.
_DEFAULT_GROUPS: tuple[dict[str, tuple[int, ...]], ...] = (
    {"block_m": (64, 128, 256), "block_n": (128, 256), "block_k": (128, 256, 512)},
    {"comm_block_m": (20, 64, 128), "comm_block_k": (256, 512, 1024)},
    {"pvalue": (1, 2, 4, 8)},
)
AXES = ("block_m", "block_n", "block_k", "comm_block_m", "comm_block_k", "pvalue")


@dataclass(frozen=True)
class SweepRow:
    """A compilation, and whether the product's own formulas say the same (agcli.problem)."""

    request: CompileRequest
    report: CompileReport

    @property
    def agrees(self) -> bool:
        """Whether formulas and compiler refuse the same by the same bytes, or plan the same bytes and buffers.

        The compiler names only the first full memory of each core.
        """
        expected = excess(self.request)
        if self.report.overflows:
            found = {overflow.memory: overflow.needed - overflow.available for overflow in self.report.overflows}
            return found.items() <= expected.items()
        return self.report.fits and not expected and planned(self.report) == expected_plan(self.request)

    @property
    def only_too_large(self) -> bool:
        """Whether it fits or has nothing wrong but its size."""
        return all(fault.kind == "memory" for fault in self.report.faults)


def planned(report: CompileReport) -> dict[str, int]:
    """Bytes by memory, as the compiler planned them."""
    return {use.memory: use.used for use in report.module.memories if use.planned} if report.module else {}


def expected_plan(request: CompileRequest) -> dict[str, int]:
    """Bytes by memory, as the formulas of agcli.problem have them."""
    itemsize = ITEMSIZE[request.dtype]
    doubles = request.double_buffers() and single_buffered(request.config, itemsize, request.chip) is None
    doubled = doubled_memories(request.chip) if doubles else ()
    need = tile_memory(request.config, itemsize)
    return {memory: size * (2 if memory in doubled else 1) for memory, size in need.items()}


def excess(request: CompileRequest) -> dict[str, int]:
    """Bytes too many by memory, from the formulas of agcli.problem."""
    need = tile_memory(request.config, ITEMSIZE[request.dtype])
    return {name: need[name] - have for name, have in memory_sizes(request.chip).items() if need[name] > have}


def parse_axis(text: str) -> tuple[str, tuple[int, ...]]:
    """``block-k=128,256`` -> ``("block_k", (128, 256))``. Raises UsageError."""
    name, _, values = text.partition("=")
    axis = name.strip().lstrip("-").replace("-", "_")
    numbers = [value.strip() for value in values.split(",")]
    if axis not in AXES or not all(number.isdecimal() for number in numbers):
        known = ", ".join(name.replace("_", "-") for name in AXES)
        raise UsageError(f"a sweep axis is NAME=INT,INT,... with a name of {known}; got '{text}' (--over)")
    return axis, tuple(int(number) for number in numbers)


def configurations(base: KernelConfig, axes: Iterable[tuple[str, tuple[int, ...]]] = ()) -> list[KernelConfig]:
    """The product of ``axes`` around ``base``; without axes the default sweep. Raises UsageError for a bad value."""
    chosen = dict(axes)
    groups: Sequence[dict[str, tuple[int, ...]]] = [chosen] if chosen else _DEFAULT_GROUPS
    found: dict[KernelConfig, None] = {}
    for group in groups:
        for values in itertools.product(*group.values()):
            found[base.with_options(**dict(zip(group, values)))] = None
    return list(found)


def sweep(
    requests: Sequence[CompileRequest], toolchain: Toolchain, on_progress: Callable[[int, int], None] | None = None
) -> list[SweepRow]:
    """Compile all, as many at a time as there are cores; rows come back in the order of the requests."""
    rows: list[SweepRow | None] = [None] * len(requests)
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        futures = {pool.submit(compile_kernel, request, toolchain): i for i, request in enumerate(requests)}
        for done, future in enumerate(as_completed(futures), 1):
            index = futures[future]
            rows[index] = SweepRow(requests[index], future.result())
            if on_progress:
                on_progress(done, len(requests))
    finally:
        pool.shutdown(cancel_futures=True)
    return [row for row in rows if row is not None]


def nearest_fits(
    request: CompileRequest, report: CompileReport, toolchain: Toolchain, count: int = 2
) -> list[KernelConfig]:
    """Up to ``count`` configurations near the request's that fit, each compiled to be sure.

    Near means few halvings of the blocks that fill the memories which overflow.
    """
    request = replace(request, config=request.decided())
    memories = {overflow.memory for overflow in report.overflows} | set(excess(request))
    fields = [name for memory, names in _FIELDS.items() if memory in memories for name in names]
    if "UB" in memories and "UB" not in excess(request):
        fields += ["block_m", "block_n"]  # not the communication tile: the kernel has blocks of C on the vector cores
    found: list[KernelConfig] = []
    for config in itertools.islice(_smaller(request.config, list(dict.fromkeys(fields)), request), MAX_TRIES):
        if compile_kernel(replace(request, config=config), toolchain).fits:
            found.append(config)
            if len(found) == count:
                break
    return found


def _smaller(config: KernelConfig, fields: list[str], request: CompileRequest) -> list[KernelConfig]:
    """Configurations with some of ``fields`` halved that the formulas allow, the least changed first."""
    candidates: dict[KernelConfig, int] = {}
    for halvings in itertools.product(range(MAX_HALVINGS + 1), repeat=len(fields)):
        values = {name: _halved(getattr(config, name), times, name) for name, times in zip(fields, halvings)}
        if sum(halvings) and all(values.values()):
            candidate = config.with_options(**values)
            if not excess(replace(request, config=candidate)):
                candidates.setdefault(candidate, sum(halvings))
    return sorted(candidates, key=lambda candidate: candidates[candidate])


def _halved(value: int, times: int, name: str) -> int | None:
    """``value`` halved, as a multiple of what the field needs; None if nothing is left."""
    unit = 1 if name == "comm_block_m" else FRACTAL
    smaller = value >> times
    return (smaller - smaller % unit if times else value) or None
