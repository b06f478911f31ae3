"""``ag-gemm check``: exit statuses, the table, JSON."""

import json
import re

import programs as p
import pytest

from agcli.backends.cpu import KERNEL_FILE, KERNEL_NAME
from agcli.check.cases import Sweep
from agcli.check.run import split_kernel
from agcli.main import main

QUICK = ("check", "--world", "2", "--m", "43", "--transport", "store", "--buffer-num", "2")
SEED = ("check", "--kernel", f"{p.KERNELS / 'seed_gemm.py'}:kernel_allgather_gemm", "--world", "2")


@pytest.mark.slow
def test_the_default_sweep_of_our_kernel_is_clean(capsys):
    assert main(["check", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert all(case["clean"] for case in report["cases"])
    assert report["faults"] == report["warnings"] == []
    assert (report["launches"], report["result"]) == (3, "PASS")


def test_the_default_sweep_covers_what_it_claims():
    cases = list(Sweep().cases(split_kernel(f"{KERNEL_FILE}:{KERNEL_NAME}")))
    seen = {
        (c.problem.world, c.config.transport, c.config.buffer_num, c.plan.iterations, c.plan.tail_rows < 32)
        for c in cases
    }
    wanted = [
        (world, transport, slots, iterations, tail)
        for world in (2, 3, 4)
        for transport in ("store", "putmem")
        for slots in (2, 3)
        for iterations in (2, 3)
        for tail in (False, True)
    ]
    assert seen >= set(wanted)
    assert len({c.label for c in cases}) == len(cases)


def test_the_help_states_the_defaults_that_the_sweep_takes(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["check", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    cases = list(Sweep().cases(split_kernel(f"{KERNEL_FILE}:{KERNEL_NAME}")))
    taken = {"--m": {c.problem.m for c in cases}, "--n": {c.problem.n for c in cases}}
    taken |= {"--k": {c.problem.k for c in cases}, "--cores": {c.cores for c in cases}}
    taken["--world"] = {c.problem.world for c in cases}
    for name in ("block_m", "block_n", "block_k", "comm_block_m", "comm_block_k", "pvalue", "buffer_num"):
        taken[f"--{name.replace('_', '-')}"] = {getattr(c.config, name) for c in cases}
    for option, values in taken.items():
        (line,) = [line for line in lines if f"│ {option} " in line]
        stated = line.partition("[default: (")[2].partition(")")[0].partition(":")[0]
        assert {int(text) for text in re.findall(r"\d+", stated)} == values, line
    (line,) = [line for line in lines if "│ --transport " in line]
    assert "auto: both, one after the other." in line
    assert "[default: auto]" in line
    assert {c.config.transport for c in cases} == {"store", "putmem"}


def test_the_documented_command_for_one_case_runs_one():
    (line,) = [line for line in (p.DOCS / "check.md").read_text().splitlines() if line.endswith("  one case")]
    words = line.removesuffix("one case").split()
    options = dict(zip(words[2::2], words[3::2], strict=True))
    assert set(options) == {"--world", "--m", "--buffer-num", "--transport"}
    kernel = {"buffer_num": int(options["--buffer-num"]), "transport": options["--transport"]}
    sweep = Sweep(int(options["--world"]), int(options["--m"]), kernel_options=kernel)
    assert len(list(sweep.cases(split_kernel(f"{KERNEL_FILE}:{KERNEL_NAME}")))) == 1


def test_our_kernel_is_clean(capsys):
    assert main([*QUICK]) == 0
    out = capsys.readouterr().out
    assert "no fault found" in out
    assert "1 of 1 cases are free of faults" in out


def test_the_printed_kernel_of_the_defining_document_has_one_fault(capsys):
    """Its slots restart at 0 each launch: with an odd number of iterations a fast rank overwrites a slow one's data."""
    assert main([*SEED, "--m", "96", "--buffer-num", "2", "--json", "-"]) == 1
    captured = capsys.readouterr()
    report = json.loads(captured.out)
    (fault,) = report["faults"]
    assert (fault["kind"], report["result"], report["exit_status"]) == ("race", "FAIL", 1)
    assert {place["launch"] for place in fault["places"]} == {0, 1}
    assert "FAULT race" in captured.err, "the table goes where the JSON is not"


def test_the_printed_kernel_is_clean_where_its_iterations_are_even():
    assert main([*SEED, "--m", "64", "--buffer-num", "2"]) == 0


def edited(tmp_path, kernel, *edits):
    """The name of a kernel of the tests, changed."""
    source = (p.KERNELS / kernel).read_text()
    for old, new in edits:
        assert source.count(old) == 1
        source = source.replace(old, new)
    (tmp_path / kernel).write_text(source)
    return f"{tmp_path / kernel}:kernel_allgather_gemm"


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        ("raise ValueError('x')", "'raise' is not supported in a kernel"),
        ("fence()", "fence is not defined"),
        ("undefined_function(3)", "undefined_function is not defined"),
        ("x = undefined_name", "undefined_name is not defined"),
        ("yield 3", "'yield' is not supported in a kernel"),
        ("del M", "'del' is not supported in a kernel"),
        ("import os", "'import' is not supported in a kernel"),
        ("global Q", "'global' is not supported in a kernel"),
        ("c_ptr.foo()", "the simulator does not know c_ptr.foo"),
        ("open('f', 'w')", "open of Python cannot be used"),
        ("1 / 0", "1 / 0 raises ZeroDivisionError"),
        ("tl.nonexistent()", "the simulator does not know tl.nonexistent"),
        ("primitives.nonexistent()", "the simulator does not know primitives.nonexistent"),
    ],
)
def test_a_statement_that_means_nothing_is_refused_though_nobody_uses_its_result(statement, what, tmp_path, capsys):
    barrier = "        primitives.barrier_all()\n"
    source = KERNEL_FILE.read_text()
    line = source[: source.index(barrier)].count("\n") + 1
    file = tmp_path / "changed.py"
    file.write_text(source.replace(barrier, f"        {statement}\n{barrier}"))
    assert main(["check", "--kernel", f"{file}:{KERNEL_NAME}"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"changed.py:{line}: {what}" in captured.err
    assert captured.err.count("\n") == 1


def test_signals_are_given_to_kernels_that_want_them(tmp_path):
    barrier = "        libshmem_device.barrier_all()\n"
    signal = "        libshmem_device.signal_op(sig_ptr, launch, 0, 0)\n"
    edits = (("    peer_mem_ptr,\n", "    peer_mem_ptr,\n    sig_ptr,\n    launch,\n"), (barrier, barrier + signal))
    kernel = edited(tmp_path, "barrier_gemm.py", *edits)
    assert main(["check", "--kernel", kernel, "--world", "2", "--m", "43"]) == 0


def test_a_wrong_result_without_a_race_is_found(tmp_path, capsys):
    kernel = edited(tmp_path, "seed_gemm.py", ("accumulator += tl.dot(a, b)", "accumulator = tl.dot(a, b)"))
    assert main(["check", "--kernel", kernel, "--world", "2", "--m", "64", "--buffer-num", "2"]) == 1
    assert "FAULT wrong-result: C of rank 0, launch 0, differs from the product in" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--kernel", "nowhere.py:kernel"], "no such kernel file"),
        (["--kernel", f"{p.KERNELS.parents[2] / 'pyproject.toml'}:kernel"], "pyproject.toml: it is no Python file"),
        (["--kernel", f"{p.KERNELS / 'ring.py'}:kernel"], "parameters that check cannot give: src_ptr, dst_ptr"),
        (["--world", "2", "--m", "0"], "M must be at least 1"),
        (["--buffer-num", "1"], "buffer_num must be at least 2"),
        (["--world", "2", "--launches", "0"], "--launches"),
        (["--world", "2", "--m", "100000000", "--n", "1000000"], "is too large to check"),
    ],
)
def test_wrong_usage_ends_with_2(arguments, problem, capsys):
    assert main(["check", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_a_kernel_file_that_ends_the_program_is_refused(tmp_path, capsys):
    file = tmp_path / "ex.py"
    file.write_text("import sys\ndef f(): pass\nsys.exit(0)\n")
    assert main(["check", "--kernel", f"{file}:f"]) == 2
    error = f"ag-gemm: error: cannot load {file}: it ends the program while it is loaded (SystemExit: 0)\n"
    assert capsys.readouterr() == ("", error)


def test_a_report_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main([*QUICK, "--json", str(tmp_path / "no" / "report.json")]) == 2
    assert "there is no directory" in capsys.readouterr().err
