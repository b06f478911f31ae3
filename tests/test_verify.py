"""Verify: what counts as right (no ranks), then whole runs on the cpu backend, right ones and with faults."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agcli import reference, verify
from agcli.compare import Comparison
from agcli.inputs import integer_range, make_inputs
from agcli.main import main
from agcli.problem import KernelConfig, Plan, Problem
from agcli.verdict import FAIL, LISTED_REGIONS, OVERFLOW, PASS, Tolerance, Verdict, tolerance
from agcli.verify import VerifyOptions

TESTS = Path(__file__).parent


def plan_of(m: int, n: int, k: int, world: int, dtype: str = "fp16", **config: int) -> Plan:
    return Plan(Problem(m, n, k, world, dtype), KernelConfig(transport="store", **config))


def operands(plan: Plan, seed: int, data: str = "normal") -> tuple[torch.Tensor, torch.Tensor]:
    """Gathered A and rank 0's B."""
    pairs = [make_inputs(plan.problem, data, seed, 1, rank) for rank in range(plan.problem.world)]
    return torch.cat([a for a, _ in pairs]), pairs[0][1]


def kernel_product(a: torch.Tensor, b: torch.Tensor, block_k: int = 256) -> torch.Tensor:
    """As the kernel does it: fp32 sums over K tiles, one after the other, rounded once."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], block_k):
        total += a[:, k : k + block_k].float() @ b[k : k + block_k].float()
    return total.to(a.dtype)


def product_of_matrix_unit(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """16 products at a time, added exactly, and the sum cut off to the 24 bits of fp32, towards 0; rounded once."""
    wide_a, wide_b = a.double(), b.double()
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(0, a.shape[1], 16):
        total += wide_a[:, k : k + 16] @ wide_b[k : k + 16]
        total = (total.view(torch.int64) & -(2**29)).view(torch.float64)  # 52 bits of fraction less 29
    return total.to(a.dtype)


def judge(plan: Plan, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, within: Tolerance | None = None) -> Verdict:
    problem = plan.problem
    comparison = Comparison(plan, within or tolerance(problem.dtype, problem.k))
    comparison.add(a, b, c, 0)
    return comparison.verdict(0, "cpu", 0.0)


# -- tolerance ---------------------------------------------------------------------------------------------------


def test_fp16_tolerance_is_the_documents_and_grows_with_large_k() -> None:
    assert tolerance("fp16", 2621) == Tolerance(1e-3, 1e-3)
    assert tolerance("fp16", 65536) == Tolerance(1e-3, 2.0**-3)


def test_bf16_tolerance_follows_from_dtype_and_k() -> None:
    assert tolerance("bf16", 1024) == Tolerance(2.0**-8, 2.0**-12)
    assert tolerance("bf16", 16384) == Tolerance(2.0**-8, 2.0**-6)


def test_integers_are_exact_and_options_replace_what_is_derived() -> None:
    assert tolerance("bf16", 64, "integers").exact
    assert tolerance("fp16", 64, rtol=0.5) == Tolerance(0.5, 1e-3)


@pytest.mark.parametrize(("dtype", "k"), [("bf16", 8192), ("fp16", 8192), ("bf16", 1), ("fp16", 1)])
def test_case_9_a_right_result_passes_for_20_seeds_of_20(dtype: str, k: int) -> None:
    plan = plan_of(128, 128, k, 2, dtype)
    for seed in range(20):
        a, b = operands(plan, seed)
        assert judge(plan, a, b, kernel_product(a, b)).result == PASS, seed


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_right_result_of_a_unit_that_cuts_off_passes(dtype: str) -> None:
    k = 65536
    plan = plan_of(96, 96, k, 1, dtype)
    a, b = operands(plan, 0)
    c = product_of_matrix_unit(a, b)
    assert judge(plan, a, b, c).result == PASS
    to_nearest = Tolerance(tolerance(dtype, k).rtol, 2.0**-22 * k)  # what an adder that rounds would need
    assert judge(plan, a, b, c, to_nearest).result == FAIL


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("missing", [slice(8191, 8192), slice(4096, 4160)], ids=["last column", "64-wide tile"])
def test_case_9_a_product_that_misses_some_of_k_fails(dtype: str, missing: slice) -> None:
    plan = plan_of(128, 128, 8192, 2, dtype)
    for seed in range(5):
        a, b = operands(plan, seed)
        short = a.clone()
        short[:, missing] = 0
        verdict = judge(plan, a, b, kernel_product(short, b))
        assert verdict.result == FAIL
        assert verdict.mismatches > verdict.elements // 4


def test_rounding_differences_fail_when_no_tolerance_is_left() -> None:
    plan = plan_of(64, 64, 4096, 2)
    a, b = operands(plan, 0)
    c = kernel_product(a, b)
    assert judge(plan, a, b, c).result == PASS
    c[0, 0] = torch.nextafter(c[0, 0], torch.tensor(math.inf, dtype=c.dtype))
    verdict = judge(plan, a, b, c, Tolerance(0.0, 0.0))
    assert verdict.result == FAIL
    assert verdict.first_bad is not None
    assert (verdict.first_bad.row, verdict.first_bad.col) == (0, 0)


# -- what is not finite ------------------------------------------------------------------------------------------


def test_case_8_nan_is_counted_and_never_a_small_error() -> None:
    plan = plan_of(8, 8, 8, 2)
    a, b = operands(plan, 0)
    c = kernel_product(a, b)
    c[3, 5] = math.nan
    one = judge(plan, a, b, c)
    assert (one.result, one.nan_count, one.mismatches) == (FAIL, 1, 1)
    assert one.first_bad is not None
    assert (one.first_bad.row, one.first_bad.col, one.first_bad.got) == (3, 5, "nan")
    every = judge(plan, a, b, torch.full_like(c, math.nan))
    assert (every.nan_count, every.mismatches, every.max_abs_err) == (128, 128, None)
    json.dumps(every.to_json(), allow_nan=False)


def test_case_10_a_reference_beyond_the_range_is_no_pass() -> None:
    plan = plan_of(2, 3, 70000, 1)
    a, b = torch.ones(2, 70000, dtype=torch.float16), torch.ones(70000, 3, dtype=torch.float16)
    c = kernel_product(a, b)
    assert bool(c.isinf().all())
    verdict = judge(plan, a, b, c)
    assert (verdict.result, verdict.nonfinite_reference, verdict.mismatches) == (OVERFLOW, 6, 0)
    c[1, 1] = 65504
    assert judge(plan, a, b, c).result == FAIL


def test_inf_where_the_reference_is_finite_fails() -> None:
    plan = plan_of(4, 4, 4, 1)
    a, b = operands(plan, 0)
    c = kernel_product(a, b)
    c[2, 1] = -math.inf
    verdict = judge(plan, a, b, c)
    assert (verdict.result, verdict.inf_count, verdict.nan_count) == (FAIL, 1, 0)
    assert verdict.first_bad is not None
    assert verdict.first_bad.got == "-inf"


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_case_10_default_inputs_do_not_overflow_at_k_65536(dtype: str) -> None:
    plan = plan_of(32, 32, 65536, 1, dtype)
    for data in ("normal", "integers"):
        a, b = operands(plan, 0, data)
        verdict = judge(plan, a, b, kernel_product(a, b), tolerance(dtype, 65536, data))
        assert (verdict.result, verdict.nonfinite_reference) == (PASS, 0)


# -- where -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_one_touched_element_is_found_where_it_is(data: st.DataObject) -> None:
    m, n, world = (data.draw(st.integers(1, high)) for high in (90, 70, 4))
    sizes = {
        "block_m": 16,
        "block_n": 32,
        "pvalue": data.draw(st.integers(1, 3)),
        "buffer_num": data.draw(st.integers(2, 4)),
    }
    plan = plan_of(m, n, 8, world, data.draw(st.sampled_from(["fp16", "bf16"])), **sizes)
    row, col = data.draw(st.integers(0, world * m - 1)), data.draw(st.integers(0, n - 1))
    first_slot = data.draw(st.integers(0, plan.config.buffer_num - 1))
    a, b = operands(plan, data.draw(st.integers(0, 100)))
    comparison = Comparison(plan, tolerance(plan.problem.dtype, 8))
    c = kernel_product(a, b)
    comparison.add(a, b, c, first_slot)
    c[row, col] += 100
    comparison.add(a, b, c, first_slot)
    verdict = comparison.verdict(0, "cpu", 0.0)
    place = plan.locate(row, col, first_slot)
    assert verdict.first_bad is not None
    assert verdict.bad is not None
    found = verdict.first_bad
    assert (found.row, found.col, found.repeat) == (row, col, 2)
    assert {name: getattr(found, name) for name in place} == place
    tile = [place["source_rank"], place["iteration"], place["tile_row"], place["tile_col"], 1]
    assert (verdict.bad.tiles, verdict.bad.tiles_total, verdict.bad.slots) == ([tile], 1, [[place["slot"], 1]])
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


def test_lists_of_bad_regions_are_bounded_and_their_counts_whole() -> None:
    plan = plan_of(64, 320, 8, 3, block_m=16, block_n=16)
    a, b = operands(plan, 0)
    verdict = judge(plan, a, b, kernel_product(a, b) + 100)
    assert verdict.bad is not None
    assert (len(verdict.bad.tiles), verdict.bad.tiles_total) == (LISTED_REGIONS, 3 * 4 * 20)
    assert verdict.bad.source_ranks == [[rank, 64 * 320] for rank in range(3)]


def test_a_platform_without_slots_reports_none() -> None:
    plan = plan_of(8, 8, 8, 1)
    a, b = operands(plan, 0)
    comparison = Comparison(plan, tolerance("fp16", 8))
    comparison.add(a, b, kernel_product(a, b) + 9, None)
    verdict = comparison.verdict(0, "cpu", 0.0)
    assert verdict.first_bad is not None
    assert verdict.bad is not None
    assert verdict.first_bad.slot is None
    assert verdict.bad.slots == []


# -- inputs ------------------------------------------------------------------------------------------------------


def test_case_27_inputs_differ_by_rank_repeat_and_seed_and_can_be_had_again() -> None:
    problem = Problem(8, 8, 8, 2)
    seen = [make_inputs(problem, "normal", *key)[0] for key in ((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0))]
    assert all(not torch.equal(x, y) for i, x in enumerate(seen) for y in seen[:i])
    assert torch.equal(seen[0], make_inputs(problem, "normal", 0, 1, 0)[0])


@given(k=st.integers(1, 2**24))
def test_sums_of_integers_stay_exact_in_fp32(k: int) -> None:
    assert integer_range(k) ** 2 * k <= 2**24


# -- launches ----------------------------------------------------------------------------------------------------


class Recorder:
    """Backend and engine of a world of one that note what is asked of them."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.calls: list[str] = []

    def device(self) -> torch.device:
        return torch.device("cpu")

    def describe(self) -> dict[str, str]:
        return {}

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def poison(self) -> None:
        self.calls.append("poison")

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        assert bool(c.isnan().all())
        c.copy_(kernel_product(a, b))
        self.calls.append("run")

    def place(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(("group_bytes", "groups"), [(10**9, [5]), (0, [1] * 5)], ids=["all fit", "one fits"])
def test_launches_go_back_to_back_as_far_as_memory_allows(
    group_bytes: int, groups: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "GROUP_BYTES", group_bytes)
    monkeypatch.setattr(reference, "gather", lambda a: a)
    progress: list[tuple[int, int]] = []
    ctx: Any = SimpleNamespace(rank=0, phase=lambda *_, **__: None, progress=lambda *args: progress.append(args))
    plan = plan_of(40, 24, 16, 1, block_m=16)
    both: Any = Recorder(plan)
    verdict = verify._Work(ctx, both, plan, VerifyOptions(repeat=5)).verify(both)
    assert both.calls == [c for g in groups for c in ["synchronize", *["poison", "run"] * g, "synchronize"]]
    assert (verdict.result, verdict.repeats, verdict.elements) == (PASS, 5, 5 * 40 * 24)
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1] == 2 * 5 * plan.tiles


