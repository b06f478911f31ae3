"""``ag-gemm bench``."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from agcli import options as opt

_SHAPES, _TIMING, _REPORT = "Problems", "Timing", "Report"


class TimeName(str, Enum):
    """What is timed."""

    DEVICE = "device"
    HOST = "host"


def bench(
    world: opt.World = None,
    m: Annotated[
        str | None,
        opt.size_list("m", "Rows of A", "512,1024,2048,4096; on cpu 128,256; 4096 if --n or --k is given", _SHAPES),
    ] = None,
    n: Annotated[
        str | None, opt.size_list("n", "Columns of B", "4096; on cpu 256 if none of the three is given", _SHAPES)
    ] = None,
    k: Annotated[
        str | None,
        opt.size_list("k", "Columns of A, rows of B", "4096; on cpu 256 if none of the three is given", _SHAPES),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            show_default="none",
            rich_help_panel=_SHAPES,
            help="Column-parallel layers of well-known models, such as llama-3-70b or qwen3-32b/mlp,qwen3-32b/qkv. "
            "all takes all, list shows them. M is 128, 512, 2048, 8192 unless --m is given.",
        ),
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="none",
            rich_help_panel=_SHAPES,
            help="File with a problem a line: M N K and perhaps a name, separated by blanks or commas; # begins a "
            "comment.",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="LIST", rich_help_panel=_SHAPES, help="Element types: fp16, bf16 or fp16,bf16.")
    ] = "fp16",
    seed: opt.Seed = 0,
    impl: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            show_default="all",
            rich_help_panel=_TIMING,
            help="What to time: fused (every transport; fused-store for one), torch (all_gather, then matmul), vendor "
            "(the platform's own fused operation), gemm (matmul alone: the floor), allgather (alone).",
        ),
    ] = None,
    warm: Annotated[
        bool,
        typer.Option(
            "--warm",
            show_default="rotate sets of inputs",
            rich_help_panel=_TIMING,
            help="Give every call the same inputs, so that caches are warm.",
        ),
    ] = False,
    time: Annotated[
        TimeName,
        typer.Option(
            rich_help_panel=_TIMING,
            help="host adds the time per call of a plain Python loop that waits for the device at its end.",
        ),
    ] = TimeName.DEVICE,
    graph: Annotated[
        bool,
        typer.Option("--graph", rich_help_panel=_TIMING, help="Also time everything replayed from a captured graph."),
    ] = False,
    warmup: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="INT",
            show_default="10; 2 on cpu",
            rich_help_panel=_TIMING,
            help="Calls of each implementation before timing (count).",
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="INT",
            show_default="what --budget allows, 3 to 200",
            rich_help_panel=_TIMING,
            help="Timed calls of each implementation (count).",
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option(metavar="SECONDS", rich_help_panel=_TIMING, help="Time for the timed calls of a problem.")
    ] = 2.0,
    backend: opt.Backend = opt.BackendName.AUTO,
    devices: opt.Devices = None,
    timeout: opt.Timeout = 300.0,
    cores: opt.Cores = None,
    soc: opt.Soc = None,
    block_m: opt.BlockM = None,
    block_n: opt.BlockN = None,
    block_k: opt.BlockK = None,
    comm_block_m: opt.CommBlockM = None,
    comm_block_k: opt.CommBlockK = None,
    pvalue: opt.PValue = None,
    buffer_num: opt.BufferNum = None,
    tuned: opt.Tuned = False,
    store: opt.Store = None,
    json: opt.JsonPath = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="PATH", show_default="none", rich_help_panel=_REPORT, help="Write the rows as CSV."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            show_default="none",
            rich_help_panel=_REPORT,
            help="Draw TFLOPS to this .png or .svg; needs the extra plot.",
        ),
    ] = None,
    compare: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            show_default="none",
            rich_help_panel=_REPORT,
            help="Compare with an earlier report of --json; exit 1 if a row is slower than allowed.",
        ),
    ] = None,
    max_slowdown: Annotated[
        str, typer.Option(metavar="SHARE", rich_help_panel=_REPORT, help="How much slower a row may be, as 5% or 0.05.")
    ] = "5%",
    debug: opt.Debug = False,
) -> int:
    """Time the fused kernel beside what one would use instead, and beside the floor that no kernel beats."""
    kernel = opt.kernel_options(locals() | {"transport": None})
    from agcli import bench_run, request
    from agcli.bench_compare import parse_slowdown

    if preset == "list":
        return bench_run.list_presets(world or 1)
    job = request.current_job(world)
    with request.one_voice(job):
        opt.check_timeout(timeout)
        tuned_store = opt.tuned_store(tuned, store, kernel, {"--json": json, "--csv": csv, "--plot": plot})
        chosen = opt.parse_devices(devices)
        outputs = bench_run.Outputs(json, csv, plot, compare, parse_slowdown(max_slowdown))
        if request.sees_reports(job):
            outputs.check()
        wanted = bench_run.Wanted(m, n, k, preset, shapes, dtype, impl)
        wanted.check()
        machine = request.Machine.resolve(backend.value, world, chosen, job)
        request.check_cores(cores, machine, soc)
        plan = bench_run.make_plan(
            machine,
            wanted,
            config={name: value for name, value in kernel.items() if value is not None},
            tuned=str(tuned_store) if tuned_store is not None else None,
            soc=soc,
            cores=cores,
            budget_s=budget,
            warmup=warmup,
            iterations=iterations or 0,
            warm=warm,
            host=time is TimeName.HOST,
            graph=graph,
            seed=seed,
        )
        if request.sees_reports(job):
            outputs.check_comparable(plan)
    return bench_run.run(machine, plan, outputs, timeout, debug)
