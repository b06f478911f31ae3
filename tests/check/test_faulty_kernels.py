"""Faulty kernels: every fault is found, named rightly, and shown where it is."""

import linecache

import pytest
from faulty import FAULTY


@pytest.mark.parametrize("name", FAULTY)
def test_fault_is_found_and_named(name, tmp_path):
    row = FAULTY[name]
    result, _ = row.program.check(tmp_path, row.edits, **row.options)
    kinds = {fault.kind for fault in result.faults}
    assert result.faults, "nothing was found"
    assert result.faults[0].kind == row.kinds[0], str(result)
    assert kinds <= set(row.kinds), str(result)
    named = [fault for fault in result.faults if fault.kind == row.kinds[0]]
    lines = [linecache.getline(place.file, place.line) for fault in named for place in fault.places]
    assert any(text in line for text in row.at.split("|") for line in lines), str(result)


def test_the_table_is_long_enough():
    assert len(FAULTY) >= 25