# -- whole runs --------------------------------------------------------------------------------------------------

Run = Callable[..., tuple[int, dict[str, Any], str]]
SMALL = ("--m", "40", "--n", "24", "--k", "48", "--block-m", "16", "--block-n", "16", "--pvalue", "1", "--cores", "2")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """``run("touch", "--world", "2")``: exit status, JSON report ({} if none was written), stdout and stderr."""

    def call(target: str, *args: str) -> tuple[int, dict[str, Any], str]:
        monkeypatch.setenv("PYTHONPATH", str(TESTS))
        monkeypatch.setattr(verify, "RANK_TARGET", f"verify_targets:{target}" if target else verify.RANK_TARGET)
        path = tmp_path / "report.json"
        status = main(["verify", "--backend", "cpu", "--json", str(path), *args])
        data = json.loads(path.read_text(), parse_constant=pytest.fail) if path.exists() else {}
        out, err = capfd.readouterr()
        return status, data, out + err

    return call


def results(data: dict[str, Any]) -> list[str]:
    return [verdict["result"] for verdict in data["verdicts"]]


def test_a_right_run_passes_and_says_so_three_times(run: Run, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    status, data, text = run("", "--world", "3", *SMALL, "--dtype", "bf16", "--repeat", "3", "--junit", str(junit))
    assert (status, results(data), data["result"]) == (0, [PASS] * 3, "PASS")
    assert (data["backend"], data["problem"]["world"], len(data["devices"])) == ("cpu", 3, 3)
    assert data["tolerance"] == {"rtol": 2.0**-8, "atol": 2.0**-22 * 48}
    assert "3 of 3 ranks passed" in text
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), len(suite.findall("testcase"))) == ("3", "0", 3)


