"""``run`` from a script: what it refuses, what its reports say, the example."""

import runpy

import programs as p
import pytest
import torch

from agcli.check.findings import FAULTS, WARNINGS, Finding, Findings, Place
from agcli.errors import UsageError
from agcli.simulator import run

RESTART = {"restart": True}
SIGNALLED = (
    "            libshmem_device.putmem(peer_mem_ptr + row * K, a_ptr + i * ROWS * K, rows * K * 2, target)\n",
    "            libshmem_device.signal_op(sig_ptr + i * rank_size + rank, launch + 1, 0, target)\n",
)


def test_a_race_is_reported_like_a_good_sanitizer_would(tmp_path):
    result, _ = p.BARRIER_GEMM.check(tmp_path, **RESTART)
    race = result.faults[0]
    read, write = race.places
    assert (read.rank, write.rank) == (1, 0)
    assert (read.launch, write.launch) == (0, 1)
    assert (read.unit, write.unit) == ("cube", "vector 1")
    assert dict(read.loops)["global_id_m"] == 2
    assert dict(write.loops)["global_id_m"] == 0
    text = str(result)
    for part in (
        "FAULT race: write-read race on peer_mem of rank 1, slot 0, rows 0-10, columns 0-15",
        f"barrier_gemm.py:{read.line} in kernel_allgather_gemm",
        "rank 1, core 0, cube, launch 0, global_id_m = 2, tile = 0, block_k = 0, after 3 barriers of this launch",
        "last common synchronisation: barrier_all 2 of launch 0",
        "launches of different ranks are not ordered: rank 1 was in launch 0, rank 0 in launch 1",
        "kernel_allgather_gemm: 1 fault (race)",
    ):
        assert part in text, text


def test_a_race_after_a_wait_names_the_signal_that_came_too_early(tmp_path):
    data, signal = SIGNALLED
    result, _ = p.SIGNAL_GEMM.check(tmp_path, ((data + signal, signal + data),))
    reasons = [fault.why for fault in result.faults if fault.kind == "race"]
    assert any("that ended a wait of cube of core" in why and "signal_gemm.py:" in why for why in reasons), str(result)


def test_a_barrier_that_does_not_hold_the_cube_is_named(tmp_path):
    result, _ = p.BARRIER_GEMM.check(
        tmp_path, (("libshmem_device.barrier_all()", "libshmem_device.barrier_all_vec()"),)
    )
    assert "barrier_all_vec, as in line" in result.faults[0].why


def test_one_launch_does_not_show_what_needs_two(tmp_path):
    def only_one(rank, results, **options):
        return p.barrier_gemm(rank, results, **options)

    source = f"{p.BARRIER_GEMM.file}:kernel_allgather_gemm"
    for launches, clean in ((1, True), (2, False)):
        result = run(source, lambda rank: only_one(rank, {}, **RESTART), cores=3, launches=launches)
        assert result.clean == clean


def test_who_waits_where_is_in_the_report_of_a_deadlock(tmp_path):
    edits = (("signal_op(sig_ptr, turn + 1, 0, 1)", "signal_op(sig_ptr, turn + 1, 0, 0)"),)
    result, _ = p.STREAM.check(tmp_path, edits)
    (fault,) = result.faults
    assert fault.kind == "deadlock"
    assert any("waiting for signals[0] >= 1" in line and "rank 1, core 0" in line for line in fault.details)


def test_an_old_signal_without_consequences_is_a_warning(tmp_path):
    """A token ring needs no data: only its words are at stake, and nothing races."""
    edits = (
        ("                data = tl.load(mem_ptr + offs, mask=offs < n, other=0.0)\n", ""),
        ("                tl.store(dst_ptr + i * n + offs, data, mask=offs < n)\n", ""),
        ("libshmem_device.signal_wait_until(sig_ptr + 1, 3, turn)", "turn = turn + 0"),
        ("libshmem_device.putmem_nbi(mem_ptr, src_ptr + i * n, n * 2, 1)", "turn = turn + 0"),
        ("signal_op(sig_ptr, turn + 1, 0, 1)", "signal_op(sig_ptr, 1, 0, 1)"),
        ("signal_wait_until(sig_ptr, 3, turn + 1)", "signal_wait_until(sig_ptr, 3, 1)"),
    )
    result, _ = p.STREAM.check(tmp_path, edits)
    assert result.clean, str(result)
    assert [w.kind for w in result.warnings] == ["signal-reuse"]


