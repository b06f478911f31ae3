"""The cuda backend without a GPU: what it says is missing, tuning, orders of work, and a model of its protocol."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agcli import agreement, bench_run, request
from agcli.backends import cuda_engine
from agcli.backends.base import EngineOptions
from agcli.backends.cuda import CudaBackend, block_overrides, has_gluon, visible_devices
from agcli.backends.cuda_engine import ANY_BLOCKS as ANY
from agcli.backends.cuda_engine import CudaEngine, can_describe
from agcli.backends.cuda_space import candidates
from agcli.backends.cuda_tuning import (
    SMEM_LIMIT_BYTES,
    CudaConfig,
    choose,
    enters_chunk,
    k_step,
    push_every_ns,
    push_unit,
    work_item,
)
from agcli.errors import UsageError
from agcli.problem import KernelConfig, Problem, cdiv, make_plan

ROOT = Path(__file__).resolve().parent.parent
SHAPES = [
    (128, 4096, 4096),
    (512, 4096, 4096),
    (1024, 4096, 4096),
    (1024, 5504, 4096),
    (4096, 14336, 8192),
    (1, 1, 1),
    (64, 100, 70),
    (1000, 999, 1001),
    (513, 40, 9000),
]


# -- what is missing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "restriction", "count"),
    [
        (8, None, 8),
        (8, "0,3", 2),
        (8, "", 0),
        (8, "-1", 0),
        (2, "0,5,1", 1),  # the list ends at the first device that does not exist
        (2, "GPU-8932f937, GPU-2f0c", 2),
        (0, "0", 0),
    ],
)
def test_visible_devices_follow_cudas_rule(nodes: int, restriction: str | None, count: int) -> None:
    assert visible_devices(nodes, restriction) == count


def test_every_need_that_is_not_met_has_a_cure() -> None:
    needs = CudaBackend().needs()
    assert [need.name for need in needs] == ["NVIDIA driver", "devices", "torch for CUDA", "Triton with Gluon"]
    assert all(need.cure for need in needs if not need.ok)


def test_no_ascend_chip_limits_a_gpu() -> None:
    assert CudaBackend().chip(None) is None


def test_finish_without_start_does_nothing() -> None:
    CudaBackend().finish()


# -- tuning ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world", [1, 2, 8])
def test_flags_cover_whole_tiles_and_whole_units(shape: tuple[int, int, int], world: int) -> None:
    config = choose(Problem(*shape, world))
    assert config.chunk_m % config.block_m == config.chunk_m % config.push_m == 0
    assert config.chunk_k % config.block_k == config.chunk_k % config.push_k == 0


def test_choose_narrows_tiles_until_the_own_shard_fills_the_gpu() -> None:
    chosen = [choose(Problem(m, 4096, 4096, 2)) for m in (128, 256, 512, 1024)]
    assert [(c.block_m, c.block_n) for c in chosen] == [(64, 64), (128, 64), (128, 128), (128, 256)]
    assert [c.stages for c in chosen] == [6, 8, 6, 3]
    assert [c.epilogue_parts for c in chosen] == [2, 1, 1, 1]


def test_overrides_win_over_the_tuning() -> None:
    config = choose(Problem(1024, 4096, 4096, 2), block_n=128, stages=5, group_m=3)
    assert (config.block_n, config.stages, config.group_m) == (128, 5, 3)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_flag_covers_no_more_columns_than_there_are(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, 2)
    config = choose(problem)
    step = max(config.push_k, config.block_k)
    assert config.chunk_k < problem.k + step


def test_push_units_wider_than_a_chunk_widen_it() -> None:
    config = choose(Problem(64, 4096, 100, 2), push_k=512, push_m=256)
    assert (config.chunk_m, config.chunk_k) == (256, 512)


def test_pushes_are_spread_over_part_of_the_own_products() -> None:
    problem = Problem(1024, 4096, 4096, 2)
    config = choose(problem)
    units = 1024 * 4096 // (config.push_m * config.push_k)
    own_ns = 2 * 1024 * 4096 * 4096 / (132 * 6000)  # 128 tiles on 132 multiprocessors: 1.03 times that
    assert 0.5 < push_every_ns(problem, config, 132) * units / own_ns < 0.65


@pytest.mark.parametrize(
    "shape", [*SHAPES, (16, 4096, 4096), (64, 4096, 4096), (129, 4096, 4096), (1024, 4096, 4352)], ids=str
)
def test_units_beyond_the_shard_do_not_delay_a_flag(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, 2)
    config = choose(problem)
    tiles_m, tiles_n = config.tiles(problem)
    # The slowest that a tile may go, by the bytes it reads or by its products: see push_every_ns.
    tile_ns = problem.k * max(2 * config.block_m * config.block_n / 6000, 2 * (config.block_m + config.block_n) / 115)
    chunks_m, chunks_k = config.chunks(problem)
    last_ns = (chunks_m * chunks_k * config.units_per_chunk - 1) * push_every_ns(problem, config, 132)
    assert last_ns <= 0.6 * tile_ns * max(tiles_m * tiles_n / 132, 1)


def test_a_split_of_k_halves_the_time_to_push_in_where_it_halves_a_wave() -> None:
    problem = Problem(128, 4096, 4096, 2)  # 32 tiles of 128 x 128
    whole, split = (choose(problem, block_m=128, block_n=128, block_k=64, split_k=split) for split in (1, 2))
    assert push_every_ns(problem, split, 132) == push_every_ns(problem, whole, 132) // 2


def test_pushes_are_not_paced_without_peers_and_as_asked() -> None:
    problem = Problem(1024, 4096, 4096, 2)
    assert push_every_ns(replace(problem, world=1), choose(problem), 132) == 0
    assert push_every_ns(problem, choose(problem, push_percent=0), 132) == 0
    full, half = (push_every_ns(problem, choose(problem, push_percent=percent), 132) for percent in (100, 50))
    assert full // 2 == half > 0


@pytest.mark.parametrize("blocks", list(itertools.product((64, 128), (16, 64, 256), (16, 64, 128))), ids=str)
def test_stages_are_as_many_as_fit_the_blocks_asked_for(blocks: tuple[int, int, int]) -> None:
    block_m, block_n, block_k = blocks
    config = choose(Problem(4096, 4096, 4096, 2), block_m=block_m, block_n=block_n, block_k=block_k)
    assert (config.block_m, config.block_n, config.block_k) == blocks
    if config.stages < 8:
        with pytest.raises(UsageError, match="bytes of shared memory"):
            replace(config, stages=config.stages + 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_candidate_asks_for_more_registers_than_there_are(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, 2)
    for choice in candidates(problem):
        config = choose(problem, **choice.extra)
        # Warps that push and load go by fours.
        threads = (config.warps + cdiv(config.push_warps + 1, 4) * 4) * 32
        assert threads * config.max_registers <= 65536


def test_a_choice_for_another_shape_is_checked_against_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpu)
    plan = make_plan(Problem(1024, 4096, 4096, 2), KernelConfig(), None)
    CudaBackend().check_extra(plan, {"group_m": 4}, None)
    with pytest.raises(UsageError, match="bytes of shared memory"):
        CudaBackend().check_extra(plan, {"stages": 4}, None)  # as at M = 512, where tiles are half as wide
    with pytest.raises(TypeError):
        CudaBackend().check_extra(plan, {"push_every_ns": 20}, None)
    plan = make_plan(Problem(512, 4096, 4096, 2), KernelConfig(), None)
    CudaBackend().check_extra(plan, {"stages": 4}, None)
    with pytest.raises(UsageError, match="bytes of shared memory"):
        CudaBackend().check_extra(plan, {"stages": 4}, 64)  # fewer programs, wider tiles
    gpu.multi_processor_count = 66
    with pytest.raises(UsageError, match="bytes of shared memory"):
        CudaBackend().check_extra(plan, {"stages": 4}, None)


@pytest.mark.parametrize(
    ("shape", "strides", "possible"),
    [
        ((200, 96), (96, 1), True),
        ((200, 100), (100, 1), False),  # rows that begin at no multiple of 16 bytes
        ((200, 96), (1, 200), False),
        ((200, 96), (2**24 - 8, 1), True),
        ((200, 96), (2**24, 1), False),  # 128 rows of it are 2^31 elements: one more than 32 bits count
        ((2**31, 8), (8, 1), False),
    ],
)
def test_what_the_kernel_with_descriptors_takes(
    shape: tuple[int, int], strides: tuple[int, int], possible: bool
) -> None:
    assert can_describe(torch.empty_strided(shape, strides, dtype=torch.float16, device="meta")) is possible


@pytest.mark.parametrize("blocks", [{"block_k": 96}, {"block_m": 256}, {"block_n": 512}, {"block_n": 48}], ids=str)
def test_blocks_that_the_kernel_cannot_take_are_refused_before_a_rank_starts(blocks: dict[str, int]) -> None:
    """Case 15."""
    machine = request.Machine(CudaBackend(), 2, (0, 1))
    with pytest.raises(UsageError, match=next(iter(blocks))):
        request.plan_for(machine, Problem(512, 512, 512, 2), blocks, None)
    wanted = bench_run.Wanted(m="512", n="512", k="512", impl="fused")
    settings = {"config": blocks, "soc": None, "cores": None, "budget_s": 1.0, "iterations": 1, "warm": False}
    with pytest.raises(UsageError, match=next(iter(blocks))):
        bench_run.make_plan(machine, wanted, warmup=1, graph=False, tuned=None, host=False, seed=0, **settings)


# -- what a rank does --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "says"), [((), ""), ((7,), "GPU 4 cannot access the memory of GPU 7"), ((1, 3), "")])
def test_only_gpus_of_this_hosts_ranks_are_asked_for_access(
    cut: tuple[int, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [f"{socket.gethostname()} {index}" for index in (4, 5, 6, 7)] + ["elsewhere 1"]
    told: list[str] = []
    monkeypatch.setattr(agreement, "gather_notes", lambda note, group: places)
    monkeypatch.setattr(agreement, "raise_together", lambda fault, group: told.append(str(fault or "")))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda own, peer: peer not in cut)
    backend = CudaBackend()
    backend._index = 4
    backend._check_peers()
    assert len(told) == 1
    assert told[0].startswith(says)
    assert bool(told[0]) == bool(says)


class IdleEngine:
    """An engine without a GPU."""

    def __init__(self, problem: Problem, config: CudaConfig, memory: Any, wait_limit_s: float, programs: int) -> None:
        self.wait_limit_s = wait_limit_s
        self.is_open = True
        self.checked = 0

    def check(self) -> None:
        self.checked += 1


def test_engines_wait_as_long_as_the_timeout_allows_and_are_forgotten_when_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 16: a rank that is late by less than the timeout is waited for."""
    monkeypatch.setattr(cuda_engine, "CudaEngine", IdleEngine)
    monkeypatch.setattr(cuda_engine, "symmetric_memory", lambda size, group, device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda index: None)
    backend: Any = CudaBackend()
    backend._ctx = SimpleNamespace(timeout_s=120.0, phase=lambda *_, **__: None)
    backend._group = object()
    plan = make_plan(Problem(512, 512, 512, 2), KernelConfig(), None)
    engines: list[Any] = [backend.engine(plan, EngineOptions()) for _ in range(3)]
    assert 40 < engines[0].wait_limit_s < 120
    engines[1].is_open = False
    backend.synchronize()
    assert [engine.checked for engine in engines] == [1, 0, 1]
    engines += [backend.engine(plan, EngineOptions())]
    assert backend._engines == [engines[0], engines[2], engines[3]]


