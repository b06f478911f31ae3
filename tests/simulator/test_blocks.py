"""Blocks against dense torch arithmetic: whatever stays affine or a box must hold the same values as its tensor."""

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agcli.errors import KernelFault
from agcli.simulator.blocks import Affine, Box, Tile
from agcli.simulator.dtypes import bfloat16, float16, int1, int32, int64
from agcli.simulator.language import arange
from agcli.simulator.scalars import Scalar

SIZE = st.integers(1, 6)
NUMBER = st.integers(-9, 9)


@st.composite
def affine_2d(draw):
    """A two-dimensional index block and its dense twin."""
    rows, cols = draw(SIZE), draw(SIZE)
    scale_r, scale_c, base = draw(NUMBER), draw(NUMBER), draw(NUMBER)
    block = arange(0, rows)[:, None] * scale_r + arange(0, cols)[None, :] * Scalar(scale_c) + base
    dense = torch.arange(rows)[:, None] * scale_r + torch.arange(cols)[None, :] * scale_c + base
    return block, dense


@st.composite
def affine_1d(draw):
    """A column or row of indices and its dense twin."""
    size, scale, base = draw(SIZE), draw(NUMBER), draw(NUMBER)
    index = draw(st.sampled_from([(slice(None), None), (None, slice(None))]))
    return (arange(0, size) * scale + base)[index], (torch.arange(size) * scale + base)[index]


@given(affine_2d())
def test_affine_holds_what_dense_arithmetic_gives(pair):
    block, dense = pair
    assert isinstance(block, Affine)
    assert torch.equal(block.tensor(), dense)


@given(affine_2d(), affine_1d(), NUMBER)
def test_sums_and_differences_of_affine_blocks(pair, other, number):
    (block, dense), (line, dense_line) = pair, other
    if dense.shape[0] not in (1, dense_line.shape[0]) and dense_line.shape[0] != 1:
        return
    if dense.shape[1] not in (1, dense_line.shape[1]) and dense_line.shape[1] != 1:
        return
    assert torch.equal((block - line).tensor().expand((dense - dense_line).shape), dense - dense_line)
    assert torch.equal((number - block).tensor(), number - dense)
    assert torch.equal((-block).tensor(), -dense)


@given(affine_2d(), affine_1d(), NUMBER, st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]))
def test_comparisons(pair, line, number, name):
    for block, dense in (pair, line):
        function = getattr(operator, name)
        assert torch.equal(function(block, Scalar(number)).tensor(), function(dense, number))


@given(affine_1d(), st.integers(-60, 60), st.sampled_from(["lt", "le", "gt", "ge"]))
def test_a_bound_on_rising_indices_is_a_box(line, number, name):
    block, dense = line
    mask = getattr(operator, name)(block, number)
    if all(stride >= 0 for stride in block.strides):
        assert isinstance(mask, Box)
    assert torch.equal(mask.tensor(), getattr(operator, name)(dense, number))


@given(SIZE, SIZE, st.integers(-2, 8), st.integers(-2, 8))
def test_masks_of_rows_and_columns_meet_in_a_box(rows, cols, row_limit, col_limit):
    mask = (arange(0, rows)[:, None] < row_limit) & (arange(0, cols)[None, :] < col_limit)
    dense = (torch.arange(rows)[:, None] < row_limit) & (torch.arange(cols)[None, :] < col_limit)
    assert isinstance(mask, Box)
    assert torch.equal(mask.tensor(), dense)
    assert torch.equal((mask | (arange(0, rows)[:, None] == 0)).tensor(), dense | (torch.arange(rows)[:, None] == 0))


@given(affine_2d(), st.integers(1, 5))
def test_division_leaves_the_affine_form_and_stays_right(pair, divisor):
    block, dense = pair
    assert torch.equal((block // divisor).tensor(), torch.div(dense, divisor, rounding_mode="trunc"))
    assert torch.equal((block % divisor).tensor(), torch.fmod(dense, divisor))


def test_index_overflow_is_a_fault_unless_the_index_is_64_bits_wide():
    rows = arange(0, 40000)
    with pytest.raises(KernelFault, match="32-bit overflow: an index reaches 2621374464"):
        rows * 65536
    assert (rows.to(int64) * 65536).tensor()[-1] == 2621374464


def test_element_overflow_of_a_tile_is_a_fault():
    tile = Tile(torch.tensor([2**30]), int32)
    with pytest.raises(KernelFault, match="32-bit overflow"):
        tile * 4


def test_shapes_that_do_not_fit_are_a_fault():
    with pytest.raises(KernelFault, match="do not fit together"):
        arange(0, 3) + arange(0, 4)


def test_a_block_is_no_condition():
    with pytest.raises(KernelFault, match="conditions must be scalars"):
        bool(arange(0, 4) < 2)


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_half_precision_kept_as_fp32_still_rounds_like_half_precision(dtype):
    values = torch.randn(64).to(dtype.torch)
    native, wide = Tile(values, dtype), Tile(values.float(), dtype)
    assert torch.equal((native * native).tensor(), (wide * wide).tensor())
    assert (wide * wide).dtype is dtype


def test_conversion_to_bool_and_back():
    tile = Tile(torch.tensor([0, 3]), int32).to(int1)
    assert tile.tensor().tolist() == [False, True]
    assert tile.to(int32).tensor().tolist() == [0, 1]
