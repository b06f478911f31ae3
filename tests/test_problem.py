"""Problem, KernelConfig and Plan: derived sizes against their definitions, and everything that must be refused."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli.chips import CHIPS, chip_by_name
from agcli.errors import UsageError
from agcli.problem import KernelConfig, Problem, check_contiguous_reach, default_config, make_plan

B3 = chip_by_name("Ascend910B3")
SIZES = st.integers(1, 3000)


@st.composite
def plans(draw):
    """Plans of any small problem and configuration."""
    problem = Problem(
        draw(SIZES), draw(SIZES), draw(SIZES), draw(st.integers(1, 9)), draw(st.sampled_from(["fp16", "bf16"]))
    )
    blocks = [16 * draw(st.integers(1, 12)) for _ in range(3)]
    config = KernelConfig(*blocks, 20, 64, draw(st.integers(1, 5)), draw(st.integers(2, 4)), "store")
    return make_plan(problem, config, None)


@given(plans())
def test_iterations_and_tails_cover_every_row_once(plan):
    rows = [plan.rows_per_iteration] * (plan.iterations - 1) + [plan.tail_rows]
    assert sum(rows) == plan.problem.m
    assert 1 <= plan.tail_rows <= plan.rows_per_iteration


@given(plans())
def test_symmetric_memory_holds_every_slot(plan):
    slots, rows, k = plan.peer_shape
    assert (slots, k) == (plan.config.buffer_num, plan.problem.k)
    assert rows == plan.problem.world * plan.config.block_m * plan.config.pvalue
    assert plan.symmetric_bytes == slots * rows * k * 2


@given(plans())
def test_tiles_are_counted_as_the_kernel_walks_them(plan):
    n, world, bm, bn = plan.problem.n, plan.problem.world, plan.config.block_m, plan.config.block_n
    count = 0
    for first in range(0, plan.problem.m, plan.rows_per_iteration):
        rows = min(plan.rows_per_iteration, plan.problem.m - first)
        count += world * -(-rows // bm) * -(-n // bn)
    assert plan.tiles == count


@given(plans(), st.data())
def test_a_place_in_c_is_traced_to_its_source(plan, data):
    first_slot = data.draw(st.integers(0, plan.config.buffer_num - 1))
    row = data.draw(st.integers(0, plan.problem.world * plan.problem.m - 1))
    place = plan.locate(row, 0, first_slot)
    assert place["source_rank"] * plan.problem.m + place["local_row"] == row
    tile_start = place["iteration"] * plan.rows_per_iteration + place["tile_row"] * plan.config.block_m
    assert tile_start <= place["local_row"] < tile_start + plan.config.block_m
    assert place["slot"] == (first_slot + place["iteration"]) % plan.config.buffer_num


@given(plans(), st.integers(1, 20))
def test_consecutive_launches_never_share_the_slot_in_flight(plan, launches):
    slot = 0
    for _ in range(launches):
        last = (slot + plan.iterations - 1) % plan.config.buffer_num
        slot = plan.next_slot(slot)
        assert slot != last


@pytest.mark.parametrize("size", [48.0, 1.5, "48", None])
def test_sizes_are_whole_numbers(size):
    """48.0 is what 96 / 2 gives."""
    with pytest.raises(UsageError, match=rf"N must be a whole number, got {size!r}"):
        Problem(16, size, 16, 2)


def test_a_whole_number_of_numpy_becomes_an_int():
    problem = Problem(np.prod((4, 4)), 16, 16, 2)
    assert json.loads(json.dumps(asdict(problem)))["m"] == 16


def test_flops_of_a_rank():
    assert Problem(512, 512, 512, 2).flops == 536870912
    assert Problem(4096, 4096, 4096, 2).flops == 274877906944


def test_the_defaults_fill_l0c_of_ascend910b3_exactly():
    plan = make_plan(Problem(4096, 4096, 4096, 4), KernelConfig(), B3)
    assert plan.config.block_m * plan.config.block_n * 4 == B3.l0c_bytes
    assert plan.multibuffer
    assert plan.warnings() == []
    assert plan.config.transport == "store"


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_every_chip_takes_its_own_defaults(name, dtype):
    chip = CHIPS[name]
    plan = make_plan(Problem(4096, 4096, 4096, 8, dtype), default_config(chip), chip)
    assert plan.config.transport == ("putmem" if name.startswith("Ascend950") else "store")
    assert chip.vector_cores == 2 * chip.cube_cores


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_case_3_a_zero_dimension_is_refused_by_name(name):
    sizes = {"m": 1, "n": 1, "k": 1, name: 0}
    with pytest.raises(UsageError, match=rf"^{name.upper()} must be at least 1, got 0 \(--{name}\)$"):
        Problem(**sizes, world=2)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"block_m": 256, "block_n": 256, "block_k": 256}, ["L0C", "262144", "131072", "--block-m"]),
        ({"comm_block_m": 400, "comm_block_k": 512}, ["UB", "196608", "--comm-block-m"]),
        ({"block_k": 1024}, ["L1", "524288", "--block-k"]),
    ],
)
def test_case_15_blocks_that_the_chip_cannot_take(config, words):
    with pytest.raises(UsageError) as error:
        make_plan(Problem(512, 512, 512, 2), KernelConfig(**config), B3)
    for word in words:
        assert word in str(error.value)


def test_case_15_a_deep_k_block_runs_single_buffered_with_a_warning():
    plan = make_plan(Problem(512, 512, 512, 2), KernelConfig(block_k=512), B3)
    assert not plan.multibuffer
    assert "--block-k" in plan.warnings()[0]


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("block_n", 24, "--block-n"), ("block_m", 0, "--block-m"), ("block_m", -16, "--block-m"),
        ("comm_block_k", 20, "--comm-block-k"), ("pvalue", 0, "--pvalue"), ("transport", "rdma", "--transport"),
    ],
)  # fmt: skip
def test_case_15_values_that_are_wrong_everywhere(field, value, option):
    with pytest.raises(UsageError) as error:
        KernelConfig(**{field: value})
    assert option in str(error.value)
    assert str(value) in str(error.value)


def test_case_15_sizes_that_ascend_takes_although_they_are_no_powers_of_two():
    make_plan(Problem(512, 512, 512, 2), KernelConfig(block_k=96, comm_block_m=20), B3)


def test_case_11_one_slot_is_refused():
    with pytest.raises(UsageError, match="--buffer-num"):
        KernelConfig(buffer_num=1)


def test_a_put_beyond_one_transfer_is_refused():
    with pytest.raises(UsageError, match="--transport store"):
        make_plan(Problem(4096, 64, 65536, 2), KernelConfig(pvalue=32, transport="putmem"), B3)


def test_offsets_inside_a_tile_stay_in_32_bits():
    with pytest.raises(UsageError, match="--block-m"):
        make_plan(Problem(16, 16, 2**25, 1), KernelConfig(transport="store"), None)


def test_offsets_inside_a_tile_of_b_and_c_stay_in_32_bits():
    fits, exceeds = 2**31 // 256 - 2, 2**31 // 256
    check_contiguous_reach(make_plan(Problem(1, fits, 1, 1), KernelConfig(), B3))
    with pytest.raises(UsageError, match=r"N = 8388608 .*; lower --n, --block-k or --block-m"):
        check_contiguous_reach(make_plan(Problem(1, exceeds, 1, 1), KernelConfig(), B3))
    smaller = KernelConfig(block_k=128)
    check_contiguous_reach(make_plan(Problem(1, exceeds, 1, 1), smaller, B3))


@pytest.mark.parametrize("world", [0, -1, 16385])
def test_worlds_that_cannot_be(world):
    with pytest.raises(UsageError, match="--world"):
        Problem(1, 1, 1, world)


def test_unknown_dtype_and_chip():
    with pytest.raises(UsageError, match="--dtype"):
        Problem(1, 1, 1, 1, "fp8")
    with pytest.raises(UsageError, match="unknown chip 'Ascend1'"):
        chip_by_name("Ascend1")
