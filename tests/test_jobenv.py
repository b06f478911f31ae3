"""Joining a job of torchrun or Slurm: what the environment says, and real jobs on this host."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agcli.errors import UsageError
from agcli.jobenv import JobEnv, detect_job, first_host
from agcli.join import LEAVE_S

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "n0"}
TORCHRUN |= {"MASTER_PORT": "29500"}
SRUN = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "2"}
SRUN |= {
    "SLURM_JOB_ID": "7",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_STEP_NODELIST": "n[0-1]",
}
LEFT_OVER = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
TESTS, ROOT = str(Path(__file__).parent), str(Path(__file__).parents[1])


# -- what the environment says -------------------------------------------------------------------------------------


def test_global_rank_and_local_device_are_kept_apart() -> None:
    """Case 20."""
    assert detect_job(TORCHRUN) == JobEnv("env", 5, 8, 1, 4, "n0", 29500)
    agent = {"TORCHELASTIC_RUN_ID": "x", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert detect_job(TORCHRUN | agent, 8) == JobEnv("torchrun", 5, 8, 1, 4, "n0", 29500, True, 2)


def test_a_slurm_step() -> None:
    job = detect_job(SRUN)
    assert job is not None
    assert (job.kind, job.rank, job.world, job.local_rank, job.local_world, job.master_addr) == (
        "slurm",
        5,
        8,
        1,
        4,
        "n0",
    )
    assert 1024 < job.master_port < 32768
    assert detect_job(SRUN | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4000"}) == JobEnv(
        "slurm", 5, 8, 1, 4, "10.0.0.1", 4000
    )


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"RANK": "3", "WORLD_SIZE": "16"},
        {"SLURM_PROCID": "3", "SLURM_NTASKS": "16"},
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16", "SLURM_JOB_ID": "7"},  # sbatch
        SRUN | {"SLURM_STEP_ID": "4294967290"},  # salloc's own shell
        SRUN | {"SLURM_STEP_ID": "batch"},
        {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0"},  # srun --pty
    ],
    ids=[
        "nothing",
        "half of torchrun's",
        "left by Slurm",
        "batch shell",
        "interactive shell",
        "named step",
        "one task",
    ],
)
def test_what_is_no_job_starts_ranks_of_its_own(environ: dict[str, str]) -> None:
    """Case 22."""
    assert detect_job(environ, 2) is None
    assert detect_job(environ) is None


@pytest.mark.parametrize("environ", [LEFT_OVER, SRUN | {"SLURM_STEP_NUM_TASKS": "16"}], ids=["torchrun", "slurm"])
def test_variables_that_contradict_world_are_named_with_their_values(environ: dict[str, str]) -> None:
    """Case 22."""
    with pytest.raises(UsageError, match="--world 2 contradicts") as caught:
        detect_job(environ, 2)
    expected = (
        ("RANK=3", "WORLD_SIZE=16", "MASTER_ADDR=127.0.0.1") if "RANK" in environ else ("SLURM_STEP_NUM_TASKS=16",)
    )
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE=abc"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
        ({"RANK": "-1"}, "RANK=-1"),
        ({"RANK": "8"}, "RANK=8 must be below WORLD_SIZE=8"),
        ({"LOCAL_RANK": "4"}, "LOCAL_RANK=4 must be below LOCAL_WORLD_SIZE=4"),
        ({"LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE=9 is more than WORLD_SIZE=8"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT=65536"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_malformed_variables_are_named(changes: dict[str, str], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        detect_job(TORCHRUN | changes)


def test_missing_local_variables() -> None:
    alone = {k: v for k, v in TORCHRUN.items() if not k.startswith("LOCAL_")}
    job = detect_job(alone)
    assert job is not None
    assert (job.local_rank, job.local_world) == (5, 8)
    with pytest.raises(UsageError, match="set LOCAL_WORLD_SIZE too"):
        detect_job(alone | {"LOCAL_RANK": "1"})


def test_uneven_slurm_nodes_and_malformed_ones() -> None:
    job = detect_job(SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_STEP_NUM_TASKS": "11", "SLURM_NODEID": "2"})
    assert job is not None
    assert job.local_world == 3
    for changes in ({"SLURM_STEP_TASKS_PER_NODE": "four"}, {"SLURM_NODEID": "2"}, {"SLURM_PROCID": "8"}):
        with pytest.raises(UsageError, match=next(iter(changes))):
            detect_job(SRUN | changes)
    with pytest.raises(UsageError, match="MASTER_ADDR"):
        detect_job({k: v for k, v in SRUN.items() if k != "SLURM_STEP_NODELIST"})


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [("node[01-04,07],x3", "node01"), ("x3,node[1-2]", "x3"), ("a[2,5]b[3-4]", "a2b3"), ("one", "one"), ("", "")],
)
def test_first_host(nodelist: str, host: str) -> None:
    assert first_host(nodelist) == host


# -- real jobs on this host ----------------------------------------------------------------------------------------


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1", **(extra or {})}


def start(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(processes: list[subprocess.Popen[str]], seconds: float = 60) -> list[tuple[int, str, str]]:
    """(exit status, stdout, stderr) of each; ends what has not ended by then."""
    try:
        outputs = [p.communicate(timeout=seconds) for p in processes]
    finally:
        for p in processes:
            p.kill()
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def joined(target: str, payload: dict[str, Any], timeout_s: float) -> list[str]:
    return ["-m", "joined_main", f"launch_targets:{target}", json.dumps(payload), str(timeout_s)]


def free_port() -> int:
    """A port that was free just now: all that an outside launcher, which binds by number, can be given."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def torchrun(arguments: list[str]) -> subprocess.Popen[str]:
    return start([sys.executable, "-m", "torch.distributed.run", *arguments], environment())


