"""Every example runs as its docstring says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agcli import verify
from agcli.main import main

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SMALL = ("--backend", "cpu", "--world", "2", "--m", "32", "--n", "32", "--k", "32")
PARTS = {"gemm_reduce_scatter.py"}  # what other examples use


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_column_parallel_layer_in_a_torchrun_job() -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    ran = run(*torchrun, str(EXAMPLES / "column_parallel_linear.py"))
    assert ran.returncode == 0, ran.stderr
    for rank in (0, 1):
        assert f"rank {rank} of 2 on cpu: y [96, 64], largest error 0.0" in ran.stdout


def test_checking_ones_own_kernel() -> None:
    ran = run(str(EXAMPLES / "check_my_kernel.py"))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "the result is right" in ran.stdout


@pytest.mark.parametrize(
    ("command", "line"),
    [
        (("verify", *SMALL), "rank 1 on simulated on "),
        (("bench", *SMALL, "--impl", "fused-store", "--budget", "0.1", "--warm"), "32x32x32 fp16 fused-store: "),
        (("smoke", "--backend", "cpu"), "all: PASS"),
    ],
    ids=["verify", "bench", "smoke"],
)
def test_reading_a_report(command: tuple[str, ...], line: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main([*command, "--json", str(report)]) == 0
    ran = run(str(EXAMPLES / "read_report.py"), str(report))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert line in ran.stdout


def test_a_report_of_a_wrong_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'tests'}")
    monkeypatch.setattr(verify, "RANK_TARGET", "verify_targets:touch")
    report = tmp_path / "report.json"
    assert main(["verify", *SMALL, "--json", str(report)]) == 1
    ran = run(str(EXAMPLES / "read_report.py"), str(report))
    assert ran.returncode == 1
    assert re.search(r"rank 1 on .*: FAIL, first wrong element \(0, 0\) is \d+\.", ran.stdout)


def test_no_example_is_left_out() -> None:
    named = set(re.findall(r"\w+\.py", Path(__file__).read_text(encoding="utf-8")))
    assert {path.name for path in EXAMPLES.glob("*.py")} <= named | PARTS
