"""The CUDA kernels themselves, on the CPU: every rank, every program and every partition of it, in many schedules."""

import pytest
import torch
from gpu_world import LIMIT_NS, World

from agcli.backends.cuda_tuning import push_every_ns
from agcli.problem import Problem

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
    (Problem(64, 32, 16, 2), 2, {"split_k": 2, "block_k": 16, "push_m": 32, "push_percent": 200}),
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
    world = World(problem, programs, seed, layout=("plain", "padded")[seed % 2], **overrides)
    world.run()
    assert world.wrong() == []
    after = [world.calls] * programs + [0] * programs
    assert [rank.epochs.tolist() for rank in world.ranks] == [after] * problem.world
    assert not any(rank.error.item() for rank in world.ranks)
    assert not any(rank.turns.any() for rank in world.ranks)


ODD = [
    (Problem(70, 41, 75, 2), 2, {"chunk_k": 256}),
    (Problem(1, 1, 1, 3, "bf16"), 2, {}),
    (Problem(130, 130, 100, 2), 3, {"push_k": 32, "block_k": 32, "chunk_k": 32}),
    (Problem(128, 64, 64, 2), 2, {}),
]


@pytest.mark.parametrize("case", ODD, ids=case_id)
@pytest.mark.parametrize("layout", ["plain", "padded", "columns"])
def test_the_kernel_with_addresses_takes_any_size_and_layout(case, layout):
    problem, programs, overrides = case
    world = World(problem, programs, 0, layout=layout, **overrides)
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
    world = World(Problem(64, 64, 1024, 2), 2, 0, calls=1, push_k=64, push_percent=1000)
    units = 1024 * 64 // (16 * 64)
    every_ns = push_every_ns(world.problem, world.config, 2)
    assert world.config.chunk_m == 128  # half of the units of a chunk lie beyond the shard
    world.run()
    assert world.scheduler.clock >= (2 * units - 1) * every_ns > 20_000
    assert world.wrong() == []


@pytest.mark.parametrize("addressed", [False, True])
def test_a_peer_that_never_calls_is_named_and_waited_for_once(addressed):
    world = World(Problem(128, 256, 64, 3), 2, 0, calls=3, block_n=64)
    world.absent.add(2)
    world.without_tma.update(range(3) if addressed else ())
    world.run()
    assert [rank.error.item() for rank in world.ranks] == [3, 3, 0]
    assert LIMIT_NS < world.scheduler.clock < 1.5 * LIMIT_NS


def _no_waiting(kernel):
    wait = kernel._wait_for
    kernel._wait_for = lambda flag, target, limit_ns: wait(flag, 0, limit_ns)


def _one_look_an_item(kernel):
    kernel._enters_chunk = lambda i, step, first, *_: i == first


def _relaxed(kernel):
    language = kernel.gl if hasattr(kernel, "gl") else kernel.tl
    add = language.atomic_add
    language.atomic_add = lambda pointer, value, sem, scope: add(pointer, value, "relaxed", scope)


def _stage_given_back_too_early(kernel):
    wait = kernel.warpgroup_mma_wait
    kernel.warpgroup_mma_wait = lambda pending, deps: wait(pending + (pending == 1), deps)


def _staging_buffer_taken_too_early(kernel):
    wait = kernel.tma.store_wait
    kernel.tma.store_wait = lambda pending: wait(pending) if pending == 0 else None


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


def test_without_its_release_the_kernel_with_addresses_is_wrong():
    def found(seed):
        world = World(Problem(128, 64, 64, 2), 2, seed)
        world.without_tma.update((0, 1))
        _relaxed(world.addressed)
        world.run()
        return bool(world.wrong())

    assert any(found(seed) for seed in range(20))


def _no_fence_after_a_wait(kernel):
    kernel.WAIT_ASM = kernel.WAIT_ASM.replace("fence.proxy.async.global;", "")


def _no_fence_before_a_store(kernel):
    kernel.fence_async_shared = lambda: None


def _shared_memory_given_back_too_early(kernel):
    wait = kernel.tma.store_wait
    kernel.tma.store_wait = lambda pending: wait(pending) if pending else None


def _count_for_this_gpu_only(kernel):
    add = kernel.gl.atomic_add
    kernel.gl.atomic_add = lambda pointer, value, sem, scope: add(pointer, value, sem, "gpu")


FENCES = [
    (_no_fence_after_a_wait, "no fence since the wait"),
    (_no_fence_before_a_store, "TMA may not see"),
    (_shared_memory_given_back_too_early, "TMA still reads"),
    (_count_for_this_gpu_only, "no other scope"),
]


@pytest.mark.parametrize(("fault", "message"), FENCES)
def test_a_missing_fence_is_found(fault, message):
    def run():
        for seed in range(20):
            world = World(Problem(128, 64, 64, 2), 2, seed)
            fault(world.described)
            world.run()

    with pytest.raises(AssertionError, match=message):
        run()
