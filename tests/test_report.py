"""Reports: what people see on every kind of screen, and what programs read."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli import outputs, report
from agcli.chips import chip_by_name
from agcli.errors import EnvironmentFault, UsageError
from agcli.problem import KernelConfig, Problem, make_plan
from agcli.progress import progress_bar
from agcli.report import VerifyReport, print_report, to_json, to_junit, versions_of
from agcli.screen import Column, render_table
from agcli.verdict import BadRegions, FirstBad, Tolerance, Verdict

RIGHT = Verdict(0, "simulated", "PASS", 1.25e-4, 3e-5, 0, 4096, 0, 0, 0, 1e-3, 1e-3, 1.5, 1)
WRONG = Verdict(
    rank=1,
    device="simulated",
    result="FAIL",
    max_abs_err=1000.25,
    max_rel_err=12.5,
    mismatches=7,
    elements=4096,
    nan_count=3,
    inf_count=0,
    nonfinite_reference=0,
    rtol=1e-3,
    atol=1e-3,
    seconds=2.25,
    repeats=1,
    first_bad=FirstBad(17, 5, "nan", -1.5, 1, 0, 17, 0, 1, 0, 0),
    bad=BadRegions([[0, 7]], [[0, 7]], [[1, 7]], [[0, 0, 0, 0, 5], [0, 0, 0, 1, 2]], 3),
)
COLUMNS = [f"column {i}" for i in range(17)]
ROW = [f"{i}234567.{i}" for i in range(16)] + ["PASS"]
ESCAPE = "\x1b"


def verify_report(*verdicts: Verdict) -> VerifyReport:
    plan = make_plan(Problem(64, 64, 64, 2), KernelConfig(), chip_by_name("Ascend910B3"))
    options = {"data": "normal", "seed": 0, "rtol": None}
    return VerifyReport("cpu", plan, Tolerance(1e-3, 1e-3), verdicts, {"torch": "2.9"}, options, ("slow",))


@pytest.fixture(autouse=True)
def no_colour_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR", "CI"):
        monkeypatch.delenv(name, raising=False)


def on_terminal(columns: Sequence[str], row: Sequence[str], **env: str) -> str:
    """What a table of one row looks like on a terminal of 80 columns, with ``env`` set."""
    code = f"from agcli.screen import render_table; render_table({list(columns)!r}, [{list(row)!r}], title='a title')"
    leader, follower = pty.openpty()
    seen = bytearray()

    def read() -> None:
        try:
            while data := os.read(leader, 65536):
                seen.extend(data)
        except OSError:  # Linux says so when the other side is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    try:
        subprocess.run(
            [sys.executable, "-c", code],
            stdout=follower,
            check=True,
            env={**os.environ, "TERM": "xterm-256color", **env},
        )
    finally:
        os.close(follower)
        reader.join(timeout=10)
        os.close(leader)
    return seen.decode().replace("\r\n", "\n")


# -- people ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [{}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"CI": "1"}, {"COLUMNS": "40", "TERM": "dumb"}],
    ids=str,
)
def test_case_28_nothing_is_cut_in_a_file(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    text = io.StringIO()
    render_table(COLUMNS, [ROW], stream=text)
    assert ESCAPE not in text.getvalue()
    (line,) = [line for line in text.getvalue().splitlines() if "PASS" in line]
    assert line.split() == ROW


@pytest.mark.parametrize(
    "env", [{}, {"COLUMNS": "40"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"CI": "1"}, {"COLUMNS": "10"}], ids=str
)
def test_case_28_what_does_not_fit_a_terminal_is_stacked(env: dict[str, str]) -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", on_terminal(COLUMNS, ROW, **env))
    for column, cell in zip(COLUMNS, ROW, strict=True):
        assert re.search(rf"^{column}:\s+{re.escape(cell)}$", text, re.MULTILINE)


def test_a_wide_terminal_shows_a_table() -> None:
    text = on_terminal(COLUMNS[:3], ["1", "2.5", "PASS"])
    assert "│" in text
    assert ESCAPE in text
    assert text.startswith("a title\n")


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_a_terminal_without_colour_gets_no_escape_bytes(env: dict[str, str]) -> None:
    text = on_terminal(COLUMNS[:3], ["1", "2.5", "PASS"], **env)
    assert ESCAPE not in text
    assert "PASS" in text


def test_colour_in_a_file_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    text = io.StringIO()
    render_table(COLUMNS, [ROW], stream=text)
    assert ESCAPE in text.getvalue()
    assert all(cell in text.getvalue() for cell in ROW)


@given(rows=st.lists(st.lists(st.text("ab[]/\\:;*_1.", max_size=30), min_size=3, max_size=3), min_size=1, max_size=4))
def test_cells_are_printed_as_they_are(rows: list[list[str]]) -> None:
    text = io.StringIO()
    render_table([Column("x"), Column("number", numeric=True), "y"], rows, title="[bold]", stream=text)
    lines = text.getvalue().splitlines()
    assert len(lines) == len(rows) + 2
    for line, row in zip(lines[2:], rows, strict=True):
        assert line.replace(" ", "") == "".join(row)


def test_the_table_of_verdicts() -> None:
    text = io.StringIO()
    print_report(verify_report(RIGHT, WRONG), text)
    lines = text.getvalue().splitlines()
    assert "backend: cpu, torch 2.9" in lines
    assert "tolerance: rtol 0.001, atol 0.001" in lines
    assert "warning: slow" in lines
    assert any(line.split() == ["0", "simulated", "PASS", "0.000125", "3e-05", "0", "1.500"] for line in lines)
    assert any("1e+03 + 3 NaN" in line and "FAIL" in line for line in lines)
    assert "  first: row 17, column 5: got nan, want -1.5 (launch 1)" in lines
    assert "  it belongs to: source rank 0, its row 17, iteration 0, slot 1, tile (0, 0)" in lines
    assert any(line.endswith("tile (0, 1): 2; and 1 more") for line in lines)
    assert lines[-1] == "1 of 2 ranks passed"


# -- programs ----------------------------------------------------------------------------------------------------


def test_json_is_json_and_holds_the_verdicts() -> None:
    data = json.loads(to_json(verify_report(RIGHT, WRONG)), parse_constant=pytest.fail)
    assert (data["schema"], data["result"], data["exit_status"]) == (report.SCHEMA, "FAIL", 1)
    assert [Verdict.from_json(verdict) for verdict in data["verdicts"]] == [RIGHT, WRONG]
    assert data["config"]["transport"] == "store"


def test_junit_has_a_case_for_each_rank() -> None:
    root = ElementTree.fromstring(to_junit(verify_report(RIGHT, WRONG)))
    assert (root.tag, root.get("tests"), root.get("failures")) == ("testsuite", "2", "1")
    right, wrong = root.findall("testcase")
    assert right.find("failure") is None
    failure = wrong.find("failure")
    assert failure is not None
    assert "row 17, column 5" in (failure.text or "")


def test_versions_that_differ_between_ranks_are_all_shown() -> None:
    assert versions_of([{"torch": "2.9", "x": "1"}, {"torch": "2.8", "x": "1"}]) == {"torch": "2.9 / 2.8", "x": "1"}


# -- files -------------------------------------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    outputs.write_file(path, "first")
    assert path.read_text() == "first"
    assert path.stat().st_mode & 0o444 == 0o444 & ~outputs._umask()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        outputs.write_file(path, "second")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_a_stop_leaves_no_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        outputs.write_file(tmp_path / "report.json", "text")
    assert list(tmp_path.iterdir()) == []


def test_whatever_cannot_be_written_the_rest_is() -> None:
    """The table of a FAIL and the reports after the one that failed."""
    stdout = io.StringIO()
    with pytest.raises(EnvironmentFault, match="/dev/full could not be written: No space left on device"):
        report.deliver(verify_report(RIGHT, WRONG), stdout, Path("/dev/full"), Path("-"))
    assert ElementTree.fromstring(stdout.getvalue()).get("failures") == "1"


def test_a_table_is_printed_before_a_report_fails(tmp_path: Path) -> None:
    stdout, junit = io.StringIO(), tmp_path / "v.xml"
    with pytest.raises(EnvironmentFault, match="/dev/full"):
        report.deliver(verify_report(RIGHT, WRONG), stdout, Path("/dev/full"), junit)
    assert "rank 1 FAIL" in stdout.getvalue()
    assert stdout.getvalue().endswith("1 of 2 ranks passed\n")
    assert ElementTree.parse(junit).getroot().get("failures") == "1"


def test_a_reader_that_left_does_not_keep_files_from_being_written(tmp_path: Path) -> None:
    class Left(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    path = tmp_path / "v.json"
    with pytest.raises(BrokenPipeError):
        report.deliver(verify_report(RIGHT), Left(), path, None)
    assert json.loads(path.read_text())["result"] == "PASS"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    outputs.write_file(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "text"


def test_what_cannot_be_written_is_refused_early(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent" / "report.json"):
        with pytest.raises(UsageError, match="--json"):
            outputs.check_writable(path, "--json")
    outputs.check_writable(tmp_path / "new.json", "--json")
    outputs.check_writable(Path("-"), "--json")


def test_two_reports_that_would_go_to_one_place_are_refused(tmp_path):
    one = tmp_path / "one"
    outputs.check_distinct({"--json": one, "--csv": tmp_path / "two", "--plot": None})
    with pytest.raises(UsageError, match=f"--json and --plot both name {one}"):
        outputs.check_distinct({"--json": tmp_path / "." / "one", "--csv": None, "--plot": one})
    with pytest.raises(UsageError, match="--json and --csv both name stdout"):
        outputs.check_distinct({"--json": Path("-"), "--csv": Path("-")})


def test_stdout_is_the_reports_alone() -> None:
    code = """
import os
from agcli.outputs import reserved_stdout
print("before")
with reserved_stdout() as stdout:
    print("a library")
    os.write(1, b"below Python\\n")
    stdout.write("the report\\n")
print("afterwards")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "before\nthe report\nafterwards\n"
    assert sorted(done.stderr.splitlines()) == ["a library", "below Python"]


# -- progress ----------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("env", "shown"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "CI": "1"}, False)],
    ids=str,
)
def test_progress_is_drawn_only_where_it_can_be_drawn_over(
    env: dict[str, str], shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress_bar("tiles") as on_progress:
        assert (on_progress is not None) is shown
        if on_progress is not None:
            on_progress(3, 12)
            on_progress(12, 12)
    assert ("12/12" in terminal.getvalue()) is shown


def test_no_progress_without_a_terminal() -> None:
    with progress_bar("tiles") as on_progress:
        assert on_progress is None
