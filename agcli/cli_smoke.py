"""``ag-gemm smoke``."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from agcli import options as opt


def smoke(
    world: opt.World = None,
    backend: opt.Backend = opt.BackendName.AUTO,
    devices: opt.Devices = None,
    soc: opt.Soc = None,
    timeout: opt.Timeout = 120.0,
    max_minutes: Annotated[
        float,
        typer.Option(
            metavar="MINUTES",
            rich_help_panel=opt.RUN_PANEL,
            help="End the run after this time, whatever it is doing, with exit status 3 (minutes).",
        ),
    ] = 10.0,
    json: opt.JsonPath = None,
    junit: opt.JunitPath = None,
    debug: opt.Debug = False,
) -> int:
    """Is the platform ready, and is the kernel right on it? A fixed list of problems, for CI: a minute or two.

    Examines the platform as doctor does, verifies small and odd sizes, tails in M, N and K, both transports, fp16 and
    bf16, and five launches back to back, then times one problem. The reports are written whatever happens.
    """
    from agcli import request, smoke_run
    from agcli.errors import UsageError
    from agcli.report import check_outputs

    job = request.current_job(world)
    with request.one_voice(job):
        opt.check_timeout(timeout)
        if not (math.isfinite(max_minutes) and max_minutes > 0):
            raise UsageError(f"the time must be a positive number of minutes, got {max_minutes:g} (--max-minutes)")
        chosen = opt.parse_devices(devices)
        if request.sees_reports(job):
            check_outputs(json, junit)
    options = smoke_run.SmokeOptions(backend.value, world, chosen, soc, timeout, max_minutes * 60, json, junit, debug)
    return smoke_run.run(options, job)
