"""The commands: exit statuses, streams and documents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from agcli import main
from agcli import toolchain as toolchains
from agcli.toolchain import Toolchain

ROOT = Path(__file__).parents[2]


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main.main([*arguments])
    return status, *capfd.readouterr()


def test_the_defaults_fit_and_overlap(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "compile", "--soc", "Ascend910B3")
    assert (status, err) == (0, "")
    assert "L1           384     512  double" in out
    assert "L0C          128     128  single" in out
    assert "overlap: kept" in out
    assert out.endswith("\nfits\n")


def test_ascend_950_says_that_the_barrier_was_stood_in_for(
    toolchain: Toolchain, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, _ = run(capfd, "compile", "--soc", "ascend950pr_9579")
    assert status == 0
    assert "stands in: barrier_all: a barrier of the core's own pipes stood in" in out


def test_an_overflow_is_status_1_with_a_suggestion(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capfd, "compile", "--block-m", "256", "--block-n", "256", "--block-k", "256")
    assert status == 1
    assert "memory: L0C of Ascend910B3 is too small: 262144 bytes needed, 131072 available" in out
    assert "fits instead: --block-n 128\n" in out


def test_waits_left_in_are_status_1(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capfd, "compile", "--transport", "putmem", "--auto-block-sync")
    assert status == 1
    assert "overlap: hivm.mlir:" in out
    assert out.endswith("\nFAULT\n")


def test_json_on_stdout_sends_the_text_to_stderr(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "compile", "--json", "-", "--dtype", "bf16")
    document = json.loads(out)
    assert status == 0
    assert document["schema"] == "ag-gemm-compile/1"
    assert document["report"]["fits"] is True
    assert document["report"]["config"]["transport"] == "store"
    assert document["report"]["module"]["memories"][0]["used"] == 384 * 1024
    assert err.endswith("fits\n")


def test_a_sweep_is_a_table_and_a_document(
    toolchain: Toolchain, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.json"
    chips = ("--soc", "Ascend910B3", "--soc", "Ascend910_9392")
    status, out, _ = run(capfd, "compile", "--sweep", "--over", "block-k=256,512", *chips, "--json", str(path))
    assert status == 0
    assert out.endswith("4 of 4 fit; the product's own formulas disagree on 0\n")
    reports = json.loads(path.read_text())["reports"]
    assert [(report["soc"], report["config"]["block_k"]) for report in reports] == [
        ("Ascend910B3", 256), ("Ascend910B3", 512), ("Ascend910_9392", 256), ("Ascend910_9392", 512),
    ]  # fmt: skip
    assert all(report["formulas_agree"] for report in reports)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--soc", "Ascend999"], "unknown chip 'Ascend999'"),
        (["--block-m", "100"], "block_m must be a positive multiple of 16"),
        (["--kernel", "nothing.py:kernel"], "there is no file nothing.py"),
        (["--soc", "Ascend910B1", "--soc", "Ascend910B2"], "by a sweep only"),
        (["--sweep", "--save", "x"], "a sweep keeps no stages"),
        (["--over", "colour=3"], "a sweep axis is NAME=INT"),
        (["--over", "block-k="], "a sweep axis is NAME=INT"),
        (["--json", "/no/such/folder/x.json"], "there is no directory"),
        (["--kernel", f"{ROOT / 'pyproject.toml'}:kernel"], "pyproject.toml: it is no Python file"),
        (["--flag", "foo"], "an option of bishengir-compile starts with '-', got 'foo' (--flag)"),
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "compile", *arguments)
    assert (status, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--nonsense", "--nonsense: Unknown command line argument '--nonsense'. (--flag)"),
        ("--enable-code-motion=perhaps", "'perhaps' is invalid value for boolean argument! Try 0 or 1 (--flag)"),
    ],
)
@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend950PR_9579"])
def test_a_flag_that_the_compiler_does_not_take_is_status_2(
    soc: str, flag: str, said: str, toolchain: Toolchain, capfd: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capfd, "compile", "--soc", soc, "--flag", flag)
    assert (status, out) == (2, "")
    assert err.startswith(f"ag-gemm: error: bishengir-compile does not take {flag}: ")
    assert err.endswith(f"{said}\n")


def test_a_wrong_flag_ends_a_sweep_too(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capfd, "compile", "--over", "block-k=256,512", "--flag=--nonsense")
    assert (status, out) == (2, "")
    assert "bishengir-compile does not take --nonsense" in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(0)\n", "it ends the program while it is loaded (SystemExit: 0)"),
        ("import nothing_like_it\n", "No module named 'nothing_like_it'"),
        ("def f(:\n", "syntax error: invalid syntax"),
        ("x = 1\n", "it has no @triton.jit function called 'f'"),
    ],
)
def test_a_kernel_that_cannot_be_had_is_status_2(
    text: str, message: str, toolchain: Toolchain, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "ex.py"
    file.write_text(text)
    status, out, err = run(capfd, "compile", "--kernel", f"{file}:f")
    assert (status, out) == (2, "")
    assert err.startswith(f"ag-gemm: error: cannot load {file}: ")
    assert message in err
    assert err.count("\n") == 1


def test_without_compilers_both_commands_say_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(toolchains.DIR_VARIABLE, str(tmp_path / "nothing"))
    monkeypatch.setattr(toolchains, "_installed", lambda: None)
    for command in (["compile"], ["toolchain", "status"]):
        status, out, err = run(capfd, *command)
        assert (status, out) == (3, "")
        assert "run 'ag-gemm toolchain install'" in err
    assert run(capfd, "toolchain", "remove")[0] == 0


def test_toolchain_status_and_a_second_install(toolchain: Toolchain, capfd: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "install"):
        status, out, _ = run(capfd, "toolchain", command)
        assert status == 0
        assert f"triton-ascend: {toolchains.TRITON_ASCEND}, " in out


def test_help_loads_neither_torch_nor_a_compiler() -> None:
    code = (
        "import sys; from agcli import main; "
        "main.main(['compile', '--help']); "
        "sys.exit(str([m for m in ('torch', 'triton', 'agcli.compiler.compile') if m in sys.modules]) != '[]')"
    )
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0


def test_stages_are_kept_in_a_folder_given_relative_to_here(
    toolchain: Toolchain, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run(capfd, "compile", "--save", "a/b")
    assert (status, err) == (0, "")
    assert "memref" in (tmp_path / "a/b/hivm.mlir").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("more", [(), ("--sweep",)])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_compilers(
    toolchain: Toolchain, tmp_path: Path, more: tuple[str, ...], number: signal.Signals, status: int
) -> None:
    command = [sys.executable, "-m", "agcli", "compile", *more]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    compilers: list[psutil.Process] = []
    while not compilers:
        time.sleep(0.05)
        compilers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (status, "", f"ag-gemm: stopped by {number.name}\n")
    assert not psutil.wait_procs(compilers, timeout=5)[1]
    assert list(tmp_path.iterdir()) == []
