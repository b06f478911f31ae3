"""The CUDA kernels themselves, on the CPU: every rank, every program and every partition of it, in many schedules."""

import pytest
import torch
from gpu_machine import Word
from gpu_world import World

from agcli.problem import Problem, cdiv

SEEDS = 3


@pytest.fixture(autouse=True)
def one_thread():
    """Tiles are small: threads cost more than they bring."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


CASES = [
    (Problem(128, 64, 64, 2), 2, {}),
    (Problem(70, 40, 72, 2), 3, {}),
    (Problem(3, 8, 8, 2, "bf16"), 2, {}),
    (Problem(200, 96, 136, 2), 2, {"block_m": 64, "block_n": 32, "block_k": 16, "chunk_k": 256, "stages": 3}),
    (Problem(130, 72, 104, 3), 2, {"block_m": 64, "block_n": 64, "block_k": 16, "push_k": 16, "chunk_k": 48}),
    (Problem(64, 64, 200, 4), 2, {"block_k": 16, "push_k": 32, "chunk_k": 64, "stages": 2, "group_m": 1}),
    (Problem(256, 64, 80, 2), 3, {"block_m": 128, "block_n": 32, "split_k": 2, "block_k": 16, "stages": 2}),
    (Problem(64, 32, 16, 2), 2, {"split_k": 2, "block_k": 16, "push_m": 32, "push_every_ns": 900}),
    (Problem(128, 128, 48, 1), 3, {"epilogue_parts": 4}),
]


def case_id(case):
    problem, programs, overrides = case
    return f"{problem.m}x{problem.n}x{problem.k}-w{problem.world}-p{programs}" + "".join(
        f"-{k}{v}" for k, v in overrides.items()
    )


@pytest.mark.parametrize("case", CASES, ids=case_id)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_rank_gets_the_product_of_every_call(case, seed):
    problem, programs, overrides = case
    world = World(problem, programs, seed, **overrides)
    world.run()
    assert world.wrong() == []
    assert [rank.epochs.tolist() for rank in world.ranks] == [[world.calls] * programs] * problem.world
    assert not any(rank.error.item() for rank in world.ranks)
    assert not any(rank.turns.any() for rank in world.ranks)


ODD = [
    (Problem(70, 41, 75, 2), 2, {"chunk_k": 256}),
    (Problem(1, 1, 1, 3, "bf16"), 2, {}),
    (Problem(130, 130, 100, 2), 3, {"push_k": 32, "block_k": 32, "chunk_k": 32}),
]


@pytest.mark.parametrize("case", ODD, ids=case_id)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_kernel_with_addresses_takes_any_size(case, seed):
    problem, programs, overrides = case
    world = World(problem, programs, seed, **overrides)
    world.without_tma.update(range(problem.world))
    world.run()
    assert world.wrong() == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_ranks_may_differ_in_the_kernel_they_launch(seed):
    world = World(Problem(70, 40, 72, 2), 2, seed)
    world.without_tma.add(1)
    world.run()
    assert world.wrong() == []


def test_pushes_keep_their_pace():
    world = World(Problem(64, 64, 256, 2), 2, 0, calls=1, push_k=64, push_every_ns=5000)
    world.run()
    units = cdiv(64, world.config.push_m) * cdiv(256, 64)
    assert world.scheduler.clock >= (units - 1) * 5000
    assert world.wrong() == []


def test_a_peer_that_never_calls_is_named_and_nothing_hangs():
    world = World(Problem(64, 64, 64, 3), 2, 0, calls=1)
    world.absent.add(2)
    world.run()
    assert [rank.error.item() for rank in world.ranks] == [3, 3, 0]


def _no_waiting(kernel):
    kernel._wait_for = lambda *_: Word(0)


def _one_look_an_item(kernel):
    kernel._enters_chunk = lambda i, step, first, *_: i == first


def _relaxed(kernel):
    add = kernel.gl.atomic_add
    kernel.gl.atomic_add = lambda pointer, value, sem, scope: add(pointer, value, "relaxed", scope)


def _stage_given_back_too_early(kernel):
    wait = kernel.warpgroup_mma_wait
    kernel.warpgroup_mma_wait = lambda pending, deps: wait(pending + (pending == 1), deps)


def _staging_buffer_taken_too_early(kernel):
    kernel._store_tile.__globals__["tma"].store_wait = lambda pending: None


FAULTS = [
    (_no_waiting, CASES[0]),
    (_one_look_an_item, CASES[4]),
    (_relaxed, CASES[0]),
    (_relaxed, CASES[6]),
    (_stage_given_back_too_early, CASES[5]),
    (_staging_buffer_taken_too_early, CASES[8]),
]


@pytest.mark.parametrize(("fault", "case"), FAULTS, ids=lambda v: v.__name__ if callable(v) else case_id(v))
def test_without_any_of_its_waits_the_kernel_is_wrong(fault, case):
    problem, programs, overrides = case

    def found(seed):
        world = World(problem, programs, seed, **overrides)
        fault(world.described)
        world.run()
        return bool(world.wrong())

    assert any(found(seed) for seed in range(20))
