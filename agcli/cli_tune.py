"""``ag-gemm tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agcli import options as opt

_PANEL = "Problems"


def tune(
    world: opt.World = None,
    m: Annotated[
        str | None, opt.size_list("m", "Rows of A", "512,1024,2048,4096; 4096 if --n or --k is given", _PANEL)
    ] = None,
    n: Annotated[str | None, opt.size_list("n", "Columns of B", "4096", _PANEL)] = None,
    k: Annotated[str | None, opt.size_list("k", "Columns of A, rows of B", "4096", _PANEL)] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            show_default="none",
            rich_help_panel=_PANEL,
            help="Layers of well-known models, as in `ag-gemm bench --preset list`.",
        ),
    ] = None,
    shapes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="none",
            rich_help_panel=_PANEL,
            help="File with a problem a line: M N K.",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option(metavar="LIST", rich_help_panel=_PANEL, help="Element types: fp16, bf16 or fp16,bf16.")
    ] = "fp16",
    budget: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            rich_help_panel=opt.RUN_PANEL,
            help="Time to search, for all problems together (seconds). More finds more.",
        ),
    ] = 120.0,
    store: opt.Store = None,
    backend: opt.Backend = opt.BackendName.AUTO,
    devices: opt.Devices = None,
    soc: opt.Soc = None,
    timeout: opt.Timeout = 300.0,
    json: opt.JsonPath = None,
    debug: opt.Debug = False,
) -> int:
    """Search for the fastest configuration of each problem on this machine's chips, for use with --tuned.

    Every candidate must give the right answer before it is timed. Ctrl-C keeps the best so far.
    """
    from agcli import request, tune_run
    from agcli.bench_run import Wanted
    from agcli.outputs import check_distinct, check_writable
    from agcli.tuned import check_can_add, default_store

    job = request.current_job(world)
    with request.one_voice(job):
        opt.check_timeout(timeout)
        chosen = opt.parse_devices(devices)
        if request.sees_reports(job):
            check_writable(json, "--json")
        wanted = Wanted(m, n, k, preset, shapes, dtype)
        wanted.check()
        machine = request.Machine.resolve(backend.value, world, chosen, job)
        tune_run.check_measures(machine)
        path = store if store is not None else default_store()
        check_distinct({"--json": json, "--store": path})
        if request.sees_reports(job):
            check_can_add(path)
        plan = tune_run.make_plan(machine, wanted, budget, soc)
    return tune_run.run(machine, plan, path, json, timeout, debug)
