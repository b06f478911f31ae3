"""The launcher with real processes and real signals. No device is needed; only few ranks load torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_for

from agcli.errors import EnvironmentFault, KernelFault, UsageError
from agcli.launch import Interrupted, Job, RankResult, failure, launch, rank_names

TESTS = str(Path(__file__).parent)
ROOT = str(Path(__file__).parents[1])


def run(target: str, payload: dict[str, Any] | None = None, world: int = 2, **options: Any) -> list[RankResult]:
    options = {"timeout_s": 60.0, "devices": list(range(world)), **options}
    env = {"PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}", **options.pop("env", {})}
    return launch(Job(f"launch_targets:{target}", payload or {}), world=world, env=env, **options)


def read_pids(folder: Path, world: int, seconds: float = 30.0) -> list[int]:
    """The processes of the target `waits`, first all of rank 0, then those of rank 1, ..."""
    files = [folder / f"pids-{rank}" for rank in range(world)]
    assert wait_for(lambda: all(f.exists() for f in files), seconds)
    return [int(pid) for f in files for pid in f.read_text().split()]


def leftovers() -> set[str]:
    return {
        f"{folder}/{name}"
        for folder in ("/dev/shm", tempfile.gettempdir())
        for name in os.listdir(folder)
        if name.startswith(f"agcli-{os.getpid()}-")
    }


# -- what ranks are given, and what comes back ---------------------------------------------------------------------


def test_results_come_in_rank_order_from_a_clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "SLURM_PROCID": "3"}
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before, fds = dict(os.environ), len(os.listdir("/proc/self/fd"))
    results = run("describe", {"a": [1, None]}, world=3, devices=[4, 2, 0], env={"EXTRA": "yes"})
    assert [r.status for r in results] == ["ok"] * 3
    assert failure(results) is None
    values = [r.value for r in results]
    assert [v["place"] for v in values] == [[0, 3, 0, 3, 4], [1, 3, 1, 3, 2], [2, 3, 2, 3, 0]]
    assert len({v["run_id"] for v in values}) == 1
    for value in values:
        assert value["payload"] == {"a": [1, None]}
        assert value["stdin"] == ""
        assert [value["env"][name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID")] == [None] * 4
        assert int(value["env"]["OMP_NUM_THREADS"]) >= 1
        assert value["env"]["EXTRA"] == "yes"
    assert dict(os.environ) == before
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_file_of_the_working_directory_is_not_taken_for_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks import what their parent does."""
    for name in ("random.py", "torch.py", "agcli.py"):
        (tmp_path / name).write_text("raise SystemExit('taken')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])  # a path that is no text, which imports pass over
    results = run("describe", {}, world=2)
    assert [r.status for r in results] == ["ok"] * 2, results


def test_what_ranks_print_is_no_message_and_progress_is_summed() -> None:
    calls: list[tuple[int, int]] = []
    results = run("chatty", on_progress=lambda done, total: calls.append((done, total)))
    assert [r.value for r in results] == ["true", "true"]
    assert calls[-1] == (2000, 2000)
    assert len(calls) < 100
    assert '[rank 1] {"type": "result", "value": "forged"}' in results[1].log_lines()
    assert "[rank 1] a line on stderr" in results[1].log_lines()


def test_ranks_publish_data_before_they_have_a_result() -> None:
    rows: list[tuple[int, Any]] = []
    results = run("publishes", on_data=lambda rank, data: rows.append((rank, data)))
    assert failure(results) is None
    assert sorted(rows, key=lambda r: r[0]) == [(0, {"row": 0}), (1, {"row": 1})]


def test_process_group_is_created_once_even_when_the_store_comes_late() -> None:
    results = run("all_reduce", {"late": 0, "delay_s": 2})
    assert [(r.value["sum"], r.value["created"], r.value["again"]) for r in results] == [(3.0, True, False)] * 2
    assert all(r.value["collects"] for r in results)  # loading torch went without; what follows does not


@pytest.mark.slow
def test_runs_at_once_see_only_themselves() -> None:
    """Case 17."""
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda i: run("meets", {"name": f"run {i}"}), range(4)))
    for i, results in enumerate(runs):
        assert [r.value for r in results] == [[f"run {i}"] * 2] * 2, failure(results)


