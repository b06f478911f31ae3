"""Products and sums that are put off: the same values in the same order as at once, and nothing given is changed."""

import pytest
import torch

from agcli.simulator.blocks import Tile, full
from agcli.simulator.dtypes import float32
from agcli.simulator.products import PENDING, Product, Sum


def factors(count, *batch):
    return [
        (torch.randn(*batch, 16, 32).half().float(), torch.randn(*batch, 32, 16).half().float()) for _ in range(count)
    ]


def test_a_product_added_to_an_accumulator_is_fp32():
    ((a, b),) = factors(1)
    accumulator = full((16, 16), 1, float32)
    result = accumulator + Product(a, b)
    assert result.dtype is float32
    torch.testing.assert_close(result.tensor(), 1 + a @ b)
    torch.testing.assert_close((Product(a, b) + accumulator).tensor(), 1 + a @ b)
    assert torch.equal(accumulator.tensor(), torch.ones(16, 16))  # the accumulator before is unchanged


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("count", [1, 2, PENDING, PENDING + 1, 3 * PENDING])
def test_products_are_added_in_their_order(count, batch):
    pairs = factors(count, *batch)
    total, want = full((*batch, 16, 16), 0, float32), torch.zeros(*batch, 16, 16)
    for a, b in pairs:
        total += Product(a, b)
        want = torch.addmm(want, a, b) if not batch else torch.baddbmm(want, a, b)
    assert isinstance(total, Sum)
    assert total.shape == (*batch, 16, 16)
    assert torch.equal(total.tensor(), want)


@pytest.mark.parametrize("look_first", [False, True])
def test_a_sum_stays_what_it_was_when_more_is_added(look_first):
    (a, b), (c, d), (e, f) = factors(3)
    first = full((16, 16), 1, float32) + Product(a, b)
    if look_first:
        first.tensor()
    second, third = first + Product(c, d), first + Product(e, f)
    torch.testing.assert_close(third.tensor(), 1 + a @ b + e @ f)
    torch.testing.assert_close(second.tensor(), 1 + a @ b + c @ d)
    torch.testing.assert_close(first.tensor(), 1 + a @ b)
    torch.testing.assert_close((third + second).tensor(), 2 + 2 * (a @ b) + e @ f + c @ d)


def test_a_bias_is_broadcast():
    ((a, b),) = factors(1)
    row = Tile(torch.randn(1, 16), float32)
    torch.testing.assert_close((row + Product(a, b)).tensor(), row.tensor() + a @ b)
    torch.testing.assert_close(((row + Product(a, b)) + row).tensor(), 2 * row.tensor() + a @ b)