_steps = itertools.count(os.getpid() * 100)


def fake_srun(target: str, payload: dict[str, Any], timeout_s: float, **extra: str) -> list[subprocess.Popen[str]]:
    world = 2
    job = {"SLURM_STEP_NUM_TASKS": str(world), "SLURM_STEP_ID": "0", "SLURM_JOB_ID": str(next(_steps))}
    job |= {"SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_STEP_TASKS_PER_NODE": str(world)}
    command = [sys.executable, *joined(target, payload, timeout_s)]
    tasks = [job | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)} for rank in range(world)]
    return [start(command, environment(task | extra)) for task in tasks]


def one_report(outputs: list[str]) -> dict[str, Any]:
    text = "".join(outputs)
    assert text.count('{"results"') == 1, text
    report: dict[str, Any] = json.loads(text)
    return report


def test_torchrun_gives_one_report() -> None:
    port = str(free_port())
    arguments = ["--nproc-per-node", "2", "--master-port", port, *joined("all_reduce", {}, 60)]
    [(status, out, err)] = finish([torchrun(arguments)])
    assert status == 0, err
    results = one_report([out])["results"]
    assert [r["value"]["sum"] for r in results] == [3.0, 3.0]
    assert len({r["value"]["run_id"] for r in results}) == 1


def test_commands_one_after_another_in_one_torchrun_job_report_their_own_results() -> None:
    """Torchrun's store outlives the processes of a rank, and all that the first command wrote into it."""
    command = " ".join(map(shlex.quote, [sys.executable, *joined("all_reduce", {}, 60)]))
    script = ["--no-python", "bash", "-c", f"{command}; {command}"]
    [(status, out, err)] = finish([torchrun(["--nproc-per-node", "2", "--master-port", str(free_port()), *script])])
    assert status == 0, err
    reports = [json.loads(line)["results"] for line in out.splitlines() if line.startswith("{")]
    assert [[r["value"]["sum"] for r in results] for results in reports] == [[3.0, 3.0]] * 2
    assert len({r["value"]["run_id"] for results in reports for r in results}) == 2  # one a command


