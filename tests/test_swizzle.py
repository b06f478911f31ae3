"""Tile orders: each is a bijection, and small cases are those of the docstrings and of the published formulas."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import agcli.kernels
from agcli.simulator.binding import load_kernel

FILE = Path(agcli.kernels.__file__).with_name("swizzle.py")
dist_swizzle = load_kernel(FILE, "dist_swizzle2d_Nz").fn
gemm_swizzle = load_kernel(FILE, "gemm_swizzle2d_Nz").fn
COUNT = st.integers(1, 9)


@given(COUNT, COUNT, COUNT)
def test_every_tile_goes_to_every_rank_once(rows, cols, world):
    steps = [dist_swizzle(i, world, rows * 20 - 3, cols * 256 - 1, 20, 256) for i in range(rows * cols * world)]
    assert sorted(steps) == [(r, c, w) for r in range(rows) for c in range(cols) for w in range(world)]


@given(COUNT, COUNT, st.integers(1, 8))
def test_every_tile_is_multiplied_once(rows, cols, offset):
    steps = [gemm_swizzle(i, rows * 16 - 5, cols * 32 - 9, 16, 32, offset) for i in range(rows * cols)]
    assert sorted(steps) == [(r, c) for r in range(rows) for c in range(cols)]


@given(COUNT, COUNT, st.integers(2, 9))
def test_neighbouring_steps_of_a_round_go_to_different_ranks(rows, cols, world):
    tiles = rows * cols
    ranks = [dist_swizzle(i, world, rows, cols, 1, 1)[2] for i in range(tiles * world)]
    assert all(a != b for i, (a, b) in enumerate(pairwise(ranks)) if (i + 1) % tiles)


def test_two_ranks_and_four_tiles():
    steps = [dist_swizzle(i, 2, 1, 4, 1, 1) for i in range(8)]
    assert [col for _, col, _ in steps] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert [rank for *_, rank in steps] == [0, 1, 0, 1, 1, 0, 1, 0]


def test_four_ranks_as_published():
    steps = [dist_swizzle(i, 4, 40, 512, 20, 256) for i in range(8)]
    assert steps[:4] == [(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3)]
    assert [rank for *_, rank in steps[4:]] == [1, 2, 3, 0]


def test_zigzag_as_published():
    assert [gemm_swizzle(i, 3, 3, 1, 1, 2) for i in range(9)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (1, 2), (0, 2),
    ]  # fmt: skip