def test_the_parent_loads_no_torch() -> None:
    code = "import sys, agcli.launch, agcli.jobenv, agcli.join; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


# -- ranks that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "error"), [("usage", UsageError), ("kernel", KernelFault)])
def test_one_message_for_one_cause_with_the_exit_status_of_its_class(kind: str, error: type[Exception]) -> None:
    """Case 29."""
    results = run("raises", {"kind": kind, "text": "L0C: needed 2, available 1"}, world=4)
    found = failure(results)
    assert type(found) is error
    assert str(found) == "ranks 0-3: L0C: needed 2, available 1"
    assert "launch_targets.py" in results[0].traceback


def test_memory_that_does_not_suffice_comes_with_advice() -> None:
    error = failure(run("wants_too_much"))
    assert isinstance(error, EnvironmentFault)
    assert str(error).startswith("ranks 0-1: not enough memory; lower --m, --n, --k or --world (RuntimeError: ")


def test_an_unforeseen_exception_names_its_type_and_ends_the_others() -> None:
    started = time.monotonic()
    results = run("raises", {"kind": "value", "text": "odd", "ranks": [1]}, world=3)
    assert time.monotonic() - started < 30
    assert [r.status for r in results] == ["ended", "error", "ended"]
    assert type(failure(results)) is EnvironmentFault
    assert str(failure(results)) == "rank 1: ValueError: odd"


def test_a_value_that_is_no_json_is_an_error() -> None:
    assert "TypeError" in str(failure(run("not_json")))


def test_a_wrong_verdict_is_a_result_like_any_other() -> None:
    """Case 19."""
    results = run("verdicts", world=4)
    assert [r.value["passed"] for r in results] == [True, False, True, True]
    assert failure(results) is None


@pytest.mark.parametrize("how", ["sys.exit", "os._exit"])
def test_leaving_without_a_report_is_a_failure_even_with_status_0(how: str) -> None:
    """Case 24."""
    results = run("leaves", {"rank": 1, "how": how, "status": 0}, world=3)
    assert [r.status for r in results] == ["ended", "exited", "ended"]
    assert results[1].exit_code == 0
    assert results[1].log_lines() == ["[rank 1] last words of 1"]
    found = failure(results)
    assert found is not None
    assert found.exit_status == 3
    assert str(found).startswith("rank 1: ended with exit status 0 before it reported")


def test_a_wrong_exit_status_counts_even_after_a_report() -> None:
    results = run("wrong_exit")
    assert [r.status for r in results] == ["ok", "exited"]
    assert "exit status 7 after it had reported" in str(failure(results))


def test_a_killed_rank_is_named_and_deaf_ranks_with_children_are_ended(tmp_path: Path) -> None:
    """Case 18."""
    payload = {"folder": str(tmp_path), "deaf": True, "child": True, "leave_files": True}
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(run, "waits", payload, world=3)
        pids = read_pids(tmp_path, 3)
        os.kill(pids[4], signal.SIGKILL)  # the process of rank 2
        started = time.monotonic()
        results = future.result(timeout=60)
    assert time.monotonic() - started < 30
    assert [r.status for r in results] == ["ended", "ended", "killed"]
    assert results[2].signal == 9
    assert "rank 2: killed by signal 9 (SIGKILL)" in str(failure(results))
    assert wait_for(lambda: not any(is_running(pid) for pid in pids), 5)
    assert leftovers() == set()


def test_what_other_ranks_say_after_a_death_is_not_the_cause() -> None:
    cut = RankResult(0, "error", message="RuntimeError: Connection closed by peer", error_kind=3, order=0)
    killed = RankResult(1, "killed", message="killed by signal 9", error_kind=3, order=1, specific=True)
    ended = RankResult(2, "ended", message="ended", error_kind=3)
    assert str(failure([cut, killed, ended])) == "rank 1: killed by signal 9"


def test_a_rank_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentFault, match="cannot start rank 0 of 2"):
        run("describe")
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_fault_in_the_callback_ends_the_ranks() -> None:
    def fail(done: int, total: int) -> None:
        raise BrokenPipeError("nobody reads the progress bar")

    with pytest.raises(BrokenPipeError):
        run("chatty", on_progress=fail)


def test_devices_must_match_the_world() -> None:
    with pytest.raises(ValueError, match="one device per rank"):
        launch(Job("launch_targets:describe"), world=2, devices=[0], timeout_s=1)