def test_torchrun_with_two_nodes() -> None:
    port = str(free_port())
    common = ["--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port]
    nodes = [torchrun([*common, "--node-rank", str(n), *joined("describe", {}, 60)]) for n in range(2)]
    outputs = finish(nodes)
    assert [status for status, _, _ in outputs] == [0, 0], outputs
    results = one_report([out for _, out, _ in outputs])["results"]
    assert [r["value"]["place"] for r in results] == [[0, 2, 0, 1, 0], [1, 2, 0, 1, 0]]


def test_a_rank_that_raises_ends_a_torchrun_job_with_one_message() -> None:
    port = str(free_port())
    payload = {"kind": "kernel", "text": "race on slot 0", "ranks": [1]}
    arguments = ["--nproc-per-node", "2", "--master-port", port, *joined("raises", payload, 60)]
    [(status, out, err)] = finish([torchrun(arguments)])
    assert status != 0
    report = one_report([out])
    assert report["error"] == "rank 1: race on slot 0", err
    assert [r["status"] for r in report["results"]] == ["ended", "error"]


def test_a_slurm_step_gives_one_report() -> None:
    outputs = finish(fake_srun("all_reduce", {}, 60))
    assert [status for status, _, _ in outputs] == [0, 0], outputs
    assert [r["value"]["sum"] for r in one_report([out for _, out, _ in outputs])["results"]] == [3.0, 3.0]


def test_a_joined_rank_that_does_not_arrive_is_named_on_time() -> None:
    """Case 16."""
    outputs = finish(fake_srun("one_is_late", {"late": 1, "delay_s": 120}, 4))
    assert [status for status, _, _ in outputs] == [3, 3], outputs
    error = one_report([out for _, out, _ in outputs])["error"]
    assert "rank 1 did not arrive: last seen 'before launch 0'; rank 0 waited in 'launch 0'" in error


def test_a_joined_rank_that_leaves_without_a_report() -> None:
    """Case 24."""
    outputs = finish(fake_srun("leaves", {"rank": 1, "how": "sys.exit", "status": 0}, 60))
    assert [status for status, _, _ in outputs] == [3, 3], outputs
    text = "".join(out for _, out, _ in outputs)
    assert "rank 1: ended with exit status 0 before it reported" in text


def wait_until_all_sleep(folder: Path, world: int = 2) -> None:
    deadline = time.monotonic() + 60
    while len(list(folder.glob("pids-?"))) < world:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_death_of_the_rank_that_serves_the_store_is_noticed(tmp_path: Path) -> None:
    """Case 18."""
    processes = fake_srun("waits", {"folder": str(tmp_path)}, 60)
    wait_until_all_sleep(tmp_path)
    processes[0].kill()
    started = time.monotonic()
    outputs = finish(processes)
    assert time.monotonic() - started < 30
    assert outputs[1][0] == 3, outputs
    assert "the process of rank 0" in one_report([outputs[1][1]])["error"]


def test_a_joined_rank_that_gets_a_signal_removes_what_it_made(tmp_path: Path) -> None:
    """Case 23."""
    (tmp_path / "tmp").mkdir()
    payload = {"folder": str(tmp_path), "leave_files": True}
    processes = fake_srun("waits", payload, 60, TMPDIR=str(tmp_path / "tmp"))
    wait_until_all_sleep(tmp_path)
    made = {path.name for path in (tmp_path / "tmp").iterdir()}
    assert len(made) == 2
    for p in processes:
        p.terminate()
    assert [status for status, _, _ in finish(processes)] == [143, 143]
    assert not made & {path.name for folder in (tmp_path / "tmp", Path("/dev/shm")) for path in folder.iterdir()}


def test_a_signal_in_the_middle_of_torch_is_no_abort(tmp_path: Path) -> None:
    """Case 23."""
    processes = fake_srun("waits_in_torch", {"folder": str(tmp_path)}, 60)
    wait_until_all_sleep(tmp_path)
    time.sleep(0.5)
    for p in processes:
        p.terminate()
    outputs = finish(processes)
    assert [status for status, _, _ in outputs] == [143, 143], outputs
    assert "terminate called" not in "".join(err for _, _, err in outputs)


def test_a_signal_that_only_one_joined_rank_gets_ends_the_others_too(tmp_path: Path) -> None:
    """Case 23."""
    processes = fake_srun("waits", {"folder": str(tmp_path)}, 60)
    wait_until_all_sleep(tmp_path)
    processes[1].terminate()
    started = time.monotonic()
    outputs = finish(processes)
    assert time.monotonic() - started < LEAVE_S
    assert [status for status, _, _ in outputs] == [3, 143], outputs
    assert "rank 1: killed by signal 15 (SIGTERM)" in one_report([outputs[0][1]])["error"]


def test_variables_that_no_job_backs_end_within_the_timeout() -> None:
    """Case 22."""
    started = time.monotonic()
    env = environment(LEFT_OVER | {"LOCAL_WORLD_SIZE": "4"})
    [(status, out, err)] = finish([start([sys.executable, *joined("describe", {}, 2)], env)])
    assert time.monotonic() - started < 30
    assert (status, out) == (3, "")
    assert "rank 3 of 16 found no store within 2 s at 127.0.0.1:1" in err
    assert "unset RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT" in err
