"""``ag-gemm check``."""

from __future__ import annotations

from typing import Annotated

import typer

from agcli import options as opt

CHECK_PANEL = "What to check"


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
    m: opt.M = None,
    n: opt.N = None,
    k: opt.K = None,
    dtype: opt.Dtype = opt.DtypeName.FP16,
    block_m: opt.BlockM = None,
    block_n: opt.BlockN = None,
    block_k: opt.BlockK = None,
    comm_block_m: opt.CommBlockM = None,
    comm_block_k: opt.CommBlockK = None,
    pvalue: opt.PValue = None,
    buffer_num: opt.BufferNum = None,
    transport: opt.Transport = opt.TransportName.AUTO,
    json: opt.JsonPath = None,
    debug: opt.Debug = False,
) -> int:
    """Find races, deadlocks and misuse of a kernel for every legal timing, on simulated cores in this process.

    Without options the kernel is checked for worlds of 2 to 4, both transports, two and three slots, even and odd
    iteration counts, with and without tails. Sizes are small: what is found does not depend on them.
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
