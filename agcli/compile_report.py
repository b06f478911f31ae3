"""Reports of ``compile``: text for people, JSON for programs. Both say the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, TextIO

from agcli import __version__
from agcli.problem import KernelConfig, option
from agcli.screen import Column, render_fields, render_table

if TYPE_CHECKING:
    from agcli.compiler.compile import CompileReport
    from agcli.compiler.hivm import MemoryUse, Module
    from agcli.compiler.sweep import SweepRow
    from agcli.toolchain import Toolchain

SCHEMA = "ag-gemm-compile/1"
MEMORY_COLUMNS = (
    Column("memory"),
    Column("used KiB", numeric=True),
    Column("of KiB", numeric=True),
    Column("buffers"),
)
KIB = 1024


def print_report(report: CompileReport, toolchain: Toolchain, stream: TextIO) -> None:
    """What was compiled, what it uses, how it was split, whether it overlaps, and what is wrong."""
    render_fields(_header(report, toolchain), stream)
    if report.module is not None:
        render_table(MEMORY_COLUMNS, [_memory_cells(use) for use in report.module.memories], stream=stream)
        render_table(*_functions(report.module), stream=stream)
    render_fields(_findings(report), stream)
    stream.write(f"{'fits' if report.fits else 'does not fit' if report.overflows else 'FAULT'}\n")


def _header(report: CompileReport, toolchain: Toolchain) -> list[tuple[str, str]]:
    config = ", ".join(f"{name} {value}" for name, value in asdict(report.config).items())
    cores = report.module.cores if report.module else {}
    counts = ", ".join(f"{count} {kind} cores" for kind, count in cores.items())
    versions = f"triton-ascend {toolchain.triton_ascend}, ascendnpu-ir {toolchain.ascendnpu_ir}"
    return [
        ("kernel", f"{report.kernel}, {report.dtype}"),
        ("chip", f"{report.soc}, {counts}" if counts else report.soc),
        ("config", config),
        ("compilers", versions + (f", {toolchain.hivmc}" if toolchain.hivmc else "")),
        ("options", " ".join(report.options)),
    ]


def _memory_cells(use: MemoryUse) -> list[str]:
    if not use.planned:
        return [
            use.memory,
            "-",
            str(use.available // KIB),
            "not planned: the compiler's library cuts tiles to its size",
        ]
    return [use.memory, f"{use.used / KIB:g}", str(use.available // KIB), "double" if use.doubled else "single"]


def _functions(module: Module) -> tuple[list[Column], list[list[str]]]:
    """A table of the functions with a column for each kind of operation that one of them has."""
    kinds = list(dict.fromkeys(kind for function in module.functions for kind in function.operations))
    columns = [Column("function"), Column("core"), *[Column(kind, numeric=True) for kind in kinds]]
    rows = [
        [function.name, function.core, *[str(function.operations.get(kind, 0)) for kind in kinds]]
        for function in module.functions
    ]
    return columns, rows


def _findings(report: CompileReport) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    if report.module is not None and not any(fault.kind in ("overlap", "race") for fault in report.faults):
        found.append(
            ("overlap", "kept: no vector core waits for a cube core inside a loop, nor needs what one computes")
        )
    found += [("stands in", text) for text in report.stand_ins]
    found += [("note", text) for text in report.notes]
    if report.object_bytes is not None:
        found.append(("object file", f"{report.object_bytes} bytes"))
    for fault in report.faults:
        found.append((fault.kind, f"{fault.where}: {fault.message}" if fault.where else fault.message))
    return found + [("fits instead", changes(report.config, config)) for config in report.suggestions]


def changes(base: KernelConfig, config: KernelConfig) -> str:
    """The options that turn ``base`` into ``config``."""
    names = [f.name for f in fields(KernelConfig) if getattr(base, f.name) != getattr(config, f.name)]
    return " ".join(f"{option(name)} {getattr(config, name)}" for name in names)


def print_sweep(rows: Sequence[SweepRow], stream: TextIO) -> None:
    """A line per compilation, and how many fit."""
    columns = [
        Column("chip"), Column("dtype"), Column("block m,n,k"), Column("comm m,k"), Column("pvalue", numeric=True),
        Column("result"), Column("L1 KiB", numeric=True), Column("L0C KiB", numeric=True),
        Column("UB KiB", numeric=True), Column("L1 buffers"), Column("formulas"),
    ]  # fmt: skip
    render_table(columns, [_sweep_cells(row) for row in rows], stream=stream)
    fit = sum(row.report.fits for row in rows)
    disagree = sum(not row.agrees for row in rows)
    stream.write(f"{fit} of {len(rows)} fit; the product's own formulas disagree on {disagree}\n")


def _sweep_cells(row: SweepRow) -> list[str]:
    report, config = row.report, row.report.config
    uses = {use.memory: use for use in report.module.memories} if report.module else {}
    needs = {overflow.memory: overflow.needed for overflow in report.overflows}
    sizes = [uses[m].used if m in uses else needs.get(m) for m in ("L1", "L0C", "UB")]
    too_small = ", ".join(needs)
    result = "fits" if report.fits else f"{too_small} overflows" if too_small else f"{report.faults[0].kind} fault"
    buffers = ("double" if uses["L1"].doubled else "single") if uses else "-"
    return [
        report.soc,
        report.dtype,
        f"{config.block_m},{config.block_n},{config.block_k}",
        f"{config.comm_block_m},{config.comm_block_k}",
        str(config.pvalue),
        result,
        *["-" if size is None else f"{size / KIB:g}" for size in sizes],
        buffers,
        "agree" if row.agrees else "DISAGREE",
    ]


def to_json(report: CompileReport, toolchain: Toolchain) -> str:
    """One report as a JSON document."""
    return _document({"report": report.to_json()}, toolchain)


def sweep_to_json(rows: Sequence[SweepRow], toolchain: Toolchain) -> str:
    """All reports of a sweep as a JSON document."""
    return _document({"reports": [{**row.report.to_json(), "formulas_agree": row.agrees} for row in rows]}, toolchain)


def _document(content: dict[str, Any], toolchain: Toolchain) -> str:
    head = {"schema": SCHEMA, "version": __version__, "toolchain": asdict(toolchain)}
    return json.dumps({**head, **content}, indent=1) + "\n"
