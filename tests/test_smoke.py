"""Smoke: the list of cases, and whole runs on the cpu backend, right ones and with faults."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from agcli import smoke
from agcli.chips import CHIPS
from agcli.deadline import deadline
from agcli.main import main
from agcli.problem import cdiv
from agcli.smoke_report import ERROR, SCHEMA, SKIPPED, results_of
from agcli.verdict import PASS, Verdict

TESTS = Path(__file__).parent
BOTH = ("store", "putmem")


class Run:
    """One ``ag-gemm smoke`` on the cpu backend, in this process, and what it wrote."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str], *args: str) -> None:
        json_path, junit_path = folder / "s.json", folder / "s.xml"
        begin = time.monotonic()
        self.status = main(["smoke", "--backend", "cpu", "--junit", str(junit_path), "--json", str(json_path), *args])
        self.seconds = time.monotonic() - begin
        self.stdout, self.stderr = capfd.readouterr()
        self.json: dict[str, Any] = json.loads(json_path.read_text())
        self.suite = ElementTree.parse(junit_path).getroot()

    def junit(self, element: str) -> list[str]:
        """Names of the test cases with such an element."""
        return [case.attrib["name"] for case in self.suite if case.find(element) is not None]

    @property
    def last_line(self) -> str:
        return self.stdout.splitlines()[-1]


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def start(*args: str, target: str | None = None) -> Run:
        monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
        if target:
            monkeypatch.setattr(smoke, "RANK_TARGET", f"smoke_targets:{target}")
        return Run(tmp_path, capfd, *args)

    return start


# -- the list ----------------------------------------------------------------------------------------------------


def test_every_shape_meets_both_transports_and_both_types_meet_both() -> None:
    found = smoke.cases(BOTH)
    assert len({case.name for case in found}) == len(found)
    shapes = {(case.m, case.n, case.k) for case in found}
    assert {(c.m, c.n, c.k, c.config["transport"]) for c in found} == {(*s, t) for s in shapes for t in BOTH}
    assert {(c.dtype, c.config["transport"]) for c in found} == {(d, t) for d in ("fp16", "bf16") for t in BOTH}


def test_without_transports_every_shape_has_both_types() -> None:
    found = smoke.cases(())
    shapes = {(case.m, case.n, case.k) for case in found}
    assert {(c.m, c.n, c.k, c.dtype) for c in found} == {(*s, d) for s in shapes for d in ("fp16", "bf16")}
    assert all(not case.config for case in found)  # a kernel of its own has blocks of its own


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend950PR_9579"])
def test_the_cases_are_what_their_names_say(soc: str) -> None:
    for case in smoke.cases(BOTH):
        plan = case.plan(2, CHIPS[soc])
        rows, config = plan.rows_per_iteration, plan.config
        if case.name.startswith("tail-m"):
            assert plan.iterations > 1
            assert plan.tail_rows < rows
            assert plan.tail_rows % config.block_m
        elif case.name.startswith("tail-n"):
            assert case.n > config.block_n
            assert case.n % config.block_n
        elif case.name.startswith("tail-k"):
            assert case.k > config.block_k
            assert case.k % config.block_k
        elif case.name.startswith("back-to-back"):
            assert case.repeat == 5
            assert plan.iterations % 2 == 1  # an odd number of slots a launch, so that launches swap them
            assert cdiv(case.m, config.block_m) > 1


# -- whole runs --------------------------------------------------------------------------------------------------


def test_a_good_kernel_passes_within_a_minute(run: Any) -> None:
    ran = run()
    assert ran.status == 0
    assert ran.seconds < 60
    assert ran.last_line.startswith("smoke PASS: 14 of 14 cases passed on 2 cpu ranks; ")
    assert (ran.json["schema"], ran.json["result"], ran.json["exit_status"]) == (SCHEMA, "PASS", 0)
    assert [len(case["verdicts"]) for case in ran.json["cases"]] == [2] * 14
    assert {row["impl"]: row["check"] for row in ran.json["bench"]} == {
        "fused-store": "PASS",
        "fused-putmem": "PASS",
        "torch": "PASS",
    }
    assert {name: ran.suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": str(1 + 2 * 14 + 3),
        "failures": "0",
        "errors": "0",
        "skipped": "0",
    }


