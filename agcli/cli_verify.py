"""``ag-gemm verify``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import typer

from agcli import options as opt

if TYPE_CHECKING:
    from agcli.problem import Plan
    from agcli.report import VerifyReport
    from agcli.request import Machine, Ranks
    from agcli.verify import VerifyOptions


def verify(
    world: opt.World = None,
    m: opt.M = None,
    n: opt.N = None,
    k: opt.K = None,
    dtype: opt.Dtype = opt.DtypeName.FP16,
    data: opt.Data = opt.DataName.NORMAL,
    seed: opt.Seed = 0,
    repeat: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="INT",
            help="Launches (count), each with fresh inputs, back to back.",
            rich_help_panel=opt.PROBLEM_PANEL,
        ),
    ] = 1,
    rtol: Annotated[
        float | None,
        typer.Option(
            metavar="FLOAT",
            show_default="fp16 1e-3, bf16 2^-8, integers 0",
            rich_help_panel=opt.PROBLEM_PANEL,
            help="Relative tolerance, of the reference's size (no unit). 0 with --atol 0: bit-exact.",
        ),
    ] = None,
    atol: Annotated[
        float | None,
        typer.Option(
            metavar="FLOAT",
            show_default="from dtype and K; integers 0",
            rich_help_panel=opt.PROBLEM_PANEL,
            help="Absolute tolerance, in units of C.",
        ),
    ] = None,
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
    transport: opt.Transport = opt.TransportName.AUTO,
    tuned: opt.Tuned = False,
    store: opt.Store = None,
    json: opt.JsonPath = None,
    junit: opt.JunitPath = None,
    debug: opt.Debug = False,
) -> int:
    """Run the fused kernel on every rank and compare each result with PyTorch's all_gather and matmul."""
    kernel = opt.kernel_options(locals())
    from agcli import failed_run, request, stops
    from agcli.outputs import reserved_stdout
    from agcli.problem import Problem
    from agcli.progress import progress_bar
    from agcli.report import check_outputs, deliver
    from agcli.verify import VerifyOptions, make_job, operand_bytes

    job = request.current_job(world)
    with request.one_voice(job):
        opt.check_timeout(timeout)
        tuned_store = opt.tuned_store(tuned, store, kernel, {"--json": json, "--junit": junit})
        chosen = opt.parse_devices(devices)
        options = VerifyOptions(data.value, seed, repeat, rtol, atol, cores)
        request.check_sizes(m, n, k, dtype.value, kernel)
        if request.sees_reports(job):
            check_outputs(json, junit)
        machine = request.Machine.resolve(backend.value, world, chosen, job)
        request.check_cores(cores, machine, soc)
        problem = Problem(*request.sizes(m, n, k, machine.simulated), machine.world, dtype.value)
        plan = request.plan_for(machine, problem, kernel, soc)
        request.check_host_memory(machine, plan, operand_bytes(plan))
    with stops.until_delivered(), reserved_stdout() as stdout:
        with progress_bar("tiles launched and compared") as on_progress:
            ranks = request.run_ranks(machine, make_job(machine, plan, options, tuned_store), timeout, on_progress)
        error = request.report_failure(ranks, timeout, debug)
        if error is not None:
            status = error.exit_status
            if ranks.speaks:
                failed_run.deliver(
                    failed_run.FailedRun(machine.backend.name, plan, error, ranks.results), stdout, json, junit
                )
        else:
            report = _report(machine, plan, options, ranks)
            status = report.exit_status
            if ranks.speaks:
                deliver(report, stdout, json, junit)
    return ranks.leave(status)


def _report(machine: Machine, plan: Plan, options: VerifyOptions, ranks: Ranks) -> VerifyReport:
    from agcli.problem import KernelConfig
    from agcli.report import VerifyReport, versions_of
    from agcli.verdict import Verdict

    values = [result.value for result in ranks.results]
    plan = replace(plan, config=KernelConfig(**values[0]["config"]))  # with --tuned not what was asked for
    return VerifyReport(
        backend=machine.backend.name,
        plan=plan,
        tolerance=options.tolerance(plan),
        verdicts=tuple(Verdict.from_json(value["verdict"]) for value in values),
        versions=versions_of([value["describe"] for value in values]),
        options=asdict(options),
        tuned=values[0]["tuned"],
        warnings=(*machine.warnings(), *plan.warnings()),
    )
