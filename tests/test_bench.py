"""``bench``: plans (pure), then ranks over a stand-in for a platform, then whole command lines on the cpu backend."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agcli import bench_run
from agcli.bench_hooks import EventTimer, HostTimer, hooks_of, host_cache_bytes, host_free_bytes
from agcli.bench_plan import BenchPlan, pick
from agcli.bench_run import Wanted
from agcli.chips import chip_by_name
from agcli.errors import UsageError
from agcli.launch import Job, failure, launch
from agcli.main import main
from agcli.shapes import Shape

TESTS, ROOT = Path(__file__).parent, Path(__file__).parents[1]
PLAN = BenchPlan("cpu", 2, (Shape(8, 12, 16),), implementations=("fused",), warmup=1, iterations=4)
SMALL = ("--m", "16", "--n", "24", "--k", "32", "--iterations", "3", "--warmup", "1")


# -- plans -------------------------------------------------------------------------------------------------------


def test_a_plan_travels_as_json() -> None:
    plan = replace(PLAN, shapes=(Shape(1, 2, 3, "a/b"), Shape(4, 5, 6)), dtypes=("fp16", "bf16"), config={"pvalue": 2})
    assert BenchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert [(p.m, p.dtype, name) for p, name in plan.problems] == [
        *((1, "fp16", "a/b"), (4, "fp16", "")),
        *((1, "bf16", "a/b"), (4, "bf16", "")),
    ]


def test_fused_means_every_transport_and_one_can_be_picked() -> None:
    both = ("store", "putmem")
    assert pick(["torch", "fused"], both) == (("fused", "torch"), both)
    assert pick(["fused-putmem"], both) == (("fused",), ("putmem",))
    assert pick(["fused"], ()) == (("fused",), ())
    for bad in ("fused-urma", "cublas", ""):
        with pytest.raises(UsageError, match="unknown implementation"):
            pick([bad], both)


def test_a_problem_that_no_transport_can_take_is_refused_before_a_rank_starts() -> None:
    chip = chip_by_name("Ascend910B3")
    plan = replace(PLAN, transports=("store", "putmem"), config={"block_m": 256, "block_n": 256})
    with pytest.raises(UsageError, match="8x12x16: L0C of Ascend910B3 is too small"):
        plan.check(chip)
    replace(plan, implementations=("torch",)).check(chip)


def test_one_transport_that_cannot_is_a_row_that_says_why() -> None:
    big = replace(PLAN, shapes=(Shape(2048, 16, 131072),), transports=("store", "putmem"), config={"pvalue": 16})
    plans = big.fused(big.problems[0][0], chip_by_name("Ascend910B3"))
    assert not isinstance(plans["fused-store"], str)
    assert "lower --pvalue or --block-m" in str(plans["fused-putmem"])
    big.check(chip_by_name("Ascend910B3"))


def test_sizes_default_to_what_the_platform_can_do_in_reasonable_time() -> None:
    assert {s.text for s in Wanted().shapes(2, emulated=True)} == {"128x256x256", "256x256x256"}
    assert max(s.m for s in Wanted().shapes(2, emulated=False)) == 4096
    assert [s.text for s in Wanted(m="8,16").shapes(2, emulated=True)] == ["8x4096x4096", "16x4096x4096"]


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (Wanted(m="0"), r"M must be at least 1, got 0 \(--m\)"),
        (Wanted(k="-4,8"), r"K must be at least 1, got -4 \(--k\)"),
        (Wanted(preset="llama-3-8b", n="4"), "--preset decides N and K"),
        (Wanted(preset="llama-1"), "unknown preset"),
        (Wanted(dtype="fp16,fp8"), "dtype must be one of fp16, bf16, got 'fp8'"),
    ],
)
def test_what_makes_no_problem_is_refused(wanted: Wanted, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        wanted.check()


def test_presets_and_a_file_add_up_and_presets_take_rows(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("1 2 3 mine\n")
    found = Wanted(m="64", preset="llama-2-7b/mlp", file=tmp_path / "f").shapes(4, emulated=False)
    assert found == [Shape(64, 5504, 4096, "llama-2-7b/mlp"), Shape(1, 2, 3, "mine")]
    with pytest.raises(UsageError, match="--shapes decides"):
        Wanted(m="64", file=tmp_path / "f").shapes(4, emulated=False)


# -- clocks ------------------------------------------------------------------------------------------------------


def test_case_25_the_device_has_finished_before_the_clock_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    clock = iter([10.0, 10.5, 20.0, 20.25])
    monkeypatch.setattr("agcli.bench_hooks.time.perf_counter", lambda: log.append("clock") or next(clock))
    timer = HostTimer(lambda: log.append("synchronize"))
    for _ in range(2):
        timer.start()
        log.append("call")
        timer.stop()
    assert log == ["synchronize", "clock", "call", "synchronize", "clock"] * 2
    assert timer.ms() == [500.0, 250.0]


class Event:
    """Records when it was recorded, in ms."""

    now = 0.0

    def record(self) -> None:
        self.at = Event.now

    def synchronize(self) -> None:
        Event.now += 1000  # whatever waiting takes

    def elapsed_time(self, end: Event) -> float:
        return end.at - self.at


def test_events_are_read_only_at_the_end() -> None:
    timer = EventTimer(Event)
    for ms in (3.0, 5.0):
        timer.start()
        Event.now += ms
        timer.stop()
        Event.now += 100
    assert timer.ms() == [3.0, 5.0]


def test_sizes_of_the_host_are_found_or_assumed(tmp_path: Path) -> None:
    assert host_cache_bytes(tmp_path) == 32 * 2**20
    for level, size in enumerate(("32K", "512K", "16384K")):
        (tmp_path / f"index{level}").mkdir()
        (tmp_path / f"index{level}" / "size").write_text(size + "\n")
    assert host_cache_bytes(tmp_path) == 16 * 2**20
    assert host_free_bytes() > 0


def test_a_platform_without_hooks_gets_the_defaults() -> None:
    class Bare:
        pass

    hooks = hooks_of(Bare())  # type: ignore[arg-type]
    assert (hooks.timer(), hooks.has_vendor, hooks.can_capture, hooks.transports) == (None, False, False, ())


# -- ranks -------------------------------------------------------------------------------------------------------


def ranks(target: str, plan: BenchPlan) -> list[dict[str, Any]]:
    """The values of all ranks."""
    env = {"PYTHONPATH": f"{TESTS}{os.pathsep}{ROOT}"}
    job = Job(f"bench_targets:{target}", plan.to_json())
    results = launch(job, world=plan.world, devices=range(plan.world), timeout_s=60.0, env=env)
    assert failure(results) is None, failure(results)
    return [result.value for result in results]


def test_case_26_ranks_make_equally_many_calls_although_one_is_slow() -> None:
    shapes = tuple(Shape(8, 8, k) for k in (16, 32, 48))
    plan = replace(
        PLAN, world=3, shapes=shapes, implementations=("fused", "torch", "gemm"), iterations=0, budget_s=0.05
    )
    values = ranks("one_is_slow", plan)
    assert values[0]["launches"] == values[1]["launches"] == values[2]["launches"]
    assert set(values[0]["launches"]) == {"8x8x16 fp16", "8x8x32 fp16", "8x8x48 fp16"}
    rows = values[0]["rows"]
    assert [(r["k"], r["impl"], r["check"]) for r in rows] == [
        (k, impl, "PASS") for k in (16, 32, 48) for impl in ("fused", "torch", "gemm")
    ]
    # 1 call to check it, warm-up, 2 to calibrate, then the timed ones.
    for r in rows:
        assert values[0]["launches"][f"8x8x{r['k']} fp16"][r["impl"]] == 1 + plan.warmup + 2 + r["iterations"]
    assert all(r["median_ms"] >= 1.0 for r in rows if r["impl"] == "fused")  # the slow rank's time, not rank 0's
    assert all(value["closed"] == 3 for value in values)


def test_case_27_exchanged_row_blocks_fail_without_a_figure() -> None:
    row, torch = ranks("exchanged", replace(PLAN, implementations=("fused", "torch")))[0]["rows"]
    assert (row["check"], row["median_ms"], row["tflops"]) == ("FAIL", None, None)
    assert "first call: ranks 0-1 wrong" in row["note"]
    assert (torch["check"], torch["iterations"]) == ("PASS", 4)


def test_an_answer_that_is_wrong_only_later_fails_too() -> None:
    row = ranks("wrong_later", PLAN)[0]["rows"][0]
    assert (row["check"], row["median_ms"]) == ("FAIL", None)
    assert "last timed call: rank 1 wrong; 1 of 192 elements, first row 0, column 0: got nan" in row["note"]


def test_an_answer_that_another_implementation_left_behind_is_no_answer() -> None:
    plan = replace(PLAN, implementations=("fused", "torch", "gemm", "allgather"), iterations=6, warm=True)
    rows = {row["impl"]: row for row in ranks("idle_later", plan)[0]["rows"]}
    assert rows["fused"]["check"] == "FAIL"
    assert "last timed call: ranks 0-1 wrong; 192 of 192 elements" in rows["fused"]["note"]
    assert {rows[impl]["check"] for impl in ("torch", "gemm", "allgather")} == {"PASS"}


def test_case_27_cold_calls_rotate_inputs_and_warm_ones_do_not() -> None:
    cold = ranks("plain", replace(PLAN, iterations=6))[0]
    assert cold["rows"][0]["input_sets"] > 6
    assert cold["rows"][0]["caches"] in ("cold", "partly cold")
    timed = cold["addresses"][-6:]
    assert len(set(timed)) == 6
    warm = ranks("plain", replace(PLAN, iterations=6, warm=True))[0]
    assert (warm["rows"][0]["input_sets"], warm["rows"][0]["caches"]) == (1, "warm")
    assert len(set(warm["addresses"])) == 1


def test_all_that_a_platform_can_add_is_used() -> None:
    plan = replace(
        PLAN,
        shapes=(Shape(8, 8, 16), Shape(8, 8, 32), Shape(8, 8, 48)),
        transports=("store", "putmem"),
        implementations=("fused", "torch", "vendor"),
        graph=True,
        host=True,
    )
    values = ranks("rich", plan)
    rows = {(r["k"], r["impl"]): r for r in values[0]["rows"]}
    eager = ["fused-store", "fused-putmem", "torch", "vendor"]
    assert [impl for k, impl in rows if k == 32] == [*eager, *(f"{name}+graph" for name in eager)]
    assert (rows[16, "vendor"]["check"], rows[16, "vendor"]["note"]) == ("n/a", "K must be at least 32")
    refused = rows[48, "vendor"]
    assert (refused["check"], refused["note"]) == ("n/a", "refused: this version does not take such sizes")
    assert (48, "vendor+graph") not in rows
    failed = rows[16, "fused-store+graph"]
    assert (failed["check"], failed["note"]) == (
        "n/a",
        "cannot be captured: operation not permitted when stream is capturing",
    )
    timed = rows[32, "vendor+graph"]
    # Of each call the slowest rank: 2 ms on rank 1, but 10 ms on rank 0 in the last of 4.
    assert (timed["median_ms"], timed["p10_ms"], timed["iterations"]) == (2.0, 2.0, 4)
    assert timed["p90_ms"] == pytest.approx(2.0 + 0.7 * 8.0)
    assert timed["host_ms"] > 0
    assert timed["tflops"] == timed["peak_share"] == 2 * 2 * 8 * 8 * 32 / 2e-3 / 1e12
    about = values[0]["about"]
    assert (about["events"], about["peak_tflops"], about["peak_source"]) == (True, 1.0, "made up")


# -- command lines -----------------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``run("plain", "--world", "2")``: exit status, stdout and stderr; "" runs the cpu backend itself."""

    def call(target: str, *args: str) -> tuple[int, str, str]:
        monkeypatch.setenv("PYTHONPATH", f"{TESTS}{os.pathsep}{ROOT}")
        monkeypatch.setattr(bench_run, "RANK_TARGET", f"bench_targets:{target}" if target else "agcli.bench:bench_rank")
        status = main(["bench", "--backend", "cpu", *args])
        return (status, *capfd.readouterr())

    return call


