"""Shared memory and barriers between real processes, and what happens when one rank fails or leaves early."""

import json
import os
from pathlib import Path

import pytest

from agcli.errors import EnvironmentFault, UsageError
from agcli.launch import Job, launch
from agcli.simulator import heap
from agcli.simulator.world import SharedWorld

HERE = Path(__file__).parent
ENV = {"PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1])])}


def run(target, world, **payload):
    return launch(
        Job(f"world_targets:{target}", payload), world=world, devices=list(range(world)), timeout_s=60, env=ENV
    )


def test_ranks_see_each_others_memory():
    results = run("exchange_values", 3)
    assert [r.value for r in results] == [[0, 10, 20]] * 3


def test_atomics_and_added_signals_of_all_ranks_lose_no_update():
    results = run("add_often", 3, times=2000)
    assert results[0].value == [3 * 2 * 2000, 3 * 3 * 2000, 7], results[0].message


def test_a_rank_that_fails_in_its_launch_ends_the_waits_of_the_others():
    results = run("one_fails", 3)
    assert not any(r.ok for r in results)
    assert any("outside a tensor" in (r.message or "") for r in results)


def test_a_rank_that_leaves_a_launch_without_its_barrier_is_named():
    results = run("one_skips_the_barrier", 2)
    assert any("rank 1 ended launch 0 1 barrier_all before this rank's" in (r.message or "") for r in results)


def test_case_16_a_rank_that_hangs_in_its_launch_is_the_one_that_did_not_arrive():
    """A rank says that it waits for others only while it does: here the first hangs on its way to the barrier."""
    results = launch(Job("world_targets:one_hangs_in_its_launch", {}), world=2, devices=[0, 1], timeout_s=4, env=ENV)
    assert [r.status for r in results] == ["timeout", "timeout"]
    assert results[0].message == "did not arrive: last seen 'in launch 0'"
    assert results[1].message == "waited in 'waiting in barrier_all 0 of launch 0 for rank 0'"


def test_waits_on_all_ranks_that_none_can_end_are_a_fault():
    results = run("all_wait_for_signals", 2)
    assert any("all ranks wait, and none can end another's wait" in (r.message or "") for r in results)


def test_case_14_memory_that_no_host_has_is_refused_with_both_numbers():
    world = SharedWorld(0, 1, lambda value: [json.loads(json.dumps(value))])
    with pytest.raises(EnvironmentFault) as error:
        world.allocate((2**30, 2**14), __import__("torch").float16, "lower --pvalue")
    assert str(2**45) in str(error.value)
    assert "available; lower --pvalue" in str(error.value)


def test_case_14_one_rank_without_memory_is_everybodys_error(monkeypatch):
    failed = {"host": "h", "error": "Cannot allocate memory"}
    with pytest.raises(EnvironmentFault, match=r"rank 1 has no 4096 bytes of shared memory for tests: Cannot allocate"):
        heap.SharedSegments(0, 4096, lambda offer: [offer, {**failed, "host": offer["host"]}], "tests")


def test_ranks_of_two_hosts_are_refused():
    with pytest.raises(EnvironmentFault, match="simulates one host, but the ranks run on"):
        heap.SharedSegments(0, 4096, lambda offer: [offer, {"host": "elsewhere", "error": None}], "tests")


def test_a_segment_does_not_need_room_in_dev_shm():
    before = os.statvfs("/dev/shm").f_bavail
    segments = heap.SharedSegments(0, 2**20, lambda offer: [offer], "tests")
    try:
        segments.maps[0][:] = bytes(2**20)
        assert before - os.statvfs("/dev/shm").f_bavail < 2**20 // 4096
    finally:
        segments.close()


def test_freeing_what_is_not_symmetric_memory():
    import torch

    world = SharedWorld(0, 1, lambda value: [value])
    memory = world.allocate((4,), torch.float32, "")
    world.free(memory)
    with pytest.raises(UsageError, match="freed before"):
        world.free(memory)
