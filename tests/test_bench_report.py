"""Rows, tables, CSV, JSON, the picture and the comparison of ``bench``: no device, no rank."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli import bench_compare
from agcli.bench_plot import check_plot, plot
from agcli.bench_report import number, print_report, summary, to_csv, to_json
from agcli.bench_rows import ABSENT, FAILED, BenchReport, Row, Setup, quantile, related, report_from_json, timed
from agcli.errors import UsageError

SETUP = Setup("npu", 2, ("fp16",), ("Ascend910B3", "Ascend910B3"), {"torch": "2.7.1"}, chip="Ascend910B3")
ROW = Row(512, 512, 512, 2, "fp16", "fused-store")
positive = st.floats(1e-6, 1e6)


def row(impl: str, *times: float, **fields: Any) -> Row:
    return timed(replace(ROW, impl=impl, **fields), times, None, 313.0)


@pytest.fixture
def report() -> BenchReport:
    rows = related([row("fused-store", 3.25, 3.0, 3.5), row("torch", 4.5), row("gemm", 3.0), row("allgather", 1.0)])
    vendor = replace(ROW, impl="vendor", check=ABSENT, note="K must be at least 256")
    wrong = replace(ROW, impl="fused-putmem", check=FAILED, note="first call: rank 1 wrong; 3 of 9 elements")
    return BenchReport(SETUP, (*rows, vendor, wrong))


# -- figures -----------------------------------------------------------------------------------------------------


def test_case_25_flops_of_a_rank() -> None:
    assert ROW.flops == 536870912
    assert replace(ROW, m=4096, n=4096, k=4096).flops == 274877906944


def test_tflops_and_share_of_the_peak_by_hand() -> None:
    one = row("torch", 1.0)  # 536870912 FLOPs in 1 ms
    assert one.tflops == pytest.approx(0.536870912)
    assert one.peak_share == pytest.approx(0.536870912 / 313)
    assert row("allgather", 1.0).tflops is None
    assert timed(ROW, [1.0], None, None).peak_share is None


def test_overlap_speedup_and_multiple_of_the_floor_by_hand(report: BenchReport) -> None:
    fused, torch, gemm, gather = report.rows[:4]
    assert fused.overlap == pytest.approx((3.0 + 1.0 - 3.25) / 1.0)
    assert fused.speedup == pytest.approx(4.5 / 3.25)
    assert fused.times_gemm == pytest.approx(3.25 / 3.0)
    assert (torch.speedup, torch.overlap) == (1.0, -0.5)
    assert (gemm.speedup, gemm.overlap, gemm.times_gemm) == (None, None, 1.0)
    assert (gather.speedup, gather.overlap) == (None, None)


def test_what_was_not_timed_leaves_no_figure_behind() -> None:
    fused, gemm = related([row("fused-store", 2.0), replace(ROW, impl="gemm", check=FAILED)])
    assert (fused.speedup, fused.times_gemm, fused.overlap) == (None, None, None)
    assert gemm.times_gemm is None


def test_a_quantile_lies_between_the_values_around_it() -> None:
    assert quantile([4, 1, 3, 2], 0.5) == 2.5
    assert quantile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], 0.9) == 10
    assert quantile([7], 0.1) == 7


@given(st.lists(positive, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_quantiles_are_ordered_and_within_the_values(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    slack = 1 + 1e-12
    assert min(values) <= quantile(values, low) * slack
    assert quantile(values, low) <= quantile(values, high) * slack
    assert quantile(values, high) <= max(values) * slack


@given(positive)
def test_a_figure_keeps_four_digits_and_has_no_exponent(value: float) -> None:
    text = number(value)
    assert re.fullmatch(r"\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(value, rel=5.1e-4)


def test_a_time_below_the_stated_peak_is_called_wrong() -> None:
    fast = BenchReport(replace(SETUP, peak_tflops=313.0, peak_source="assumed"), (row("fused-store", 1e-3),))
    assert "faster than the stated peak, 313 TFLOPS of Ascend910B3 (assumed)" in fast.warnings()[0]
    assert BenchReport(SETUP, (row("fused-store", 1.0),)).warnings() == []


# -- layouts -----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(report: BenchReport, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, **environ: str) -> str:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "CI"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm", **environ}.items():
        monkeypatch.setenv(name, value)
    print_report(report, stream)
    return stream.getvalue()


@pytest.mark.parametrize("environ", [{}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"CI": "1"}])
def test_case_28_in_a_pipe_each_row_is_one_line_without_escapes(
    report: BenchReport, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(report, io.StringIO(), monkeypatch, **environ)
    assert "\x1b" not in text
    for r in report.rows:
        line = next(line for line in text.splitlines() if line.split()[:3] == [r.shape, r.dtype, r.impl])
        assert r.check in line.split()
        assert number(r.median_ms) in line.split()
        assert number(r.tflops) in line.split()


@pytest.mark.parametrize("columns", [20, 40, 80, 100, 120, 200])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_case_28_on_a_terminal_every_figure_is_whole(
    report: BenchReport, columns: int, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(report, Terminal(), monkeypatch, COLUMNS=str(columns), TERM=term)
    words = set(re.sub(r"\x1b\[[0-9;]*m|[│┃]", " ", text).split())
    for r in report.rows:
        wanted = {r.shape, r.impl, r.check, number(r.median_ms), number(r.p10_ms), number(r.p90_ms), number(r.tflops)}
        assert wanted <= words
    assert "…" not in text
    if columns >= 40:
        longest = max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in text.splitlines())
        assert longest <= columns


def test_columns_that_nothing_has_are_left_out(report: BenchReport, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(report, io.StringIO(), monkeypatch)
    assert "peak" in text
    assert "host ms" not in text
    assert "name" not in text
    with_host = replace(report, rows=tuple(replace(r, host_ms=1.5, name="llama/qkv") for r in report.rows))
    text = shown(with_host, io.StringIO(), monkeypatch)
    assert "host ms" in text
    assert "llama/qkv" in text


def test_the_header_says_what_was_measured_and_how(report: BenchReport, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = replace(SETUP, warmup=7, clock="device events", seed=3, peak_tflops=313.0, peak_source="assumed: somewhere")
    text = shown(replace(report, setup=setup), io.StringIO(), monkeypatch)
    for part in (
        "npu, torch 2.7.1",
        "2 x Ascend910B3",
        "device events",
        "1 to 3 calls, 7 to warm up",
        "cold",
        "seed 3",
    ):
        assert part in text
    assert "stated peak 313 TFLOPS fp16 (assumed: somewhere)" in text
    assert "EMULATION" not in text
    emulated = shown(replace(report, setup=replace(setup, emulated=True)), io.StringIO(), monkeypatch)
    assert emulated.startswith("EMULATION: figures of the emulation on this machine's CPU, not of a chip")
    assert "warm: every call" in shown(replace(report, setup=replace(setup, warm=True)), io.StringIO(), monkeypatch)


def test_reasons_stand_below_the_table(report: BenchReport, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(report, io.StringIO(), monkeypatch)
    assert "512x512x512 fp16 vendor n/a: K must be at least 256" in text
    assert "512x512x512 fp16 fused-putmem FAIL: first call: rank 1 wrong" in text
    assert text.splitlines()[-1] == "rows: 4 timed, 1 FAIL, 1 not available here"
    assert summary(replace(report, complete=False)).endswith("stopped before the end")


# -- files -------------------------------------------------------------------------------------------------------


def test_json_comes_back_as_it_was_and_ignores_what_a_newer_version_adds(report: BenchReport) -> None:
    data = json.loads(to_json(report), parse_constant=pytest.fail)
    assert data["passed"] is False
    assert data["rows"][0]["flops_per_rank"] == 536870912
    data["rows"][0]["invented"] = data["setup"]["invented"] = 1
    assert report_from_json(data, "r.json") == report


@pytest.mark.parametrize(
    "data", [[], {}, {"schema": "ag-gemm-verify/1"}, {"schema": "ag-gemm-bench/1", "rows": []}, None]
)
def test_what_is_no_report_is_refused(data: Any) -> None:
    with pytest.raises(UsageError, match=r"r\.json is not a report"):
        report_from_json(data, "r.json")


def test_csv_has_a_line_a_row_and_no_rounded_figure(report: BenchReport) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [line["impl"] for line in lines] == [r.impl for r in report.rows]
    assert float(lines[0]["tflops"]) == report.rows[0].tflops
    assert lines[4]["median_ms"] == ""
    assert lines[4]["note"] == "K must be at least 256"
    assert lines[0]["backend"] == "npu"


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("count", [1, 40])
def test_the_picture_is_drawn_for_one_problem_and_for_many(
    report: BenchReport, tmp_path: Path, suffix: str, count: int
) -> None:
    pytest.importorskip("matplotlib")
    rows = [replace(r, m=r.m + i, name=f"model/{i}") for i in range(count) for r in report.rows]
    path = tmp_path / f"b{suffix}"
    check_plot(path)
    plot(replace(report, rows=tuple(rows)), path)
    head = path.read_bytes()[:400]
    assert head.startswith(b"\x89PNG") or b"<svg" in head or b"<?xml" in head


def test_a_report_without_figures_can_be_drawn_too(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot(BenchReport(SETUP, (replace(ROW, check=FAILED),)), tmp_path / "b.png")
    assert (tmp_path / "b.png").stat().st_size > 0


def test_a_picture_of_another_kind_is_refused_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in \.png or \.svg"):
        check_plot(tmp_path / "b.gif")


# -- comparison --------------------------------------------------------------------------------------------------


def scaled(report: BenchReport, factor: float) -> BenchReport:
    """The report with all times multiplied."""
    rows = [replace(r, median_ms=r.median_ms * factor) if r.median_ms else r for r in report.rows]
    return replace(report, rows=tuple(rows))


@given(st.floats(0.01, 100), st.floats(0, 10))
def test_a_row_is_too_slow_exactly_when_its_ratio_exceeds_the_limit(factor: float, allowed: float) -> None:
    old = BenchReport(SETUP, (row("fused-store", 2.0), row("gemm", 1.0)))
    result = bench_compare.compare(scaled(old, factor), old, allowed)
    assert [c.ratio for c in result.changes] == pytest.approx([factor] * 2)
    assert result.passed == all(c.ratio is not None and c.ratio <= 1 + allowed for c in result.changes)


def test_rows_without_times_or_partners_are_counted_but_not_judged(report: BenchReport) -> None:
    old = replace(report, rows=(*report.rows[:-1], replace(ROW, m=1, impl="gemm")))
    result = bench_compare.compare(report, old, 0.05)
    assert (len(result.changes), result.only_new, result.only_old, result.passed) == (5, 1, 1, True)
    out = io.StringIO()
    bench_compare.print_comparison(result, out)
    assert out.getvalue().splitlines()[-1] == "comparison: 0 of 5 rows slower than allowed, 1 only now, 1 only then"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"world": 4}, "world 2 now, 4 then"),
        ({"dtypes": ("bf16",)}, "dtypes fp16 now, bf16 then"),
        ({"devices": ("Ascend910B4", "Ascend910B4")}, "devices Ascend910B3 now, Ascend910B4 then"),
        ({"chip": "Ascend910B4"}, "chip Ascend910B3 now, Ascend910B4 then"),
        ({"backend": "cuda"}, "backend npu now, cuda then"),
        ({"warm": True}, "caches cold now, warm then"),
    ],
)
def test_apples_are_not_compared_with_pears(report: BenchReport, change: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        bench_compare.compare(report, replace(report, setup=replace(SETUP, **change)), 0.05)


def test_before_the_run_only_what_is_known_is_judged() -> None:
    unknown = replace(SETUP, devices=(), chip="")
    bench_compare.check_comparable(unknown, SETUP)
    with pytest.raises(UsageError, match="world"):
        bench_compare.check_comparable(replace(unknown, world=3), SETUP)


def test_reports_without_a_common_row_are_refused(report: BenchReport) -> None:
    with pytest.raises(UsageError, match="no row in common"):
        bench_compare.compare(report, replace(report, rows=()), 0.05)


def test_a_limit_is_a_share() -> None:
    assert bench_compare.parse_slowdown("5%") == bench_compare.parse_slowdown("0.05") == 0.05
    for bad in ("-1%", "five", "", "%", "nan", "inf"):
        with pytest.raises(UsageError, match="--max-slowdown"):
            bench_compare.parse_slowdown(bad)


def test_an_unreadable_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("absent.json", "broken.json", "deep.json"):
        with pytest.raises(UsageError, match="cannot read"):
            bench_compare.read_report(tmp_path / name)


@pytest.mark.parametrize(
    "setup",
    [{"dtypes": None}, {"dtypes": [1e400]}, {"dtypes": [10**30]}, {"devices": True}, {"devices": [[]]}],
    ids=str,
)
def test_a_report_with_fields_of_other_types_is_refused(report: BenchReport, setup: dict[str, Any]) -> None:
    data = json.loads(to_json(report))
    data["setup"] |= setup
    with pytest.raises(UsageError, match=r"r\.json is not a report of 'ag-gemm bench --json': TypeError"):
        report_from_json(data, "r.json")
    with pytest.raises(UsageError, match="TypeError: median_ms"):
        report_from_json({**json.loads(to_json(report)), "rows": [{**data["rows"][0], "median_ms": "1"}]}, "r.json")
