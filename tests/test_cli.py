"""The command line: what is refused before a process starts, exit statuses, streams, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agcli
from agcli import request, verify
from agcli.backends.base import Need
from agcli.chips import Chip
from agcli.errors import EnvironmentFault
from agcli.main import app, main
from agcli.options import parse_devices

TESTS = Path(__file__).parent
SMALL = ("--m", "40", "--n", "24", "--k", "48", "--block-m", "16", "--block-n", "16", "--pvalue", "1", "--cores", "2")
WORLD_2 = ("verify", "--backend", "cpu", "--world", "2", *SMALL)


class FakeNpu:
    """The parent's view of a server with two devices; nothing can be started on it."""

    name = "npu"

    def needs(self) -> list[Need]:
        return [Need("devices", True, "2 devices, ASCEND_RT_VISIBLE_DEVICES=0,1")]

    def device_count(self) -> int:
        return 2

    def chip(self, soc: str | None) -> Chip | None:
        return None


@pytest.fixture
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a rank fails the test."""

    def launch(*args: Any, **kw: Any) -> None:
        pytest.fail("a rank was started")

    monkeypatch.setattr(request, "launch", launch)


@pytest.fixture
def two_npus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agcli.backends.get_backend", lambda name: FakeNpu())


def command(*args: str, target: str = "agcli.verify:run_rank") -> list[str]:
    """A command line that runs ``ag-gemm`` with another rank function."""
    code = f"from agcli import main, verify; verify.RANK_TARGET = {target!r}; main.run()"
    return [sys.executable, "-c", code, *args]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), **more}


def run(*args: str, target: str = "agcli.verify:run_rank", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args, target=target), env=environment(**env), capture_output=True, text=True, timeout=120, check=False
    )


def one_error(text: str) -> str:
    """The one line of an error message."""
    (line,) = text.splitlines()
    assert line.startswith("ag-gemm: error: ")
    return line


# -- help --------------------------------------------------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ag-gemm {agcli.__version__}\n"


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    for args in (["--help"], ["verify", "--help"]):
        code = (
            f"import sys; from agcli.main import main; status = main({args!r}); "
            "print([m for m in ('torch', 'triton', 'numpy', 'torch_npu') if m in sys.modules]); sys.exit(status)"
        )
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
        )
        assert done.stdout.splitlines()[-1] == "[]"
        assert time.perf_counter() - began < 5  # 0.3 s on an idle machine


@pytest.mark.parametrize("command", ["verify", "bench", "tune"])
def test_sizes_have_a_name_that_torchrun_does_not_take(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--backend", "cpu", "-M", "0", "-N", "8", "-K", "8"]) == 2
    assert "got 0" in capsys.readouterr().err


def test_every_option_has_help_and_names_its_default() -> None:
    from typer.main import get_command

    for command in get_command(app).commands.values():  # type: ignore[attr-defined]
        for parameter in command.params:
            text = getattr(parameter, "help", "")
            assert text, (command.name, parameter.name)
            assert parameter.is_flag or parameter.show_default, (command.name, parameter.name)
            assert "[" not in text, "what stands in brackets is taken for markup and not shown"


def test_python_m_agcli() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agcli", "verify", "--m", "0"],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert one_error(done.stderr) == "ag-gemm: error: M must be at least 1, got 0 (--m)"


@pytest.mark.parametrize(("args", "commands"), [([], "verify, bench, "), (["toolchain"], "install, status, remove.")])
def test_a_missing_command_is_one_line_with_those_there_are(
    args: list[str], commands: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == ""
    message = one_error(err)
    assert message.startswith(f"ag-gemm: error: Missing command, one of {commands}")
    assert message.endswith(f" Try '{' '.join(['ag-gemm', *args])} --help'.")


# -- standard streams --------------------------------------------------------------------------------------------


def redirected(redirection: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A command under a shell's redirection."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", *command(*args)]
    return subprocess.run(line, env=environment(**env), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", ["--help", "--version", "doctor", "bench --preset list"])
def test_a_stdout_that_takes_no_more_is_one_error(args: str, unbuffered: str) -> None:
    done = redirected(">/dev/full", *args.split(), PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 3
    assert one_error(done.stderr) == "ag-gemm: error: stdout could not be written: No space left on device"


def test_a_closed_stdout_is_refused() -> None:
    done = redirected(">&-", *WORLD_2)
    assert done.returncode == 3
    assert one_error(done.stderr).startswith("ag-gemm: error: stdout is closed; send it to /dev/null")


def test_closed_streams_that_no_report_needs_are_no_error() -> None:
    done = redirected("<&- 2>&-", "doctor", "--backend", "cpu", "--json", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["schema"] == "ag-gemm-doctor/1"


# -- refused before a process starts -----------------------------------------------------------------------------


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("", "Missing command"),
        ("verfy", "No such command"),
        ("verify --world two", "two"),
        ("verify --world 0", "got '0'"),
        ("verify --wrold 2", "No such option"),
        ("verify --dtype fp8", "'--dtype'"),
        ("verify --m 0", "M must be at least 1, got 0 (--m)"),
        ("verify --n 0", "N must be at least 1, got 0 (--n)"),
        ("verify --k 0", "K must be at least 1, got 0 (--k)"),
        ("verify --m -5", "M must be at least 1, got -5"),
        ("verify --block-n 24", "--block-n"),
        ("verify --block-m 0", "--block-m"),
        ("verify --block-m -16", "--block-m"),
        ("verify --buffer-num 1", "--buffer-num"),
        ("verify --backend cpu --block-m 256 --block-n 256", "L0C of Ascend910B3 is too small"),
        ("verify --backend cpu --comm-block-m 400 --comm-block-k 512", "UB of Ascend910B3 is too small"),
        ("verify --backend cpu --soc Ascend310", "unknown chip"),
        ("verify --timeout 0", "--timeout"),
        ("verify --timeout nan", "--timeout"),
        ("verify --rtol -1", "--rtol"),
        ("verify --atol inf", "--atol"),
        ("verify --repeat 0", "'--repeat'"),
        ("verify --devices 0,0", "device 0 is named twice"),
        ("verify --devices 0,x", "not a device index"),
        ("verify --devices 3-1", "not a device index"),
        ("verify --world 3 --devices 0,1", "--world 3 needs 3 devices, --devices names 2"),
        ("verify --json /nonexistent/report.json", "there is no directory /nonexistent"),
        ("verify --json - --junit -", "--json and --junit both name stdout"),
        ("verify --junit /", "is a directory (--junit)"),
    ],
)
def test_bad_input_is_refused_with_one_message(args: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in one_error(err)


@pytest.mark.usefixtures("no_ranks", "two_npus")
@pytest.mark.parametrize(
    ("args", "says"), [("--world 4", "4 npu devices wanted"), ("--devices 0,2", "there is no npu device 2")]
)
def test_case_21_more_ranks_than_devices(args: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backend", "npu", *args.split()]) == 3
    message = one_error(capsys.readouterr().err)
    assert says in message
    assert "2 devices, ASCEND_RT_VISIBLE_DEVICES=0,1" in message


@pytest.mark.usefixtures("no_ranks")
def test_a_chip_has_no_more_cores_than_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backend", "cpu", "--cores", "21"]) == 2
    assert "--cores 21: Ascend910B3 has 20 AI cores" in one_error(capsys.readouterr().err)


@pytest.mark.usefixtures("no_ranks", "two_npus")
def test_real_cores_cannot_be_counted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--cores", "4"]) == 2
    assert "--cores" in one_error(capsys.readouterr().err)


@pytest.mark.usefixtures("no_ranks")
def test_case_21_no_npu_is_never_a_pass_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    if os.path.exists("/dev/davinci0"):
        pytest.skip("there is an NPU here")
    assert main(["verify", "--world", "2", "--backend", "npu"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("ag-gemm: error: backend npu is not ready")


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
        {
            "SLURM_PROCID": "3",
            "SLURM_LOCALID": "3",
            "SLURM_STEP_NUM_TASKS": "16",
            "SLURM_STEP_ID": "0",
            "MASTER_ADDR": "x",
        },
    ],
    ids=["torchrun", "Slurm"],
)
def test_case_22_left_over_variables_are_named(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(list(WORLD_2)) == 2
    message = one_error(capsys.readouterr().err)
    assert "--world 2 contradicts the environment" in message
    assert ("RANK=3 WORLD_SIZE=16" in message) != ("SLURM_PROCID=3" in message)


@pytest.mark.usefixtures("no_ranks")
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_rank_that_writes_nothing_does_not_ask_for_the_folder(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On other nodes than rank 0's there may be none."""

    def run_joined(*args: Any, **kw: Any) -> None:
        raise EnvironmentFault("would join")

    monkeypatch.setattr("agcli.join.run_joined", run_joined)
    job = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in (job | {"LOCAL_WORLD_SIZE": "2"}).items():
        monkeypatch.setenv(name, value)
    assert main([command, "--backend", "cpu", *SMALL, "--json", "/no/such/folder/x.json"]) == 3
    assert "would join" in one_error(capsys.readouterr().err)
    monkeypatch.setenv("RANK", "1")  # on the host of rank 0, whose refusal must not leave this one waiting
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit, match="2"):
        main([command, "--backend", "cpu", *SMALL, "--json", "/no/such/folder/x.json"])
    assert capsys.readouterr().err == ""


