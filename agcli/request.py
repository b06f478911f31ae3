"""What the user asked for, resolved against this machine and refused if it cannot be; and the ranks that carry it out.

Everything here happens before a rank or a device is touched. Shared by the commands that run ranks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from agcli import backends, stops
from agcli.errors import AgGemmError, EnvironmentFault, UsageError
from agcli.jobenv import JobEnv, detect_job
from agcli.launch import OnData, OnProgress, launch
from agcli.outcome import Job, RankResult, failure
from agcli.problem import KernelConfig, Plan, Problem, check_contiguous_reach, default_config, make_plan

if TYPE_CHECKING:
    from agcli.backends.base import Backend
    from agcli.join import Joined

SIZE, SIZE_ON_CPU = 4096, 512  # of M, N and K where the user names none
WORLD_ON_CPU = 2
SILENT_S = 1.0  # how long ranks with nothing to say let rank 0 say it, before torchrun ends everybody


@dataclass(frozen=True)
class Machine:
    """The platform and the devices that a command runs on. ``devices`` are those of this node's ranks."""

    backend: Backend
    world: int
    devices: tuple[int, ...]
    job: JobEnv | None = None

    @property
    def simulated(self) -> bool:
        """Whether the AI cores are simulated, so that times say nothing about hardware."""
        return self.backend.name == "cpu"

    def warnings(self) -> list[str]:
        """What readers of a report must know of this machine, a sentence each."""
        return ["AI cores are simulated: the results are the kernel's, the seconds those of this host"] * self.simulated

    @classmethod
    def resolve(cls, backend: str, world: int | None, devices: tuple[int, ...] | None, job: JobEnv | None) -> Machine:
        """Decide world and devices. UsageError if they contradict each other, EnvironmentFault if there are too few."""
        if job is None and world is not None and devices is not None and len(devices) != world:
            raise UsageError(f"--world {world} needs {world} devices, --devices names {len(devices)}")
        if job is not None and devices is not None and len(devices) != job.local_world:
            raise UsageError(f"this node has {job.local_world} ranks of the job, --devices names {len(devices)}")
        chosen = backends.get_backend(backend)
        simulated = chosen.name == "cpu"
        local = job.local_world if job else world if world is not None else len(devices) if devices else None
        if local is None:
            local = WORLD_ON_CPU if simulated else chosen.device_count()
        backends.require_devices(chosen, local, devices or ())
        return cls(chosen, job.world if job else local, devices or tuple(range(local)), job)


@contextlib.contextmanager
def one_voice(job: JobEnv | None) -> Iterator[None]:
    """Within, a UsageError, which all ranks of a job meet alike, is rank 0's to tell; the others leave in silence."""
    try:
        yield
    except UsageError as error:
        if job is None or job.rank == 0:
            raise
        stops.finish()
        time.sleep(SILENT_S)
        sys.exit(error.exit_status)


def sees_reports(job: JobEnv | None) -> bool:
    """Whether this process is on the host where reports are written: rank 0's. On others there may be no such folder.

    All ranks there judge the folders alike, so that none waits for one that was refused.
    """
    return job is None or job.rank < job.local_world


def current_job(world: int | None) -> JobEnv | None:
    """The job of torchrun or Slurm that this process is a rank of, if any; UsageError if ``--world`` contradicts it."""
    return detect_job(os.environ, world)


def sizes(m: int | None, n: int | None, k: int | None, simulated: bool) -> tuple[int, int, int]:
    """M, N and K with their defaults: small ones on simulated cores, unless the user names any of the three."""
    default = SIZE_ON_CPU if simulated and m is None and n is None and k is None else SIZE
    return tuple(default if size is None else size for size in (m, n, k))  # type: ignore[return-value]


def check_sizes(m: int | None, n: int | None, k: int | None, dtype: str, kernel: Mapping[str, Any]) -> None:
    """Refuse sizes and blocks that are wrong on any machine, before one is looked at."""
    Problem(*sizes(m, n, k, simulated=False), world=1, dtype=dtype)
    KernelConfig().with_options(**kernel)