def test_rank_names() -> None:
    assert [rank_names(r) for r in ([3], [0, 1], [0, 2, 3, 4, 9])] == ["rank 3", "ranks 0-1", "ranks 0, 2-4, 9"]


# -- timeouts ------------------------------------------------------------------------------------------------------


def test_a_timeout_names_who_did_not_arrive_and_where_the_others_wait() -> None:
    """Case 16."""
    started = time.monotonic()
    results = run("one_is_late", {"late": 1, "delay_s": 120}, world=3, timeout_s=4)
    assert 4 <= time.monotonic() - started < 30
    assert [r.status for r in results] == ["timeout"] * 3
    text = str(failure(results, 4))
    assert "no rank made progress for 4 s: rank 1 did not arrive: last seen 'before launch 0'" in text
    assert "ranks 0, 2 waited in 'launch 0'" in text


def test_progress_of_one_rank_keeps_all_alive() -> None:
    """Case 16."""
    results = run("steady", {"steps": 20, "step_s": 0.25}, timeout_s=3.5)
    assert failure(results) is None


# -- signals to the parent -----------------------------------------------------------------------------------------

PARENT = """
import signal, sys
from agcli.launch import Interrupted, Job, launch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may have begun deaf
before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
job = Job("launch_targets:waits", {"folder": sys.argv[1], "deaf": True, "child": True, "leave_files": True})
print("go", flush=True)
try:
    launch(job, world=3, devices=[0, 1, 2], timeout_s=60)
except Interrupted as e:
    assert before == (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    print("interrupted by", e.signum, flush=True)
    sys.exit(130)
"""


def start_parent(folder: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}", "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    command = [sys.executable, "-c", PARENT, str(folder)]
    parent = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "go\n"
    return parent


@pytest.mark.parametrize("signals", [["SIGINT"], ["SIGTERM"], ["SIGINT", "SIGINT"]], ids="-".join)
def test_signals_to_the_parent_leave_nothing_behind(tmp_path: Path, signals: list[str]) -> None:
    """Case 23."""
    parent = start_parent(tmp_path)
    pids = read_pids(tmp_path, 3)
    started = time.monotonic()
    for name in signals:
        parent.send_signal(signal.Signals[name])
        time.sleep(0.4)
    out, err = parent.communicate(timeout=30)
    assert time.monotonic() - started < 10
    assert (parent.returncode, out, err) == (130, f"interrupted by {signal.Signals[signals[0]].value}\n", "")
    assert wait_for(lambda: not any(is_running(pid) for pid in pids), 5)
    assert os.listdir(tmp_path / "tmp") == []
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"agcli-{parent.pid}-")]


@pytest.mark.parametrize("delay_s", [0.001, 0.02, 0.1])
def test_a_signal_while_ranks_start(tmp_path: Path, delay_s: float) -> None:
    """Case 23."""
    parent = start_parent(tmp_path)
    time.sleep(delay_s)
    parent.send_signal(signal.SIGINT)
    out, _ = parent.communicate(timeout=30)
    assert parent.returncode != 0
    if out:  # otherwise the signal came before launch() was entered
        assert (parent.returncode, out) == (130, "interrupted by 2\n")
    started = [int(pid) for f in tmp_path.glob("pids-*") for pid in f.read_text().split()]
    assert wait_for(lambda: not any(is_running(pid) for pid in started), 5)
    assert os.listdir(tmp_path / "tmp") == []


def test_ranks_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent = start_parent(tmp_path)
    ranks = read_pids(tmp_path, 3)[::2]
    parent.kill()
    parent.communicate(timeout=30)
    try:
        assert wait_for(lambda: not any(is_running(pid) for pid in ranks), 10)
    finally:
        for pid in read_pids(tmp_path, 3)[1::2]:  # children of the ranks outlive them here: end what this test started
            os.kill(pid, signal.SIGKILL)
        for file in Path("/dev/shm").glob(f"agcli-{parent.pid}-*"):
            file.unlink()


def test_interrupted_is_a_keyboard_interrupt_that_knows_its_signal() -> None:
    assert issubclass(Interrupted, KeyboardInterrupt)
    assert str(Interrupted(signal.SIGTERM)) == "stopped by SIGTERM"
