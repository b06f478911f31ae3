"""``ag-gemm compile`` and ``ag-gemm toolchain``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from agcli import options as opt
from agcli.chips import DEFAULT_SOC

if TYPE_CHECKING:
    from agcli.compiler.compile import CompileRequest
    from agcli.toolchain import Toolchain

COMPILER_PANEL = "Compiler"


def compile_(
    soc: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHIP",
            show_default=DEFAULT_SOC,
            help="Chip to compile for; may be given several times with --sweep.",
            rich_help_panel=opt.RUN_PANEL,
        ),
    ] = None,
    dtype: opt.Dtype = opt.DtypeName.FP16,
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            show_default="the kernel of this package",
            help="Another kernel, with parameters of the same names.",
            rich_help_panel=opt.KERNEL_PANEL,
        ),
    ] = None,
    block_m: opt.BlockM = None,
    block_n: opt.BlockN = None,
    block_k: opt.BlockK = None,
    comm_block_m: opt.CommBlockM = None,
    comm_block_k: opt.CommBlockK = None,
    pvalue: opt.PValue = None,
    buffer_num: opt.BufferNum = None,
    transport: opt.Transport = opt.TransportName.AUTO,
    multibuffer: Annotated[
        bool | None,
        typer.Option(
            "--multibuffer/--no-multibuffer",
            show_default="where twice the tiles fit, as a launch does",
            help="Ask the compiler to double-buffer tiles.",
            rich_help_panel=COMPILER_PANEL,
        ),
    ] = None,
    auto_block_sync: Annotated[
        bool,
        typer.Option(
            "--auto-block-sync",
            help="Leave the compiler's own waits between cube and vector cores in (for tests: they end the overlap).",
            rich_help_panel=COMPILER_PANEL,
        ),
    ] = False,
    flag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OPTION",
            show_default="none",
            help="Another option of bishengir-compile, such as --flag=--enable-code-motion=false; may be repeated.",
            rich_help_panel=COMPILER_PANEL,
        ),
    ] = None,
    sweep: Annotated[
        bool,
        typer.Option(
            "--sweep", help="Compile many configurations around this one, in parallel.", rich_help_panel=opt.RUN_PANEL
        ),
    ] = False,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=INT,...",
            show_default="tiles, then communication tiles, then pvalue; fp16 and bf16",
            help="An axis of the sweep, such as block-k=128,256,512; several are crossed.",
            rich_help_panel=opt.RUN_PANEL,
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="none",
            help="Keep TTIR, Linalg, HIVM and the compiler's log in this folder.",
            rich_help_panel=opt.REPORT_PANEL,
        ),
    ] = None,
    json: opt.JsonPath = None,
    debug: opt.Debug = False,
) -> int:
    """Compile the kernel for an Ascend chip, without one, and report memories, cores and overlap.

    Exit status: 0 it fits and overlaps, 1 it does not, 2 wrong usage, 3 no compilers ('ag-gemm toolchain install').
    """
    kernel_options = opt.kernel_options(locals())
    from agcli.chips import chip_by_name
    from agcli.compiler.compile import CompileRequest, KernelSource
    from agcli.errors import UsageError
    from agcli.outputs import check_writable, reserved_stdout
    from agcli.problem import default_config
    from agcli.toolchain import require_toolchain

    sweep = sweep or bool(over)
    chips = [chip_by_name(name) for name in dict.fromkeys(soc or [DEFAULT_SOC])]
    if len(chips) > 1 and not sweep:
        raise UsageError("several chips are compiled for by a sweep only (--soc, --sweep)")
    if save is not None and sweep:
        raise UsageError("a sweep keeps no stages (--save, --sweep)")
    check_writable(json, "--json")
    source = KernelSource.from_option(kernel) if kernel else KernelSource()
    requests = [
        CompileRequest(
            chip=chip,
            config=default_config(chip).with_options(**kernel_options),
            dtype=dtype.value,
            kernel=source,
            multibuffer=multibuffer,
            auto_block_sync=auto_block_sync,
            flags=tuple(flag or ()),
        )
        for chip in chips
    ]
    toolchain = require_toolchain()
    with reserved_stdout() as stdout:
        if sweep:
            return _sweep(requests, over or [], toolchain, json, stdout)
        return _compile(requests[0], toolchain, save, json, stdout)


def _compile(
    request: CompileRequest, toolchain: Toolchain, save: Path | None, json: Path | None, stdout: TextIO
) -> int:
    from agcli.compile_report import print_report, to_json
    from agcli.compiler.compile import compile_kernel
    from agcli.compiler.sweep import nearest_fits
    from agcli.errors import KernelFault
    from agcli.outputs import deliver

    report = compile_kernel(request, toolchain, save)
    if report.overflows:
        report.suggestions = nearest_fits(request, report, toolchain)
    reports = [(json, lambda: to_json(report, toolchain))]
    deliver(lambda stream: print_report(report, toolchain, stream), reports, stdout)
    return 0 if report.fits else KernelFault.exit_status


def _sweep(
    bases: list[CompileRequest], over: list[str], toolchain: Toolchain, json: Path | None, stdout: TextIO
) -> int:
    from dataclasses import replace

    from agcli.compile_report import print_sweep, sweep_to_json
    from agcli.compiler.compile import KernelSource
    from agcli.compiler.sweep import configurations, parse_axis, sweep
    from agcli.errors import KernelFault
    from agcli.outputs import deliver
    from agcli.problem import ITEMSIZE
    from agcli.progress import progress_bar

    axes = [parse_axis(text) for text in over]
    requests = [
        replace(base, config=config, dtype=dtype)
        for base in bases
        for dtype in ([base.dtype] if axes else ITEMSIZE)
        for config in configurations(base.config, axes)
    ]
    with progress_bar("compilations") as on_progress:
        rows = sweep(requests, toolchain, on_progress)
    deliver(lambda stream: print_sweep(rows, stream), [(json, lambda: sweep_to_json(rows, toolchain))], stdout)
    own_kernel = bases[0].kernel == KernelSource()  # the formulas are about no other
    right = all(row.agrees or (row.only_too_large and not own_kernel) for row in rows)
    return 0 if right and any(row.report.fits for row in rows) else KernelFault.exit_status


def install(
    force: Annotated[bool, typer.Option("--force", help="Make the environment anew if there is one.")] = False,
    debug: opt.Debug = False,
) -> int:
    """Make a private environment with triton-ascend and AscendNPU-IR (about 220 MB to download, 720 MB on disk)."""
    from agcli import toolchain

    found = toolchain.install(lambda text: print(text, file=sys.stderr), force)
    _show(found)
    return 0


def status(debug: opt.Debug = False) -> int:
    """Say which compilers would be used; exit status 3 if there are none."""
    from agcli import toolchain

    _show(toolchain.require_toolchain())
    return 0


def remove(debug: opt.Debug = False) -> int:
    """Delete the private environment."""
    from agcli import toolchain
    from agcli.outputs import reserved_stdout

    place = toolchain.toolchain_dir()
    text = f"removed {place}" if toolchain.remove() else f"there is no toolchain in {place}"
    with reserved_stdout() as stdout:
        stdout.write(text + "\n")
    return 0


def _show(toolchain: Toolchain) -> None:
    from agcli.outputs import reserved_stdout
    from agcli.screen import render_fields

    origin = {"private": "made by 'ag-gemm toolchain install'", "installed": "installed beside ag-gemm"}
    fields = [
        ("toolchain", origin[toolchain.origin]),
        ("triton-ascend", f"{toolchain.triton_ascend}, {toolchain.python}"),
        ("ascendnpu-ir", f"{toolchain.ascendnpu_ir}, {toolchain.bishengir_bin}"),
        ("hivmc", toolchain.hivmc or "not found: compilation ends before the object file (it is part of CANN)"),
    ]
    with reserved_stdout() as stdout:
        render_fields(fields, stdout)
