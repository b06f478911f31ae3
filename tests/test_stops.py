"""INT and TERM at any time: one line, status 130 or 143, nothing left running, and no finished result lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import is_running, wait_for

from agcli import bench_run, children, report, request, stops
from agcli.errors import EnvironmentFault, Interrupted
from agcli.main import main

ROOT = Path(__file__).parents[1]
SMALL = ("--m", "16", "--n", "16", "--k", "16", "--backend", "cpu")
STOPS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
HANGING = """#!/bin/sh
sleep 300 &
echo $$ $! >> {pids}
wait
"""


@contextlib.contextmanager
def stopped(number: int) -> Iterator[None]:
    """What is within must end by this signal."""
    with pytest.raises(Interrupted) as stop:
        yield
    assert stop.value.signum == number


class Hanging:
    """Tools that start a process and then say nothing, first on PATH."""

    def __init__(self, folder: Path) -> None:
        self._pids = folder / "pids"
        self._pids.touch()
        self.path = folder / "bin"
        self.path.mkdir()
        for name in ("npu-smi", "nvidia-smi"):
            (self.path / name).write_text(HANGING.format(pids=self._pids))
            (self.path / name).chmod(0o755)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self._pids.read_text().split()]

    def all_ended(self) -> bool:
        return wait_for(lambda: not any(map(is_running, self.pids)), 5)

    def start(self, *args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "PATH": f"{self.path}{os.pathsep}{os.environ['PATH']}"}
        command = [sys.executable, "-m", "agcli", *args]
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert wait_for(lambda: self.pids)
        return process


@pytest.fixture
def hanging(tmp_path: Path) -> Hanging:
    return Hanging(tmp_path)


# -- the program begins --------------------------------------------------------------------------------------------


def entries() -> list[str]:
    """Code for both ways in: ``python -m agcli`` and the console script."""
    found = re.search(r'^ag-gemm = "(.+):(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    module = "import runpy; runpy.run_module('agcli', run_name='__main__')"
    return [module, f"from {found[1]} import {found[2]}; {found[2]}()"]


@pytest.mark.parametrize("entry", entries(), ids=["module", "script"])
@pytest.mark.parametrize(("number", "status"), STOPS)
def test_a_signal_while_the_program_is_loaded(entry: str, number: int, status: int, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(
        f"import signal\ntry:\n    signal.raise_signal({number})\nexcept KeyboardInterrupt:\n    pass\n"
        "from no_such_module import nothing\n"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", f"import sys; sys.argv[1:] = ['doctor']; {entry}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr == f"ag-gemm: stopped by {signal.Signals(number).name}\n"


@pytest.mark.parametrize(("rank", "says"), [("0", "ag-gemm: stopped by SIGTERM\n"), ("1", "")])
def test_ranks_that_a_launcher_ends_leave_it_to_rank_0_to_say_why(rank: str, says: str) -> None:
    code = "import signal; from agcli import early; early.exit_at_once(); signal.raise_signal(signal.SIGTERM)"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "RANK": rank}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (143, says)


def test_little_is_loaded_before_signals_are_looked_after() -> None:
    code = "import sys; import agcli.__main__; print([m for m in ('typing', 'signal', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({str(ROOT)!r}); {code}"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "[]\n"


# -- what a signal does to a command -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_breaks_in_and_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stopped(number), stops.handled():
        signal.raise_signal(number)
        pytest.fail("the signal did not break in")
    assert signal.getsignal(number) is before
    assert not stops.stopping()


def test_a_second_signal_lets_clean_up_end() -> None:
    cleaned = []
    with stopped(signal.SIGTERM), stops.handled():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGINT)
            cleaned.append(True)
    assert cleaned == [True]


def test_a_signal_in_a_finalizer_comes_again(capsys: pytest.CaptureFixture[str]) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    began = time.monotonic()
    with stopped(signal.SIGINT), stops.handled():
        Finalized()
        time.sleep(20)
    assert time.monotonic() - began < 5
    assert capsys.readouterr().err == ""


def test_a_signal_that_was_caught_by_mistake_comes_again() -> None:
    began = time.monotonic()
    with stopped(signal.SIGINT), stops.handled():
        with contextlib.suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        time.sleep(20)
    assert time.monotonic() - began < 5


def test_a_signal_that_was_caught_by_mistake_counts_at_the_end() -> None:
    with stopped(signal.SIGINT), stops.handled(), contextlib.suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def test_repeated_signals_let_clean_up_end() -> None:
    with stopped(signal.SIGTERM), stops.handled():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            time.sleep(3 * stops.AGAIN_S)
            cleaned = True
    assert cleaned


def test_who_is_deaf_stays_deaf() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stops.handled():
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_held_ends_first() -> None:
    steps = []
    with stopped(signal.SIGINT), stops.handled():
        with stops.held() as caught:
            with stops.held():
                signal.raise_signal(signal.SIGINT)
            steps.append(list(caught))
        steps.append("not reached")
    assert steps == [[signal.SIGINT]]


def test_results_are_delivered_before_a_signal_counts() -> None:
    steps = []
    with stopped(signal.SIGINT), stops.until_delivered():
        with stops.held(keep=True):
            signal.raise_signal(signal.SIGINT)
        steps.append("delivered")
    assert steps == ["delivered"]


def test_before_there_are_results_a_signal_breaks_in() -> None:
    with stopped(signal.SIGINT), stops.until_delivered():
        with stops.held():
            pass
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the signal was held")


# -- other programs ------------------------------------------------------------------------------------------------


def test_a_tool_that_takes_too_long_is_ended_with_what_it_started(hanging: Hanging) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        children.run([str(hanging.path / "npu-smi")], timeout_s=1)
    assert len(hanging.pids) == 2
    assert hanging.all_ended()


def test_a_tool_gets_its_input_and_gives_its_output() -> None:
    done = children.run(["sh", "-c", "cat; echo oops >&2; exit 3"], timeout_s=10, stdin="given")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given", "oops\n")


def test_a_stop_ends_the_tools_of_all_threads(hanging: Hanging) -> None:
    statuses: list[int] = []

    def ask() -> None:
        statuses.append(children.run([str(hanging.path / "npu-smi")], timeout_s=100).returncode)

    thread = threading.Thread(target=ask)
    with stopped(signal.SIGTERM), stops.handled():
        thread.start()
        assert wait_for(lambda: hanging.pids)
        signal.raise_signal(signal.SIGTERM)
    thread.join(10)
    assert statuses == [-signal.SIGKILL]
    assert hanging.all_ended()


@pytest.mark.parametrize(("number", "status"), [*STOPS, (signal.SIGHUP, 129)])
def test_doctor_leaves_no_tool_running(number: int, status: int, hanging: Hanging) -> None:
    process = hanging.start("doctor")
    for _ in range(2):  # as `timeout` does
        process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (status, "", f"ag-gemm: stopped by {signal.Signals(number).name}\n")
    assert hanging.all_ended()


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_smoke_reports_a_stop_during_the_examination(
    number: int, status: int, hanging: Hanging, tmp_path: Path
) -> None:
    junit = tmp_path / "s.xml"
    process = hanging.start("smoke", "--backend", "cpu", "--junit", str(junit))
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    text = f"stopped by {signal.Signals(number).name}"
    assert (process.returncode, err) == (status, f"ag-gemm: {text}\n")
    assert f'<error type="ERROR" message="{text}">' in junit.read_text()
    assert text in out.splitlines()[-1]
    assert hanging.all_ended()


# -- reports -------------------------------------------------------------------------------------------------------


def signalled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, called after INT has come."""

    def call(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return function(*args)

    return call


@pytest.mark.parametrize("place", ["between", "while printing"])
def test_a_finished_verify_is_delivered(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    module, name = (request, "report_failure") if place == "between" else (report, "print_report")
    monkeypatch.setattr(module, name, signalled(getattr(module, name)))
    path = tmp_path / "v.json"
    assert main(["verify", *SMALL, "--world", "2", "--cores", "2", "--json", str(path)]) == 130
    out, err = capfd.readouterr()
    assert out.endswith("2 of 2 ranks passed\n")
    assert err == "ag-gemm: stopped by SIGINT\n"
    assert json.loads(path.read_text())["result"] == "PASS"
    assert [file.name for file in tmp_path.iterdir()] == ["v.json"]


def test_a_finished_bench_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_run, "report_failure", signalled(bench_run.report_failure))
    path = tmp_path / "b.json"
    assert main(["bench", *SMALL, "--world", "2", "--impl", "torch", "--warmup", "1", "--json", str(path)]) == 130
    out, err = capfd.readouterr()
    assert "torch" in out
    assert err == "ag-gemm: stopped by SIGINT\n"
    assert json.loads(path.read_text())["complete"] is True


def test_a_report_that_fails_and_a_stop_are_both_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise EnvironmentFault("the disk is full")

    monkeypatch.setattr("agcli.outputs.write_report", fail)
    assert main(["doctor", "--json", "x.json"]) == 143
    out, err = capfd.readouterr()
    assert "--backend auto: " in out
    assert err == "ag-gemm: error: the disk is full\nag-gemm: stopped by SIGTERM\n"


@pytest.mark.parametrize(("number", "status"), STOPS)
def test_a_report_that_nobody_takes_is_given_up_at_the_second_signal(number: int, status: int, tmp_path: Path) -> None:
    fifo = tmp_path / "report"
    os.mkfifo(fifo)
    command = [sys.executable, "-u", "-m", "agcli", "doctor", "--json", str(fifo)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()  # it prints before it writes
    time.sleep(0.5)
    process.send_signal(number)
    time.sleep(stops.PATIENCE_S + 0.5)
    assert process.poll() is None, "the first one waits for the report"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (status, f"ag-gemm: stopped by {signal.Signals(number).name}\n")