def test_integers_are_right_to_the_last_bit(run: Run) -> None:
    status, data, _ = run("", "--world", "2", *SMALL, "--data", "integers")
    assert (status, [v["max_abs_err"] for v in data["verdicts"]]) == (0, [0.0, 0.0])


def test_case_19_one_wrong_rank_of_four(run: Run, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    status, data, text = run("touch", "--world", "4", *SMALL, "--junit", str(junit))
    assert (status, results(data)) == (1, [PASS, FAIL, PASS, PASS])
    first = data["verdicts"][1]["first_bad"]
    assert (first["row"], first["col"], first["source_rank"]) == (0, 0, 0)
    assert first["got"] == pytest.approx(first["want"] + 1000, rel=1e-2)
    assert "row 0, column 0: got" in text
    failures = ElementTree.parse(junit).getroot().findall("testcase/failure")
    assert ["row 0, column 0" in str(failure.text) for failure in failures] == [True]


def test_a_fault_in_the_second_launch_names_it_and_its_slot(run: Run) -> None:
    status, data, _ = run("touch_second_launch", "--world", "2", *SMALL, "--repeat", "3")
    assert (status, results(data)) == (1, [FAIL, PASS])
    first = data["verdicts"][0]["first_bad"]
    # Three iterations a launch and two slots: launch 2 begins in slot 1 and ends in slot 1.
    assert (first["repeat"], first["row"], first["source_rank"], first["iteration"], first["slot"]) == (2, 79, 1, 2, 1)


@pytest.mark.parametrize(("target", "counts"), [("one_nan", [0, 1]), ("all_nan", [1920, 1920])])
def test_case_8_nan_fails_with_count_and_place(run: Run, target: str, counts: list[int]) -> None:
    status, data, text = run(target, "--world", "2", *SMALL)
    assert (status, [v["nan_count"] for v in data["verdicts"]]) == (1, counts)
    assert data["verdicts"][1]["first_bad"]["got"] == "nan"
    assert f"{counts[1]} NaN" in text


def test_case_10_overflow_is_reported(run: Run) -> None:
    status, data, text = run("ones", "--world", "2", "--m", "16", "--n", "16", "--k", "70000")
    assert (status, results(data)) == (1, [OVERFLOW] * 2)
    assert "512 of 512 reference elements" in text


def test_case_10_sums_are_fp32(run: Run) -> None:
    status, data, _ = run(
        "cancelling", "--world", "2", "--m", "8", "--n", "8", "--k", "2", "--rtol", "0", "--atol", "0"
    )
    assert (status, results(data)) == (0, [PASS] * 2)


def test_case_27_exchanged_ranks_fail(run: Run) -> None:
    status, data, _ = run("exchanged_ranks", "--world", "2", *SMALL)
    assert (status, results(data)) == (1, [FAIL] * 2)
    assert len(data["verdicts"][0]["bad"]["source_ranks"]) == 2


def test_case_24_a_rank_that_did_not_report_is_a_failure(run: Run) -> None:
    status, data, text = run("raise_before_launch", "--world", "2", *SMALL)
    assert (status, data["result"], data["exit_status"]) == (3, "ERROR", 3)
    assert "ag-gemm: error: rank 1: RuntimeError: no such luck" in text
    status, data, text = run("exit_before_report", "--world", "2", *SMALL)
    assert (status, data["result"], data["exit_status"]) == (3, "ERROR", 3)
    assert "rank 1: ended with exit status 0 before it reported" in text


@pytest.mark.slow
def test_case_16_a_lost_rank_is_named(run: Run) -> None:
    status, _, text = run("never_launch", "--world", "2", *SMALL, "--timeout", "8")
    assert status == 3
    assert "rank 1 did not arrive: last seen 'inputs of launch 1'" in text
    assert "rank 0 waited in 'launch 1'" in text