def test_one_touched_element_fails_and_is_named(run: Any) -> None:
    ran = run(target="touch")
    assert ran.status == 1
    assert ran.junit("failure") == ["odd-fp16-putmem rank 1"]
    assert not ran.junit("error")
    failure = ran.suite.find("testcase/failure")
    assert "1 of 7854 elements" in failure.attrib["message"]
    assert "first: row 100, column 3" in failure.text
    assert "wrong: odd-fp16-putmem" in ran.last_line
    assert ran.last_line.startswith("smoke FAIL: 13 of 14")


def test_a_rank_that_dies_is_shown_with_the_case_it_died_in(run: Any) -> None:
    ran = run(target="die")
    assert ran.status == 3
    assert ran.junit("error") == ["odd-fp16-putmem rank 0", "odd-fp16-putmem rank 1"]
    assert len(ran.junit("skipped")) == 2 * 8
    assert "rank 0: killed by signal 9" in ran.stderr
    assert ran.last_line.startswith("smoke ERROR: 5 of 14 cases passed")
    assert "rank 0: killed by signal 9" in ran.last_line


def test_a_run_that_takes_too_long_is_ended_and_reported(run: Any) -> None:
    ran = run("--max-minutes", "0.05", target="sleep")
    assert ran.status == 3
    assert ran.seconds < 30
    assert ran.stderr.count("(--max-minutes)") == 1
    assert ran.json["result"] == "ERROR"
    assert "time was up after 0.05 minutes" in ran.last_line


def test_a_platform_that_is_not_ready_is_reported_too(run: Any) -> None:
    ran = run("--backend", "npu")  # the last of two options counts
    assert ran.status == 3
    assert ran.junit("error") == ["doctor"]
    assert ran.json["result"] == "ERROR"
    assert any(not need["ok"] for need in ran.json["needs"])
    assert "backend npu is not ready" in ran.last_line


def test_a_report_that_cannot_be_written_hides_no_other(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    junit = tmp_path / "s.xml"
    assert main(["smoke", "--backend", "npu", "--json", "/dev/full", "--junit", str(junit)]) == 3
    out, err = capfd.readouterr()
    assert "\nsmoke ERROR: " in out
    assert err == "ag-gemm: error: /dev/full could not be written: No space left on device\n"
    assert ElementTree.parse(junit).getroot().attrib["errors"] == "1"


def test_what_one_rank_found_alone_is_no_pass() -> None:
    """A rank of a job that is stopped knows its own verdicts only."""
    cases = smoke.cases(())[:3]
    own = Verdict(0, "device", PASS, 0.0, 0.0, 0, 10, 0, 0, 0, 0.0, 0.0, 0.1, 1).to_json()
    found = results_of(cases, {index: [own] for index in range(3)}, world=2, error="the time was up")
    assert [case.result for case in found] == [ERROR, SKIPPED, SKIPPED]
    found = results_of(cases, {index: [own, {**own, "rank": 1}] for index in range(2)}, world=2, error="rank 1 died")
    assert [case.result for case in found] == [PASS, PASS, ERROR]


@pytest.mark.parametrize("args", [("--max-minutes", "0"), ("--world", "3", "--devices", "0"), ("--soc", "Ascend1")])
def test_wrong_usage(args: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--backend", "cpu", *args]) == 2
    assert capsys.readouterr().err.count("error: ") == 1


def test_a_deadline_waits_for_a_handler() -> None:
    caught: list[int] = []
    with deadline(0.01) as limit:
        time.sleep(0.05)
        assert limit.passed
        before = signal.signal(signal.SIGTERM, lambda number, _: caught.append(number))
        try:
            time.sleep(0.5)
        finally:
            signal.signal(signal.SIGTERM, before)
    assert caught == [signal.SIGTERM]  # once: a second one would cut the clean-up short


def test_a_deadline_without_a_handler_only_tells() -> None:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with deadline(0.01) as limit:
        time.sleep(0.05)
    assert limit.passed
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_a_deadline_may_be_as_late_as_one_likes() -> None:
    with deadline(6e13) as limit:
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 1e8
    assert not limit.passed