# -- runs --------------------------------------------------------------------------------------------------------


def test_case_22_twice_in_one_process_and_the_environment_as_it_was(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_PROCID", "3")
    monkeypatch.setenv("SLURM_NTASKS", "16")
    before = dict(os.environ)
    for _ in range(2):
        assert main(list(WORLD_2)) == 0
        assert "2 of 2 ranks passed" in capfd.readouterr().out
    assert dict(os.environ) == before


def test_case_29_json_on_stdout_parses_whatever_libraries_print() -> None:
    done = run(*WORLD_2, "--json", "-", target="cli_targets:noisy")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["result"] == "PASS"
    assert "2 of 2 ranks passed" in done.stderr


def test_case_29_one_message_for_one_cause() -> None:
    done = run("verify", "--backend", "cpu", "--world", "8", *SMALL, target="cli_targets:cannot_compile")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "ag-gemm: error: ranks 0-7: the kernel does not compile:\n  line 12: too much UB\n"


def test_debug_adds_tracebacks() -> None:
    done = run(*WORLD_2, "--debug", target="cli_targets:cannot_compile")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "cannot_compile" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_case_23_signals_leave_one_line(number: signal.Signals, status: int) -> None:
    process = subprocess.Popen(
        command(*WORLD_2, target="cli_targets:sleep"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(3)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (status, "")
    assert re.fullmatch(rf"ag-gemm: stopped by {number.name}\n", err)


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    process = subprocess.Popen(
        command(*WORLD_2), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 3
    assert one_error(err).endswith("stdout was closed before the report was complete")


def in_torchrun(*args: str) -> subprocess.CompletedProcess[str]:
    """``verify`` in a job of two ranks."""
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "agcli", "--", "verify"]
    return subprocess.run(
        [*line, "--backend", "cpu", *SMALL, *args], capture_output=True, text=True, timeout=120, env=environment()
    )


def test_joining_torchruns_job_gives_one_report() -> None:
    done = in_torchrun("--json", "-")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["verdicts"]) == 2
    assert done.stderr.count("2 of 2 ranks passed") == 1


@pytest.mark.parametrize(
    ("args", "messages"), [(("--seed", "1", "--timeout", "0"), 1), (("--rtol", "0", "--atol", "1e-7"), 0)]
)
def test_ranks_that_torchrun_ends_say_nothing(args: tuple[str, ...], messages: int) -> None:
    done = in_torchrun(*args)
    assert done.returncode != 0
    assert done.stderr.count("ag-gemm: ") == messages, done.stderr


def test_the_targets_name_what_ranks_run() -> None:
    module, _, function = verify.RANK_TARGET.partition(":")
    assert getattr(sys.modules[module], function) is verify.run_rank


@given(devices=st.lists(st.integers(0, 99), min_size=1, unique=True))
def test_lists_of_devices(devices: list[int]) -> None:
    assert parse_devices(",".join(map(str, devices))) == tuple(devices)
    assert parse_devices(f"{devices[0]}-{devices[0] + 3}") == tuple(range(devices[0], devices[0] + 4))


@pytest.mark.usefixtures("no_ranks")
def test_what_nobody_foresaw_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(request, "plan_for", lambda *_: 1 / 0)
    assert main(list(WORLD_2)) == 3
    assert "ZeroDivisionError" in one_error(capsys.readouterr().err)
    assert main([*WORLD_2, "--debug"]) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.usefixtures("no_ranks")
def test_a_host_simulates_no_thousand_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--backend", "cpu", "--world", "1000"]) == 3
    assert "1000 cpu devices wanted" in one_error(capsys.readouterr().err)
