"""Tune: whole searches over real rank processes, with a platform whose times are made up."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from agcli import backends, tune_run, tuned
from agcli.backends.base import Need
from agcli.bench_run import Wanted
from agcli.chips import CHIPS, Chip
from agcli.errors import EnvironmentFault
from agcli.launch import launch
from agcli.main import main
from agcli.outcome import Job
from agcli.problem import Problem
from agcli.request import Machine
from agcli.tune_plan import Task, TunePlan
from agcli.tuned import Choice, read

TESTS = Path(__file__).parent
SPACE = (
    Choice(),  # 10 ms
    Choice(extra={"ms": 7.0}),
    Choice(extra={"ms": 1.0, "fault": "wrong"}),
    Choice(extra={"ms": 2.0, "fault": "no compile"}),
    Choice(extra={"ms": 3.0, "fault": "refused"}),
    Choice(extra={"ms": 4.0, "fault": "wrong later"}),
    Choice(extra={"ms": 5.0}),
    Choice(extra={"ms": 6.0}),
)


class FakeGpu:
    """The parent's view of a server with two devices."""

    name = "cuda"

    def needs(self) -> list[Need]:
        return [Need("devices", True, "2 GPUs visible")]

    def device_count(self) -> int:
        return 2

    def chip(self, soc: str | None) -> Chip | None:
        return None

    def tuning_space(self, problem: Problem, chip: Chip | None) -> list[Choice]:
        return list(SPACE)


