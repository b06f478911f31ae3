"""Is this process one rank of a job that torchrun or Slurm started? Read from the environment; nothing is contacted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from agcli.errors import UsageError

_TORCH_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SLURM_NAMES = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID")
# Slurm numbers its own steps (batch script, interactive shell, ...) from the top of 32 bits downwards.
_SLURM_FIRST_SPECIAL_STEP = 0xFFFFFFF0
_FIRST_PORT, _PORTS = 15000, 15000  # below the ports that Linux hands out by itself (from 32768)


@dataclass(frozen=True)
class JobEnv:
    """This process's place in a job. ``rank`` counts over all nodes, ``local_rank`` on this one: the device's index."""

    kind: str  # "torchrun", "env" (the same variables, set by something else) or "slurm"
    rank: int
    world: int
    local_rank: int
    local_world: int
    master_addr: str
    master_port: int
    store_is_served: bool = False  # torchrun's agent serves the store at the master address; otherwise rank 0 has to
    attempt: int = 0  # torchrun starts all ranks again after a failure

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that made this process a rank of the job."""
        return _SLURM_NAMES if self.kind == "slurm" else _TORCH_NAMES

    @property
    def where(self) -> str:
        return f"{self.master_addr}:{self.master_port}"


def detect_job(environ: Mapping[str, str], requested_world: int | None = None) -> JobEnv | None:
    """The job that this process belongs to, or None: then it starts ranks of its own.

    ``requested_world`` is ``--world`` if given. Raises ``UsageError``, naming the variables and their values, when they
    contradict it, each other, or themselves. Incomplete sets, such as a Slurm batch shell has, are no job.
    """
    job: JobEnv | None = None
    if all(environ.get(name) for name in _TORCH_NAMES):
        job = _torch_job(environ)
    elif _is_slurm_step(environ):
        job = _slurm_job(environ)
    if job is not None and requested_world is not None and requested_world != job.world:
        found = " ".join(f"{name}={environ[name]}" for name in job.names)
        raise UsageError(
            f"--world {requested_world} contradicts the environment, by which this is rank {job.rank} of a job of "
            f"{job.world} ({found}). Inside that job leave --world out; otherwise unset these variables."
        )
    return job


def _torch_job(environ: Mapping[str, str]) -> JobEnv:
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE", least=1)
    _check_below(environ, "RANK", rank, "WORLD_SIZE", world)
    local_rank = _number(environ, "LOCAL_RANK") if "LOCAL_RANK" in environ else rank
    if "LOCAL_WORLD_SIZE" in environ:
        local_world = _number(environ, "LOCAL_WORLD_SIZE", least=1)
    elif local_rank == rank:
        local_world = world
    else:
        raise UsageError(
            f"RANK={rank} and LOCAL_RANK={local_rank} differ, so set LOCAL_WORLD_SIZE too, or unset them all"
        )
    _check_below(environ, "LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world)
    if local_world > world:
        raise UsageError(f"LOCAL_WORLD_SIZE={local_world} is more than WORLD_SIZE={world}")
    return JobEnv(
        "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "env",
        rank,
        world,
        local_rank,
        local_world,
        environ["MASTER_ADDR"],
        _port(environ),
        store_is_served=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=_number(environ, "TORCHELASTIC_RESTART_COUNT") if "TORCHELASTIC_RESTART_COUNT" in environ else 0,
    )


def _is_slurm_step(environ: Mapping[str, str]) -> bool:
    """True inside `srun`; False in a batch or interactive shell, or with variables left over from either."""
    if not all(environ.get(name) for name in _SLURM_NAMES):
        return False
    step = environ["SLURM_STEP_ID"]
    if not step.isdecimal() or int(step) >= _SLURM_FIRST_SPECIAL_STEP:
        return False
    return _number(environ, "SLURM_STEP_NUM_TASKS", least=1) > 1


def _slurm_job(environ: Mapping[str, str]) -> JobEnv:
    rank, world = _number(environ, "SLURM_PROCID"), _number(environ, "SLURM_STEP_NUM_TASKS", least=1)
    _check_below(environ, "SLURM_PROCID", rank, "SLURM_STEP_NUM_TASKS", world)
    local_rank, local_world = _number(environ, "SLURM_LOCALID"), _slurm_local_world(environ, world)
    _check_below(environ, "SLURM_LOCALID", local_rank, "SLURM_STEP_TASKS_PER_NODE", local_world)
    address = environ.get("MASTER_ADDR") or first_host(environ.get("SLURM_STEP_NODELIST", ""))
    if not address:
        raise UsageError(
            "this is a Slurm step, but neither MASTER_ADDR nor SLURM_STEP_NODELIST is set: set MASTER_ADDR"
        )
    if environ.get("MASTER_PORT"):
        port = _port(environ)
    else:
        ids = (_number(environ, "SLURM_JOB_ID") if "SLURM_JOB_ID" in environ else 0, _number(environ, "SLURM_STEP_ID"))
        port = _FIRST_PORT + (ids[0] * 131 + ids[1]) % _PORTS
    return JobEnv("slurm", rank, world, local_rank, local_world, address, port)


def _slurm_local_world(environ: Mapping[str, str], world: int) -> int:
    """This node's entry of "4(x2),3" (4, 4 and 3 tasks on three nodes); all tasks where Slurm says nothing."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if text is None:
        return world
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise UsageError(f"SLURM_STEP_TASKS_PER_NODE={text} is not a list of task counts")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environ, "SLURM_NODEID") if "SLURM_NODEID" in environ else 0
    _check_below(environ, "SLURM_NODEID", node, "SLURM_STEP_TASKS_PER_NODE", len(counts))
    return counts[node]


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``node[01-04,07],x3`` -> ``node01``; empty if there is none."""
    match = re.match(r"(?:[^,\[\]]|\[[^\]]*\])*", nodelist)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", match[0]) if match else ""


def _number(environ: Mapping[str, str], name: str, least: int = 0) -> int:
    text = environ[name].strip()
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{name}={environ[name]} is not a whole number of at least {least}: correct or unset it")
    return int(text)


def _port(environ: Mapping[str, str]) -> int:
    port = _number(environ, "MASTER_PORT", least=1)
    if port > 65535:
        raise UsageError(f"MASTER_PORT={port} is not a port (1 to 65535): correct or unset it")
    return port


def _check_below(environ: Mapping[str, str], name: str, value: int, limit_name: str, limit: int) -> None:
    if value >= limit:
        found = environ.get(limit_name, limit)
        raise UsageError(f"{name}={value} must be below {limit_name}={found} (counting from 0): correct or unset both")
