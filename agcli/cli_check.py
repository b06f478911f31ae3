"""``ag-gemm check``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agcli import options as opt

CHECK_PANEL = "What to check"


def _number(flag: str, what: str, default: str, panel: str = opt.KERNEL_PANEL) -> Any:
    """An option of other commands with check's own default, which is small (``agcli.check.cases``)."""
    names = (flag, f"-{flag[2:].upper()}") if panel == opt.PROBLEM_PANEL else (flag,)
    return typer.Option(*names, help=f"{what}.", show_default=default, metavar="INT", rich_help_panel=panel)


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
    m: Annotated[int | None, _number("--m", "Rows of A on each rank (elements)", _SIZES, opt.PROBLEM_PANEL)] = None,
    n: Annotated[int | None, _number("--n", "Columns of B on each rank (elements)", "24", opt.PROBLEM_PANEL)] = None,
    k: Annotated[
        int | None, _number("--k", "Columns of A and rows of B on each rank (elements)", "40", opt.PROBLEM_PANEL)
    ] = None,
    dtype: opt.Dtype = opt.DtypeName.FP16,
    block_m: Annotated[int | None, _number("--block-m", "Rows of a tile of C (elements)", "16")] = None,
    block_n: Annotated[int | None, _number("--block-n", "Columns of a tile of C (elements)", "16")] = None,
    block_k: Annotated[int | None, _number("--block-k", "K of one multiplication of tiles (elements)", "16")] = None,
    comm_block_m: Annotated[
        int | None, _number("--comm-block-m", "Rows of a tile that is sent (elements)", "8")
    ] = None,
    comm_block_k: Annotated[
        int | None, _number("--comm-block-k", "Columns of a tile that is sent (elements)", "16")
    ] = None,
    pvalue: Annotated[
        int | None, _number("--pvalue", "Tile rows of A that are gathered in one iteration (count)", "2")
    ] = None,
    buffer_num: Annotated[
        int | None, _number("--buffer-num", "Slots of the symmetric buffer, at least 2 (count)", "2 and 3")
    ] = None,
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
