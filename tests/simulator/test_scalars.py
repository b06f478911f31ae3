"""Scalars against Python's integers and against C's rules for division."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agcli.errors import KernelFault
from agcli.simulator.dtypes import int1, int32, int64
from agcli.simulator.language import cdiv, maximum, minimum
from agcli.simulator.scalars import Scalar, integer, kernel_range

INT32 = st.integers(-(2**31), 2**31 - 1)
SMALL = st.integers(-40000, 40000)


@given(SMALL, SMALL)
def test_arithmetic_is_exact(a, b):
    x, y = Scalar(a), Scalar(b)
    assert ((x + y).value, (x - y).value, (x * y).value) == (a + b, a - b, a * b)
    assert ((a + y).value, (a - y).value, (a * y).value) == (a + b, a - b, a * b)
    assert ((x < y).value, (x >= b).value, (x == y).value) == (a < b, a >= b, a == b)
    assert (minimum(x, y).value, maximum(x, b).value) == (min(a, b), max(a, b))


@given(SMALL, SMALL.filter(bool))
def test_division_rounds_towards_zero_as_hardware_does(a, b):
    q, r = (Scalar(a) // b).value, (Scalar(a) % Scalar(b)).value
    assert q == int(a / b)
    assert r == math.fmod(a, b)
    assert (a // Scalar(b)).value == q


@given(INT32, INT32)
def test_32_bit_overflow_is_a_fault_and_never_wraps(a, b):
    for name, exact in (("__add__", a + b), ("__sub__", a - b), ("__mul__", a * b)):
        if -(2**31) <= exact < 2**31:
            assert getattr(Scalar(a), name)(Scalar(b)).value == exact
        else:
            with pytest.raises(KernelFault, match="32-bit overflow"):
                getattr(Scalar(a), name)(Scalar(b))


def test_the_offset_of_row_39999_at_stride_65536_needs_64_bits():
    row = Scalar(39999)
    with pytest.raises(KernelFault, match=r"2621374464 does not fit int32 \(it would wrap to -1673592832\)"):
        row * 65536
    assert (row.to(int64) * 65536).value == 2621374464


def test_mixed_widths_meet_in_the_wider_one():
    assert (Scalar(1, int32) + Scalar(2, int64)).dtype is int64
    assert (Scalar(True, int1) + 5).dtype is int32
    assert (Scalar(1, int64) * 3).dtype is int64


def test_integers_that_do_not_fit_a_narrower_type_are_a_fault():
    with pytest.raises(KernelFault, match="does not fit int32"):
        Scalar(2**40, int64).to(int32)
    assert integer(2**40, int64).to(int64).value == 2**40


def test_division_by_zero_is_a_fault():
    with pytest.raises(KernelFault, match="// 0"):
        Scalar(1) // Scalar(0)


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 9))
def test_ranges_count_in_scalars_of_the_widest_bound(start, stop, step):
    values = list(kernel_range(Scalar(start), Scalar(stop, int64), step))
    assert [v.value for v in values] == list(range(start, stop, step))
    assert all(v.dtype is int64 for v in values)


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_cdiv_rounds_up(a, b):
    assert cdiv(Scalar(a), b).value == math.ceil(a / b)
    assert cdiv(a, b) == math.ceil(a / b)