def test_the_same_check_finds_the_same_things(tmp_path):
    edits = (("                tl.store(sig_ptr, 0)\n", ""),)
    first, second = (str(p.HANDSHAKE.check(tmp_path, edits)[0]) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("nowhere.py:kernel", "no such kernel file"),
        (f"{p.KERNELS / 'ring.py'}:other", "has no kernel 'other'; it has kernel"),
        ("ring", "name the kernel as FILE:NAME"),
        (len, "not a kernel"),
    ],
)
def test_what_is_no_kernel_is_refused(kernel, problem):
    with pytest.raises(UsageError, match=problem):
        run(kernel, lambda rank: {})


def test_arguments_that_do_not_fit_are_refused():
    with pytest.raises(UsageError, match="arguments do not fit kernel: missing a required argument"):
        run(f"{p.KERNELS / 'ring.py'}:kernel", lambda rank: {"rank": 0})


def test_ranks_must_agree_on_symmetric_memory():
    def arguments(rank):
        return p.ring(rank, {}) | {"ring_ptr": rank.symmetric("mem", (2 + rank.rank,), torch.float16)}

    with pytest.raises(UsageError, match="must be the same on all ranks"):
        run(f"{p.KERNELS / 'ring.py'}:kernel", arguments)


def test_a_world_without_ranks_is_refused():
    with pytest.raises(UsageError, match="world must be at least 1"):
        run(f"{p.KERNELS / 'ring.py'}:kernel", lambda rank: {}, world=0)


def test_an_error_in_the_kernel_names_its_line(tmp_path):
    with pytest.raises(UsageError, match=r"the kernel raised AttributeError: .* at .*ring\.py:\d+ in kernel"):
        p.RING.check(tmp_path, (("tl.arange(0, BLOCK)", "tl.arange(0, BLOCK.shape)"),))


@pytest.mark.parametrize(
    ("imported", "call", "name"),
    [
        ("libshmem_device", "libshmem_device.broadcast(ring_ptr, n, 0)", "libshmem_device.broadcast"),
        ("libshmem_device", "tl.extra.other.barrier()", "tl.extra.other"),
        ("libshmem_device, libother", "libother.barrier()", "libother.barrier"),
        ("libshmem_device, sync_block_all", 'sync_block_all("all", 0)', "sync_block_all"),
    ],
)
def test_a_primitive_that_is_not_known_is_refused_and_not_left_out(imported, call, name, tmp_path):
    edits = (
        ("extra import libshmem_device\n", f"extra import {imported}\n"),
        ("    right = ", f"    {call}\n    right = "),
    )
    with pytest.raises(UsageError, match=rf"ring\.py:13: the simulator does not know {name}, "):
        p.RING.check(tmp_path, edits)


SPINNING = """
import triton
import triton.language as tl
import triton_dist.language as dl

@triton.jit
def kernel(sig_ptr, rank, rank_size, launch):
    if tl.program_id(0) == 0:
        tl.atomic_add(dl.symm_at(sig_ptr, (rank + 1) % rank_size), 1)
        while tl.atomic_add(sig_ptr, 0) < launch + 1:
            pass
"""


def test_tasks_that_spin_let_each_other_run_under_every_schedule(tmp_path):
    file = tmp_path / "spinning.py"
    file.write_text(SPINNING)

    def arguments(rank):
        words = rank.symmetric("words", (1,), torch.int32)
        return {"sig_ptr": words, "rank": rank.rank, "rank_size": rank.world, "launch": rank.launch}

    result = run(f"{file}:kernel", arguments, world=3, schedules=24)
    assert (result.clean, result.schedules) == (True, 25), str(result)


def test_the_example_verifies_and_checks_a_kernel(capsys, tmp_path):
    example = runpy.run_path(str(p.EXAMPLES / "check_my_kernel.py"))
    assert example["main"]() == 0
    assert "no fault found" in capsys.readouterr().out
    broken = tmp_path / "broken.py"
    source = (p.EXAMPLES / "gemm_reduce_scatter.py").read_text()
    broken.write_text(source.replace("    libshmem_device.barrier_all()\n", ""))
    assert example["main"](f"{broken}:kernel") == 1
    assert "FAULT race" in capsys.readouterr().out


def test_the_example_is_short():
    lines = (p.EXAMPLES / "check_my_kernel.py").read_text().split("def main")[1].split("if __name__")[0].splitlines()
    assert len([line for line in lines if line.strip()]) <= 20


def test_every_kind_of_finding_is_described():
    kinds = {**FAULTS, **WARNINGS}
    assert all(text and not text.endswith(".") for text in kinds.values())


def test_a_finding_seen_again_is_counted():
    findings = Findings()
    for rank in range(3):
        findings.add(Finding("race", "write-read race", (Place("read", "k.py", 7, "k", rank, 0, "cube", 0),)))
    (fault,) = findings.faults
    assert fault.count == 3
    assert fault.places[0].rank == 0