def check_cores(cores: int | None, machine: Machine, soc: str | None) -> None:
    """Refuse a number of simulated cores where the cores are real, and more than the simulated chip has."""
    if cores is None:
        return
    if not machine.simulated:
        raise UsageError(f"--cores counts simulated cores, but those of backend {machine.backend.name} are real")
    chip = machine.backend.chip(soc)
    if chip is not None and cores > chip.cube_cores:
        raise UsageError(f"--cores {cores}: {chip.name} has {chip.cube_cores} AI cores (--soc)")


def check_host_memory(machine: Machine, plan: Plan, beside_bytes: int) -> None:
    """Refuse what all simulated ranks together cannot hold on this host, before one starts.

    ``beside_bytes`` is what a rank needs beside its symmetric memory, of which the simulator also keeps a record of one
    byte an element. Raises EnvironmentFault with both numbers. Ranks of a job check by themselves, when they allocate.
    """
    if not machine.simulated or machine.job is not None:
        return
    from agcli.simulator.heap import available_bytes

    record = plan.symmetric_bytes // plan.problem.itemsize
    need = machine.world * (plan.symmetric_bytes + record + beside_bytes)
    have = available_bytes()
    if have is not None and need > have:
        raise EnvironmentFault(
            f"{machine.world} ranks need {need} bytes on this host (symmetric memory of {plan.symmetric_bytes} bytes "
            f"each, A, B, C and the reference), and it has {have} available; lower --pvalue, --buffer-num, --block-m, "
            "--m, --n, --k or --world"
        )


def plan_for(machine: Machine, problem: Problem, kernel: Mapping[str, Any], soc: str | None) -> Plan:
    """The plan for ``problem`` on this machine's chip; ``kernel`` holds the options given, None where not given."""
    chip = machine.backend.chip(soc)
    plan = make_plan(problem, default_config(chip).with_options(**kernel), chip)
    check_contiguous_reach(plan)
    check_platform(machine.backend, plan)
    return plan


def check_platform(backend: Backend, plan: Plan) -> None:
    """Refuse what this platform's kernel cannot take, where the platform can tell. Raises UsageError."""
    check = getattr(backend, "check_plan", None)
    if check is not None:
        check(plan)


def plan_payload(plan: Plan, backend: str) -> dict[str, Any]:
    """A plan as JSON data for the ranks."""
    return {
        "backend": backend,
        "problem": asdict(plan.problem),
        "config": asdict(plan.config),
        "soc": plan.chip.name if plan.chip else None,
    }


def plan_from_payload(payload: Mapping[str, Any], backend: Backend) -> Plan:
    """The plan that ``plan_payload`` wrote, in a rank."""
    return make_plan(Problem(**payload["problem"]), KernelConfig(**payload["config"]), backend.chip(payload["soc"]))


@dataclass(frozen=True)
class Ranks:
    """What became of all ranks. Print only if ``speaks``, and end the process through ``leave``."""

    results: Sequence[RankResult]
    joined: Joined | None = None

    @property
    def speaks(self) -> bool:
        """False on the ranks of a joined job that have nothing to print."""
        return self.joined is None or self.joined.speaks

    def leave(self, status: int) -> int:
        """``status``, for the caller to return; in a joined job the process ends here, with those of all ranks."""
        if self.joined is not None:
            self.joined.leave(status)
        return status


def run_ranks(
    machine: Machine,
    job: Job,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    on_data: OnData | None = None,
) -> Ranks:
    """Run ``job`` on all ranks: in processes of their own, or in this one if it is itself a rank."""
    if machine.job is None:
        results = launch(
            job,
            world=machine.world,
            devices=machine.devices,
            timeout_s=timeout_s,
            on_progress=on_progress,
            on_data=on_data,
        )
        return Ranks(results)
    from agcli.join import run_joined

    joined = run_joined(
        job, machine.job, timeout_s=timeout_s, on_progress=on_progress, on_data=on_data, devices=machine.devices
    )
    return Ranks(joined.results, joined)


def report_failure(ranks: Ranks, timeout_s: float, debug: bool) -> AgGemmError | None:
    """If a rank ended without a value, say so on stderr, one message for one cause, and return that; else None."""
    error = failure(ranks.results, timeout_s)
    if error is None:
        return None
    if ranks.speaks:
        if debug:
            for result in ranks.results:
                print("\n".join([*result.log_lines(), *filter(None, [result.traceback])]), file=sys.stderr)
        print(f"ag-gemm: error: {error}", file=sys.stderr)
    return error
