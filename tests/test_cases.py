"""Whole commands on the cpu backend: the cases that users ran into, with real processes and exit statuses.

The name of each test says which kind of case it is. Cases that other files test: shapes, strides, slots and numbers in
simulator/test_kernel.py, verdicts in test_verify.py, launching in test_launch.py, reports in test_report.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

HERE = Path(__file__).parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])}
TINY = ["--m", "64", "--n", "64", "--k", "64", "--backend", "cpu"]


def command(args: list[str], target: str | None = None) -> list[str]:
    start = [sys.executable, str(HERE / "case_targets.py"), target] if target else [sys.executable, "-m", "agcli"]
    return [*start, *args]


def verify(*args: str, target: str | None = None) -> subprocess.CompletedProcess[str]:
    line = command(["verify", *args], target)
    return subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, timeout=240, cwd=HERE.parent)


def passes(done: subprocess.CompletedProcess[str], world: int) -> None:
    assert done.returncode == 0, done.stderr
    assert f"{world} of {world} ranks passed" in done.stdout


@pytest.mark.parametrize(
    "shape",
    [
        "--m 511 --n 1024 --k 96 --block-m 128 --block-n 32 --block-k 64",
        "--m 1000 --n 999 --k 1001",
        "--m 5 --n 256 --k 128 --transport putmem",
        "--dtype bf16 --m 8 --n 1 --k 4096",
    ],
)
def test_shapes_case_1_and_2_tails_and_small_dimensions(shape: str) -> None:
    passes(verify("--world", "2", "--backend", "cpu", *shape.split()), 2)


def test_shapes_case_4_world_of_five() -> None:
    passes(verify("--world", "5", "--m", "100", "--n", "96", "--k", "64", "--backend", "cpu"), 5)


@pytest.mark.parametrize("m", ["32", "64", "96"])
def test_order_case_11_fifty_launches_back_to_back_with_a_late_rank(m: str) -> None:
    blocks = [
        "--block-m",
        "16",
        "--block-n",
        "32",
        "--block-k",
        "32",
        "--pvalue",
        "2",
        "--buffer-num",
        "2",
        "--cores",
        "2",
    ]
    sizes = ["--world", "4", "--m", m, "--n", "64", "--k", "64", "--backend", "cpu"]
    passes(verify(*sizes, *blocks, "--repeat", "50", target="late_after_each_barrier"), 4)


def test_order_case_13_cold_start_of_eight_ranks() -> None:
    passes(verify("--world", "8", *TINY), 8)


def test_memory_case_14_more_than_the_host_has_is_refused_before_any_launch() -> None:
    sizes = [
        "--world",
        "8",
        "--m",
        "8192",
        "--n",
        "64",
        "--k",
        "65536",
        "--block-m",
        "128",
        "--pvalue",
        "64",
        "--buffer-num",
        "16",
        "--backend",
        "cpu",
    ]
    done = verify(*sizes)
    assert done.returncode == 3
    wanted = 16 * 8 * 128 * 64 * 65536 * 2  # slots, ranks, block_m, pvalue, K, bytes
    assert f"{wanted} bytes each" in done.stderr
    assert "available; lower --pvalue, --buffer-num" in done.stderr
    assert done.stderr.count("error:") == 1


def test_memory_case_14_operands_count_too() -> None:
    done = verify("--world", "2", "--m", "1000000", "--n", "1000000", "--k", "64", "--backend", "cpu")
    assert done.returncode == 3
    assert "2 ranks need" in done.stderr
    assert "available; lower" in done.stderr


def test_memory_case_14_dev_shm_is_not_what_limits() -> None:
    passes(verify("--world", "4", "--m", "512", "--n", "32", "--k", "8192", "--backend", "cpu"), 4)


@pytest.mark.parametrize(
    ("blocks", "words"),
    [
        ("--block-m 256 --block-n 256 --block-k 256", ["L0C of Ascend910B3", "262144", "131072", "--block-m"]),
        ("--comm-block-m 400 --comm-block-k 512", ["UB of Ascend910B3", "196608", "--comm-block-m"]),
        ("--block-n 24", ["--block-n", "24"]),
        ("--block-m -16", ["--block-m", "-16"]),
    ],
)
def test_memory_case_15_blocks_that_the_chip_cannot_take(blocks: str, words: list[str]) -> None:
    done = verify("--world", "2", *TINY, *blocks.split())
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert not done.stdout


def test_launching_case_17_eight_runs_at_once() -> None:
    lines = [command(["verify", "--world", "2", *TINY, "--cores", "2"]) for _ in range(8)]
    runs = [
        subprocess.Popen(line, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=HERE.parent)
        for line in lines
    ]
    outputs = [run.communicate(timeout=240)[0].decode() for run in runs]
    assert [run.returncode for run in runs] == [0] * 8, outputs


def test_launching_case_18_a_killed_rank_is_named_with_its_signal_also_in_reports(tmp_path: Path) -> None:
    paths = [tmp_path / "out.json", tmp_path / "out.xml"]
    done = verify("--world", "4", *TINY, "--json", str(paths[0]), "--junit", str(paths[1]), target="killed")
    assert done.returncode == 3
    assert "rank 2" in done.stderr
    assert "signal 9" in done.stderr
    report = json.loads(paths[0].read_text())
    assert (report["result"], report["exit_status"], report["ranks"][2]["signal"]) == ("ERROR", 3, 9)
    cases = ElementTree.parse(paths[1]).getroot()
    assert [case.get("name") for case in cases] == [f"rank {rank}" for rank in range(4)]
    assert cases[2].find("error") is not None


@pytest.mark.parametrize(("target", "says"), [("exits_quietly", "rank 1"), ("raises", "no such file")])
def test_ending_case_24_a_rank_that_did_not_report_is_a_failure(target: str, says: str) -> None:
    done = verify("--world", "2", *TINY, target=target)
    assert done.returncode == 3
    assert says in done.stderr


def test_reports_hold_every_verdict(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    sizes = [
        "--world",
        "3",
        "--m",
        "300",
        "--n",
        "299",
        "--k",
        "301",
        "--dtype",
        "bf16",
        "--transport",
        "store",
        "--backend",
        "cpu",
    ]
    passes(verify(*sizes, "--json", str(path)), 3)
    report = json.loads(path.read_text())
    assert [verdict["result"] for verdict in report["verdicts"]] == ["PASS"] * 3


def test_bit_equality_is_asked_for_with_zero_tolerances() -> None:
    done = verify(
        *["--world", "2", "--m", "256", "--n", "256", "--k", "4096", "--rtol", "0", "--atol", "0", "--backend", "cpu"]
    )
    assert done.returncode in (0, 1), done.stderr  # fp32 sums in another order round to other bits, or do not
    if done.returncode == 1:
        assert "it belongs to: source rank" in done.stdout
