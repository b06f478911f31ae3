"""The file of tuned configurations: which entry counts for a problem, and that files survive what happens to them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from agcli import tuned
from agcli.backends.cuda_space import candidates
from agcli.backends.cuda_tuning import choose
from agcli.chips import CHIPS
from agcli.errors import UsageError
from agcli.launch import Job, launch
from agcli.main import main
from agcli.problem import Problem
from agcli.tune_space import SLOTTED_AXES, slotted_space, spread
from agcli.tuned import Choice, Entry, add, find, read

TESTS = Path(__file__).parent
ENTRY = Entry("npu", "Ascend910B3", 2, "fp16", 512, 1024, 1024, Choice({"pvalue": 2}), 1.0, 1.5, date="2026-11-30")
PROBLEM = Problem(512, 1024, 1024, 2)


def found(entries: list[Entry], problem: Problem = PROBLEM, chip: str = "Ascend910B3") -> Entry | None:
    return find(entries, "npu", chip, problem)[0]


# -- which entry -------------------------------------------------------------------------------------------------


def test_the_nearest_shape_counts() -> None:
    far = replace(ENTRY, m=2048)
    assert found([far, ENTRY]) == ENTRY
    assert found([far, ENTRY], replace(PROBLEM, m=1900)) == far
    assert found([ENTRY], replace(PROBLEM, m=600)) == ENTRY


def test_a_shape_that_is_not_near_does_not_count() -> None:
    entry, text = find([ENTRY], "npu", "Ascend910B3", replace(PROBLEM, m=512 * 16))
    assert entry is None
    assert "the nearest is 512x1024x1024" in text


@pytest.mark.parametrize(
    "other",
    [{"world": 4}, {"dtype": "bf16"}, {"chip": "Ascend910B2"}, {"backend": "cuda"}, {"version": "0.0.9"}],
)
def test_another_world_dtype_chip_backend_or_version_does_not_count(other: dict[str, Any]) -> None:
    entry, text = find([replace(ENTRY, **other)], "npu", "Ascend910B3", PROBLEM)
    assert entry is None
    assert "defaults used" in text
    assert ("1 of other versions of ag-gemm ignored" in text) == ("version" in other)


def test_the_text_says_which_entry() -> None:
    assert find([ENTRY], "npu", "Ascend910B3", PROBLEM)[1] == (
        "entry of this shape for Ascend910B3, world 2, fp16, 2026-11-30: pvalue 2"
    )
    assert "the nearest shape, 512x1024x1024" in find([ENTRY], "npu", "Ascend910B3", replace(PROBLEM, n=999))[1]


# -- the file ----------------------------------------------------------------------------------------------------


def test_entries_come_back_and_a_new_one_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "t.json"
    assert read(path) == []
    add(path, [ENTRY, replace(ENTRY, m=64)])
    better = replace(ENTRY, choice=Choice({"pvalue": 8}, {"stages": 3}), median_ms=0.5)
    add(path, [better])
    assert read(path) == [replace(ENTRY, m=64), better]
    assert [p.name for p in path.parent.iterdir() if not p.name.endswith(".lock")] == ["t.json"]


def _add_some(path: Path, first: int) -> None:
    for m in range(first, first + 10):
        add(path, [replace(ENTRY, m=m)])


def test_tunings_that_end_together_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    processes = [get_context("spawn").Process(target=_add_some, args=(path, 1 + 10 * i)) for i in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [entry.m for entry in read(path)] == list(range(1, 31))


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "other/1"}', '{"schema": "ag-gemm-tuned/1", "entries": [{}]}'])
def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not a file of `ag-gemm tune`"):
        add(path, [ENTRY])
    assert path.read_text() == text


@pytest.mark.parametrize("damage", [{"m": 0}, {"n": "64"}, {"world": None}, {"chip": 3}, {"choice": {"config": None}}])
def test_a_damaged_entry_is_refused_before_ranks_start(tmp_path: Path, damage: dict[str, Any], capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schema": tuned.SCHEMA, "entries": [{**ENTRY.to_json(), **damage}]}))
    assert main(["verify", *SIZES, "--tuned", "--store", str(path)]) == 2
    assert "is not a file of `ag-gemm tune`" in capsys.readouterr().err


@pytest.mark.parametrize("config", [{"no_field": 1}, {"block_m": "64"}, {"block_m": 17}])
def test_an_entry_that_is_no_configuration_leaves_the_defaults(tmp_path: Path, config: dict[str, Any]) -> None:
    add(tmp_path / "t.json", [replace(CPU_ENTRY, choice=Choice(config))])
    report = tmp_path / "r.json"
    assert main(["verify", *SIZES, "--tuned", "--store", str(tmp_path / "t.json"), "--json", str(report)]) == 0
    assert "defaults used" in json.loads(report.read_text())["tuned"]


# -- what is tried -----------------------------------------------------------------------------------------------


def test_defaults_come_first_then_one_axis_at_a_time() -> None:
    axes = {"a": (1, 2), "b": (3, 4)}
    assert spread(axes, lambda s: True, 4) == [{}, {"a": 1}, {"a": 2}, {"b": 3}]
    every = spread(axes, lambda s: s.get("b") != 4, 100)
    assert every == [{}, {"a": 1}, {"a": 2}, {"b": 3}, *every[4:]]
    assert sorted(map(str, every[4:])) == ["{'a': 1, 'b': 3}", "{'a': 2, 'b': 3}"]
    assert spread(axes, lambda s: True) == spread(axes, lambda s: True)


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend950PR_9579"])
@pytest.mark.parametrize("shape", [(1024, 4096, 4096), (5, 7, 9)])
def test_every_slotted_candidate_is_a_plan_of_its_own(soc: str, shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, world=2)
    space = slotted_space(problem, CHIPS[soc])
    plans = [choice.plan(problem, CHIPS[soc]) for choice in space]  # raises for what the chip refuses
    assert space[0] == Choice()
    assert len(set(plans)) == len(plans) > 10
    assert {plan.config.transport for plan in plans} == set(SLOTTED_AXES["transport"])


def test_every_cuda_candidate_is_a_configuration_of_its_own() -> None:
    problem = Problem(1024, 4096, 4096, 2)
    space = candidates(problem)
    configs = [choose(problem, **choice.extra) for choice in space]
    assert space[0] == Choice()
    assert len(set(configs)) == len(configs) > 20


# -- use ---------------------------------------------------------------------------------------------------------

CPU_ENTRY = replace(
    ENTRY,
    backend="cpu",
    m=48,
    n=64,
    k=64,
    choice=Choice({"block_m": 16, "block_n": 32, "block_k": 32, "pvalue": 1, "transport": "putmem"}),
)
SIZES = ("--backend", "cpu", "--world", "2", "--m", "40", "--n", "64", "--k", "64")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "t.json"
    add(path, [CPU_ENTRY])
    return path


def test_verify_takes_the_entry_and_says_so(store: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    assert main(["verify", *SIZES, "--tuned", "--store", str(store), "--json", str(report)]) == 0
    data = json.loads(report.read_text())
    assert CPU_ENTRY.choice.config.items() <= data["config"].items()
    assert data["tuned"].startswith("entry of the nearest shape, 48x64x64 for Ascend910B3, world 2, fp16")
    assert main(["verify", *SIZES, "--json", str(report)]) == 0
    data = json.loads(report.read_text())
    assert (data["tuned"], data["config"]["block_m"]) == (None, 128)


def test_bench_times_the_entry_beside_the_defaults(store: Path, tmp_path: Path, capfd: Any) -> None:
    report = tmp_path / "r.json"
    args = ["--impl", "fused-store", "--budget", "0.2", "--warm", "--tuned", "--store", str(store)]
    assert main(["bench", *SIZES, *args, "--json", str(report)]) == 0
    rows = {row["impl"]: row for row in json.loads(report.read_text())["rows"]}
    assert {impl: row["check"] for impl, row in rows.items()} == {"fused-store": "PASS", "fused-tuned": "PASS"}
    assert "fused-tuned PASS: entry of the nearest shape, 48x64x64" in capfd.readouterr().out


def test_the_operator_takes_the_entry_and_says_so(store: Path) -> None:
    job = Job("tune_targets:operator", {"store": str(store), "config": asdict(CPU_ENTRY.choice)["config"]})
    env = {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    results = launch(job, world=2, devices=[0, 1], timeout_s=60, env=env)
    assert [r.message for r in results] == ["", ""]
    for result in results:
        assert CPU_ENTRY.choice.config.items() <= result.value["config"].items()
        assert "48x64x64" in result.value["tuned"]
        assert result.value["right"]
        assert "both" not in result.value["refusal"]
        assert "either config or tuned" in result.value["refusal"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--store", "x.json"), "--store x.json is the file of --tuned"),
        (("--tuned", "--block-m", "64", "--pvalue", "2"), "leave --block-m, --pvalue out"),
        (("--tuned", "--store", "."), ". is a directory"),
        (("--tuned", "--store", "x.json", "--json", "./x.json"), "--json and --store both name"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "bench"])
def test_contradictions_are_refused(command: str, args: tuple[str, ...], told: str, capsys: Any) -> None:
    assert main([command, *SIZES, *args]) == 2
    assert told in capsys.readouterr().err


def test_the_users_own_file_is_found_without_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert tuned.default_store() == tmp_path / "ag-gemm" / "tuned.json"