@pytest.mark.parametrize(
    ("hopper", "n", "blocks"), [(True, 4096, (128, 256, 64)), (True, 4097, ANY), (False, 4096, ANY)]
)
def test_reports_show_the_blocks_that_ran_and_a_call_as_one_iteration(
    hopper: bool, n: int, blocks: tuple[int, int, int]
) -> None:
    problem = Problem(2048, n, 4096, 2)
    engine: Any = SimpleNamespace(problem=problem, config=choose(problem), _hopper=hopper)
    plan = CudaEngine.plan.fget(engine)  # type: ignore[attr-defined]
    assert (plan.config.block_m, plan.config.block_n, plan.config.block_k) == blocks
    assert plan.iterations == 1
    last = plan.locate(2 * 2048 - 1, n - 1, 1)
    assert (last["source_rank"], last["slot"], last["tile_row"]) == (1, 1, 2047 // blocks[0])


def test_blocks_of_the_command_line_become_overrides() -> None:
    assert block_overrides(KernelConfig()) == {}
    assert block_overrides(KernelConfig(block_n=128, block_k=64)) == {"block_n": 128, "block_k": 64}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"block_m": 256}, "block_m must be 64 or 128"),
        ({"block_n": 96}, "block_n must be a power of two"),
        ({"block_k": 512}, "bytes of shared memory"),
        ({"split_k": 3}, "split_k must be one of 1, 2, got 3"),
        ({"push_warps": 4}, "push_warps must be one of 1, 2, got 4"),
        ({"epilogue_parts": 3}, "epilogue_parts must be one of 1, 2, 4, got 3"),
        ({"epilogue_parts": 0}, "epilogue_parts must be one of"),
        ({"block_n": 16, "epilogue_parts": 4}, "under 16 columns each"),
        ({"stages": 1}, "stages must be at least 2, got 1"),
        ({"group_m": 0}, "group_m must be at least 1, got 0"),
        ({"push_percent": -5}, "push_percent must be at least 0, got -5"),
        ({"chunk_k": 100}, "chunk_k must be a multiple of"),
    ],
)
def test_what_cannot_run_is_refused(overrides: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        choose(Problem(1024, 4096, 4096, 2), **overrides)


# -- the kernels, compiled ---------------------------------------------------------------------------------------


@pytest.mark.skipif(not has_gluon(), reason="no Triton with Gluon")
def test_both_kernels_compile_for_hopper_in_its_shared_memory(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(tmp_path)}
    script = [sys.executable, str(ROOT / "tests" / "compile_cuda.py")]
    result = subprocess.run(script, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert result.returncode == 0, result.stderr
    used = json.loads(result.stdout.splitlines()[-1])
    assert set(used) == {"large", "ragged", "split", "addressed"}
    assert max(used.values()) <= SMEM_LIMIT_BYTES


# -- orders of work ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tiles_m", "tiles_n"), [(1, 1), (3, 5), (8, 2), (9, 4), (17, 3)])
@pytest.mark.parametrize(("world", "split_k", "group_m"), [(1, 1, 8), (2, 1, 8), (3, 2, 4), (2, 2, 1)])
def test_every_tile_and_part_comes_once_own_shard_first(
    tiles_m: int, tiles_n: int, world: int, split_k: int, group_m: int
) -> None:
    per_source = tiles_m * tiles_n * split_k
    for rank in range(world):
        items = [
            work_item(i, per_source, tiles_m, tiles_n, rank, world, split_k, group_m) for i in range(world * per_source)
        ]
        want = itertools.product(range(world), range(tiles_m), range(tiles_n), range(split_k))
        assert sorted(items) == sorted(want)
        sources = [source for source, *_ in items[::per_source]]
        assert sources == [(rank + hop) % world for hop in range(world)]


def test_work_item_as_its_docstring_shows() -> None:
    items = [work_item(i, 4, 2, 2, 0, 2, 1, 8) for i in range(8)]
    assert [source for source, *_ in items] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [row for _, row, *_ in items] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert [col for *_, col, _ in items] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("shape", SHAPES)
def test_units_cover_a_shard_once_chunk_by_chunk(shape: tuple[int, int, int]) -> None:
    problem = Problem(*shape, 2)
    config = choose(problem)
    chunks_m, chunks_k = config.chunks(problem)
    corners = set()
    for unit in range(chunks_m * chunks_k * config.units_per_chunk):
        chunk, row, col = push_unit(
            unit, chunks_k, config.units_per_chunk, config.chunk_m, config.chunk_k, config.push_m, config.push_k
        )
        assert chunk == unit // config.units_per_chunk
        # The flag that a tile's step waits for is that of the chunk which its elements are in.
        assert chunk == row // config.chunk_m * chunks_k + col // config.chunk_k
        corners.add((row, col))
    rows = range(0, chunks_m * config.chunk_m, config.push_m)
    cols = range(0, chunks_k * config.chunk_k, config.push_k)
    assert corners == set(itertools.product(rows, cols))


@given(
    first=st.integers(0, 40),
    count=st.integers(1, 60),
    down=st.integers(0, 1),
    block_k=st.sampled_from([16, 64, 128]),
    steps_per_chunk=st.integers(1, 8),
)
def test_an_item_takes_every_step_once_and_enters_every_chunk_once(
    first: int, count: int, down: int, block_k: int, steps_per_chunk: int
) -> None:
    last, chunk_k = first + count, block_k * steps_per_chunk
    visits = [(i, k_step(i, first, last, down)) for i in range(first, last)]
    steps = [step for _, step in visits]
    assert steps == (list(range(first, last)) if not down else list(range(last - 1, first - 1, -1)))
    entered = [step // steps_per_chunk for i, step in visits if enters_chunk(i, step, first, down, block_k, chunk_k)]
    assert entered == list(dict.fromkeys(step // steps_per_chunk for step in steps))


def test_push_unit_as_its_docstring_shows() -> None:
    units = [push_unit(i, 2, 2, 4, 8, 2, 8) for i in range(8)]
    assert units == [(0, 0, 0), (0, 2, 0), (1, 0, 8), (1, 2, 8), (2, 4, 0), (2, 6, 0), (3, 4, 8), (3, 6, 8)]


# -- the protocol ------------------------------------------------------------------------------------------------


class StaleError(AssertionError):
    """A rank multiplied what was not, or no longer, its peer's shard of that call."""


@dataclass
class Rank:
    """A rank of the model: programs that each push, then wait for a chunk of each peer and read it, in two steps."""

    index: int
    call: int = 1
    programs: list[list[tuple[str, int, int]]] = field(default_factory=list)


@dataclass
class Model:
    """Ranks with slots and flags; ``slots`` and ``early`` (how much below its target a flag may be) plant faults."""

    world: int = 2
    chunks: int = 2
    units: int = 2
    calls: int = 4
    slots: int = 2
    early: int = 0

    def run(self, choice: random.Random) -> None:
        """One random interleaving of all steps of all programs of all ranks."""
        self.memory = {}  # (rank, slot, source, chunk, unit): the call whose data is there
        self.flags = dict.fromkeys(itertools.product(range(self.world), range(self.world), range(self.chunks)), 0)
        self.ranks = [Rank(i) for i in range(self.world)]
        for rank in self.ranks:
            self._launch(rank)
        while pending := [(r, p) for r in self.ranks for p in r.programs if p and self._ready(r, p[0])]:
            rank, program = choice.choice(pending)
            self._step(rank, program.pop(0))
            if not any(rank.programs):
                rank.call += 1
                if rank.call <= self.calls:
                    self._launch(rank)
        assert all(rank.call > self.calls for rank in self.ranks), "a wait never ended"

    def _launch(self, rank: Rank) -> None:
        """As many programs as there are chunks; each pushes a share of the units, beside the one that multiplies."""
        peers = [p for p in range(self.world) if p != rank.index]
        units = list(itertools.product(range(self.chunks), range(self.units)))
        rank.programs = [
            [step for chunk, unit in units[i :: self.chunks] for step in self._pushes(peers, chunk, unit)]
            for i in range(self.chunks)
        ]
        rank.programs += [
            [(step, p, chunk) for p in peers for step in ("wait", "read", "read")] for chunk in range(self.chunks)
        ]

    def _pushes(self, peers: list[int], chunk: int, unit: int) -> list[tuple[str, int, int]]:
        place = chunk * self.units + unit
        return [("push", p, place) for p in peers] + [("count", p, place) for p in peers]

    def _ready(self, rank: Rank, step: tuple[str, int, int]) -> bool:
        name, peer, chunk = step
        return name != "wait" or self.flags[rank.index, peer, chunk] >= rank.call * self.units - self.early

    def _step(self, rank: Rank, step: tuple[str, int, int]) -> None:
        name, peer, place = step
        slot = rank.call % self.slots
        if name == "push":
            chunk, unit = divmod(place, self.units)
            self.memory[peer, slot, rank.index, chunk, unit] = rank.call
        elif name == "count":
            self.flags[peer, rank.index, place // self.units] += 1
        elif name == "read":
            found = [self.memory.get((rank.index, slot, peer, place, unit)) for unit in range(self.units)]
            if found != [rank.call] * self.units:
                raise StaleError(f"call {rank.call} read {found}")


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("seed", range(100))
def test_no_interleaving_reads_stale_data_or_waits_for_ever(world: int, seed: int) -> None:
    Model(world=world).run(random.Random(seed))


@pytest.mark.parametrize("fault", [{"slots": 1}, {"early": 1}], ids=["one slot", "a flag trusted too early"])
def test_the_model_finds_planted_faults(fault: dict[str, int]) -> None:
    def found(seed: int) -> bool:
        try:
            Model(**fault).run(random.Random(seed))
        except StaleError:
            return True
        return False

    assert any(found(seed) for seed in range(200))