def test_one_run_writes_all_reports_and_compares_with_itself(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    paths = [tmp_path / name for name in ("b.json", "b.csv", "b.svg")]
    files = [arg for pair in zip(("--json", "--csv", "--plot"), map(str, paths), strict=True) for arg in pair]
    status, out, err = run("", *SMALL, "--world", "2", "--dtype", "fp16,bf16", *files)
    assert (status, err) == (0, "")
    assert out.startswith("EMULATION: figures of the emulation on this machine's CPU, not of a chip")
    data = json.loads(paths[0].read_text(), parse_constant=pytest.fail)
    impls = ["fused-store", "fused-putmem", "torch", "gemm", "allgather"]
    assert [(r["dtype"], r["impl"]) for r in data["rows"]] == [(d, i) for d in ("fp16", "bf16") for i in impls]
    assert {r["check"] for r in data["rows"]} == {"PASS"}
    assert (data["setup"]["warmup"], data["rows"][0]["iterations"]) == (1, 3)
    assert data["setup"]["emulated"] is True
    assert len(list(csv.DictReader(paths[1].open()))) == 10
    assert paths[2].stat().st_size > 0

    again = (*SMALL, "--dtype", "fp16,bf16", "--compare", str(paths[0]), "--max-slowdown")
    status, out, _ = run("", *again, "100000%")
    assert (status, "0 of 10 rows slower than allowed" in out) == (0, True)
    for row in data["rows"]:
        row["median_ms"] /= 1e4
    paths[0].write_text(json.dumps(data))
    status, out, _ = run("", *again, "5%")
    assert (status, "10 of 10 rows slower than allowed" in out) == (1, True)
    status, out, err = run("", *again, "5%", "--world", "3")
    assert (status, out) == (2, "")
    assert "the reports cannot be compared: world 3 now, 2 then" in err
    monkeypatch.setattr(bench_run, "run_ranks", lambda *_, **__: pytest.fail("ranks were started"))
    status, out, err = run("", *again, "5%", "--json", str(paths[0]))
    assert (status, out) == (2, "")
    assert "--json and --compare both name" in err
    status, _, err = run("", *again, "5%", "--m", "24")
    assert (status, "no row in common" in err) == (2, True)


def test_a_wrong_answer_ends_with_1_and_a_report(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("exchanged", *SMALL, "--impl", "fused,gemm", "--json", str(tmp_path / "b.json"))
    assert status == 1
    assert "1 timed, 2 FAIL" in out
    assert json.loads((tmp_path / "b.json").read_text())["passed"] is False


def test_case_23_a_stop_prints_the_rows_so_far_and_ends_with_130(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    args = ("--m", "16,32", "--n", "24", "--k", "32", "--iterations", "3", "--warmup", "1", "--json", str(path))
    status, out, err = run("interrupted", *args, "--impl", "torch")
    assert status == 130
    assert "16x24x32" in out
    assert "32x24x32" not in out
    assert "1 timed, stopped before the end" in out
    assert err.splitlines() == ["ag-gemm: stopped by SIGINT"]
    assert json.loads(path.read_text())["complete"] is False


def test_case_18_a_killed_rank_ends_the_run_and_the_rows_so_far_are_kept(run: Run) -> None:
    args = ("--m", "16", "--n", "8,24", "--k", "32", "--iterations", "3", "--warmup", "1", "--impl", "fused")
    status, out, err = run("dies", "--world", "4", *args)
    assert status == 3
    assert (
        "rank 2: killed by signal 9 (SIGKILL) before it reported, last seen '16x24x32 fp16: 3 timed iterations'" in err
    )
    assert "16x8x32" in out
    assert "stopped before the end" in out


def test_case_29_one_message_for_one_cause(run: Run) -> None:
    status, out, err = run("cannot_compile", *SMALL, "--world", "3", "--impl", "fused")
    assert (status, out) == (3, "")
    assert err.count("ub overflow") == 1
    assert "ranks 0-2: ValueError: ub overflow, requires 2097152 bits while 1572864 bits available" in err


def test_case_29_json_on_stdout_is_nothing_but_json(run: Run) -> None:
    status, out, err = run("plain", *SMALL, "--impl", "gemm", "--json", "-")
    assert status == 0
    assert json.loads(out, parse_constant=pytest.fail)["rows"][0]["impl"] == "gemm"
    assert "16x24x32" in err


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["--m", "0"], "M must be at least 1, got 0 (--m)"),
        (["--m", "two"], "--m takes whole numbers separated by commas, got 'two'"),
        (["--impl", "magic"], "unknown implementation 'magic'"),
        (["--graph"], "backend cpu cannot capture graphs"),
        (["--block-m", "256", "--block-n", "256"], "L0C of Ascend910B3 is too small"),
        (["--block-m", "-16"], "block_m must be a positive multiple of 16"),
        (["--compare", "/nowhere.json"], "cannot read /nowhere.json"),
        (["--max-slowdown", "much"], "--max-slowdown"),
        (["--plot", "b.pdf"], "b.pdf must end in .png or .svg"),
        (["--json", "/nowhere/b.json"], "there is no directory /nowhere"),
        (["--json", "-", "--csv", "-"], "--json and --csv both name stdout"),
        (["--budget", "-1"], "--budget"),
        (["--world", "two"], "--world"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_line(run: Run, args: list[str], text: str) -> None:
    status, out, err = run("plain", *args)
    assert (status, out, len(err.splitlines())) == (2, "", 1)
    assert text in err


def test_presets_are_listed_with_their_source(run: Run) -> None:
    status, out, _ = run("plain", "--preset", "list", "--world", "8")
    assert status == 0
    assert "llama-3-70b/qkv    1280   8192  Llama 3 paper (arXiv 2407.21783), table 3" in out


def test_help_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys; from agcli.main import main; status = main(['bench', '--help']);"
        "print([m for m in ('torch', 'matplotlib', 'triton', 'numpy') if m in sys.modules], status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"