@pytest.fixture
def tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``ag-gemm tune`` on two stand-ins: its exit status, with its report and store in ``tmp_path``."""
    monkeypatch.setenv("PYTHONPATH", f"{TESTS}:{TESTS.parent}")
    monkeypatch.setattr(backends, "get_backend", lambda name: FakeGpu())

    def start(*args: str, target: str = "plain") -> int:
        monkeypatch.setattr(tune_run, "RANK_TARGET", f"tune_targets:{target}")
        files = ["--store", str(tmp_path / "t.json"), "--json", str(tmp_path / "r.json")]
        return main(["tune", "--m", "8,16", "--n", "8", "--k", "16", "--budget", "30", *files, *args])

    return start


def test_the_fastest_right_candidate_is_stored(tune: Any, tmp_path: Path, capfd: Any) -> None:
    assert tune() == 0
    entries = read(tmp_path / "t.json")
    assert [(e.m, e.chip, e.choice.extra, e.median_ms, e.default_ms) for e in entries] == [
        (m, "stand-in 0", {"ms": 5.0}, 5.001, 10.001) for m in (8, 16)
    ]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"]
    result = report["results"][0]
    assert (result["measured"], result["refused"], result["left"]) == (4, 4, 0)
    notes = "\n".join(result["notes"])
    for note in ("first call: rank 1 wrong", "last call: rank 0 wrong", "cannot run: ub overflow, requires 2 bits\n"):
        assert note in notes + "\n"
    assert "cannot run: too many stages" in notes
    out = capfd.readouterr().out
    assert "2.00x" in out
    assert f"stored: 2 in {tmp_path / 't.json'}" in out


def test_all_ranks_run_the_same_candidates_in_the_same_order() -> None:
    tasks = tuple(Task(Problem(m, 8, 16, 3), SPACE) for m in (8, 16))
    plan = TunePlan("cpu", tasks, 30.0)
    env = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    results = launch(Job("tune_targets:plain", plan.to_json()), world=3, devices=[0, 1, 2], timeout_s=60, env=env)
    assert [r.message for r in results] == [""] * 3
    values = [r.value for r in results]
    assert all(value["ran"] == values[0]["ran"] and value["steps"] == values[0]["steps"] for value in values)
    assert all(value["closed"] == len(value["ran"]) for value in values)


def test_a_stop_keeps_the_best_so_far(tune: Any, tmp_path: Path) -> None:
    assert tune(target="interrupted") == 130
    (entry,) = read(tmp_path / "t.json")
    assert (entry.m, entry.choice.extra) == (8, {"ms": 5.0})
    assert json.loads((tmp_path / "r.json").read_text())["complete"] is False


def test_what_cannot_be_read_is_refused_before_ranks_start(tune: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "t.json").write_text("something else")
    assert tune() == 2
    assert "is not a file of `ag-gemm tune`" in capsys.readouterr().err
    assert (tmp_path / "t.json").read_text() == "something else"


def test_a_store_that_cannot_be_written_is_refused_before_ranks_start(tune: Any, tmp_path: Path, capsys: Any) -> None:
    assert tune("--store", str(tmp_path / "r.json")) == 2
    assert "--json and --store both name" in capsys.readouterr().err
    with mock.patch("os.access", lambda path, mode: path != tmp_path):
        assert tune("--json", "-", "--store", str(tmp_path / "new" / "t.json")) == 2
    assert "cannot be written: no permission (--store)" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_stored_is_reported_all_the_same(tune: Any, tmp_path: Path, capfd: Any) -> None:
    with mock.patch.object(tuned, "add", side_effect=EnvironmentFault("the disk is full")):
        assert tune() == 3
    out, err = capfd.readouterr()
    assert "the disk is full" in err
    assert "2.00x" in out
    assert "stored" not in out
    assert json.loads((tmp_path / "r.json").read_text())["results"][0]["entry"]["median_ms"] == 5.001


def test_nothing_that_runs_is_an_error(tune: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setattr(FakeGpu, "tuning_space", lambda self, problem, chip: [Choice(extra={"fault": "refused"})])
    assert tune() == 3
    assert "nothing ran and was right for 8x8x16 fp16, 16x8x16 fp16" in capfd.readouterr().err
    assert not (tmp_path / "t.json").exists()
    assert json.loads((tmp_path / "r.json").read_text())["complete"]


@pytest.mark.parametrize("args", [("--budget", "0"), ("--m", "0"), ("--dtype", "fp64")])
def test_wrong_usage(tune: Any, args: tuple[str, ...], capsys: Any) -> None:
    assert tune(*args) == 2
    assert capsys.readouterr().err.count("error: ") == 1


def test_an_emulation_is_not_tuned(capsys: Any) -> None:
    assert main(["tune", "--backend", "cpu", "--world", "2", "--m", "64"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "tuning an emulation means nothing" in line


def test_what_the_compiler_refuses_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    space = [Choice(), Choice({"buffer_num": 3}), Choice({"comm_block_m": 64}), Choice({"pvalue": 2})]
    compiled = []

    class Npu(FakeGpu):
        def __init__(self, chip: Chip | None) -> None:
            self._chip = chip

        def chip(self, soc: str | None) -> Chip | None:
            return self._chip

        def tuning_space(self, problem: Problem, chip: Chip | None) -> list[Choice]:
            return space

    def sweep(requests: Any, *_: Any) -> list[Any]:
        compiled.extend(requests)
        return [SimpleNamespace(report=SimpleNamespace(fits=r.config.comm_block_m != 64)) for r in requests]

    def tried(chip: Chip | None) -> list[tuple[tuple[Choice, ...], int]]:
        machine = Machine(Npu(chip), 2, (0, 1))  # type: ignore[arg-type]
        plan = tune_run.make_plan(machine, Wanted(m="512,1024", n="512", k="512"), 30.0, None)
        return [(task.space, task.refused) for task in plan.tasks]

    monkeypatch.setattr("agcli.compiler.sweep.sweep", sweep)
    monkeypatch.setattr("agcli.toolchain.find_toolchain", lambda: None)
    assert tried(CHIPS["Ascend910B3"]) == [(tuple(space), 0)] * 2
    monkeypatch.setattr("agcli.toolchain.find_toolchain", lambda: "found")
    assert tried(None) == [(tuple(space), 0)] * 2
    assert compiled == []
    assert tried(CHIPS["Ascend910B3"]) == [((space[0], space[1], space[3]), 1)] * 2
    assert len(compiled) == 3  # neither sizes nor the number of slots are constants of the kernel
