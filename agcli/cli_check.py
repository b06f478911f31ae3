"""``ag-gemm check``."""

from __future__ import annotations

from typing import Annotated

import typer

from agcli import options as opt

CHECK_PANEL = "What to check"


# Of the small cases that check makes (``agcli.check.cases``), as are all defaults below.
_SIZES = "25, 57, 64, 89 and 96: 1 to 3 iterations, with and without a tail"


def check(
    kernel: Annotated[
        str | None,
        typer.Option(
            metavar="FILE:NAME",
            show_default="the fused kernel of this package",
            help="An AllGather+GEMM kernel in a Python file, with parameters named like those of the fused kernel. "
            "Its device imports (triton_dist, torch_npu, ...) need not be installed.",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = None,
    launches: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="INT",
            help="Launches of each rank (count), back to back: launches of different ranks are ordered by nothing.",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = 3,
    schedules: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="INT",
            help="Further schedules (count) to try where a kernel uses signals or atomics.",
            rich_help_panel=CHECK_PANEL,
        ),
    ] = 8,
    world: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="INT", show_default="2, 3 and 4", help="Ranks (count).", rich_help_panel=CHECK_PANEL
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="INT", show_default="3", help="AI cores of each rank (count).", rich_help_panel=CHECK_PANEL
        ),
    ] = None,
    m: Annotated[int | None, opt.size("m", _SIZES)] = None,
    n: Annotated[int | None, opt.size("n", "24")] = None,
    k: Annotated[int | None, opt.size("k", "40")] = None,
    dtype: opt.Dtype = opt.DtypeName.FP16,
    block_m: Annotated[int | None, opt.tile("block_m", "16")] = None,
    block_n: Annotated[int | None, opt.tile("block_n", "16")] = None,
    block_k: Annotated[int | None, opt.tile("block_k", "16")] = None,
    comm_block_m: Annotated[int | None, opt.tile("comm_block_m", "8")] = None,
    comm_block_k: Annotated[int | None, opt.tile("comm_block_k", "16")] = None,
    pvalue: Annotated[int | None, opt.tile("pvalue", "2")] = None,
    buffer_num: Annotated[int | None, opt.tile("buffer_num", "2 and 3")] = None,
    transport: Annotated[
        opt.TransportName,
        typer.Option(
            help="How A reaches the peers: one transfer per peer (putmem) or stores of tiles (store). auto: both, one "
            "after the other. A kernel without a parameter TRANSPORT has its own way, and this means nothing to it.",
            rich_help_panel=opt.KERNEL_PANEL,
        ),
    ] = opt.TransportName.AUTO,
    json: opt.JsonPath = None,
    debug: opt.Debug = False,
) -> int:
    """Find races, deadlocks and misuse of a kernel for every legal timing, on simulated cores in this process.

    Without options the kernel is checked for worlds of 2 to 4, both transports, two and three slots, even and odd
    iteration counts, with and without tails. Sizes are small: what is found does not depend on them.
    Options that are given keep their value in all cases.
    """
    overrides = opt.kernel_options(locals())
    from agcli.outputs import check_writable, reserved_stdout

    check_writable(json, "--json")
    from agcli.backends.cpu import KERNEL_FILE, KERNEL_NAME
    from agcli.check.cases import Sweep, check_case
    from agcli.check.report import CheckReport, deliver
    from agcli.check.run import split_kernel
    from agcli.progress import progress_bar

    name = kernel or f"{KERNEL_FILE}:{KERNEL_NAME}"
    sweep = Sweep(world, m, n, k, dtype.value, cores, launches, schedules, overrides)
    checked = []
    with reserved_stdout() as stdout:
        split = split_kernel(name)
        cases = list(sweep.cases(split))
        with progress_bar("cases checked") as on_progress:
            for case in cases:
                checked.append(check_case(split, case, sweep))
                if on_progress is not None:
                    on_progress(len(checked), len(cases))
        report = CheckReport(name, sweep, tuple(checked))
        deliver(report, stdout, json)
    return report.exit_status
