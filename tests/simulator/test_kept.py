"""Tiles that cube cores keep between reads: what a store or a wait may have changed is read anew."""

import torch

from agcli.simulator import kept as module
from agcli.simulator.blocks import Tile
from agcli.simulator.dtypes import float16
from agcli.simulator.kept import KeptReads
from agcli.simulator.memory import Buffer, Region


def memory(shape=(2, 4, 8)):
    tensor = torch.zeros(shape, dtype=torch.float16)
    return Buffer(tensor, "peer_mem", 0, torch.zeros(tensor.numel(), dtype=torch.uint8))


def tile():
    return Tile(torch.ones(4, 8), float16)


def keep(kept, buffer, slot, key, value):
    kept.put(buffer, slot, key, value)
    assert kept.get(buffer, slot, key) is None  # read once
    kept.put(buffer, slot, key, value)


def test_a_tile_is_kept_at_its_second_read():
    kept, buffer, value = KeptReads(), memory(), tile()
    keep(kept, buffer, 0, "place", value)
    assert kept.get(buffer, 0, "place") is value
    assert kept.get(buffer, 1, "place") is None
    assert kept.get(memory(), 0, "place") is None


def test_a_store_to_a_slot_forgets_that_slot_alone():
    kept, buffer = KeptReads(), memory()
    first, second = tile(), tile()
    keep(kept, buffer, 0, "place", first)
    keep(kept, buffer, 1, "place", second)
    kept.forget(buffer.storage, range(1, 2))
    assert kept.get(buffer, 0, "place") is first
    assert kept.get(buffer, 1, "place") is None
    kept.forget(buffer.storage, None)
    assert kept.get(buffer, 0, "place") is None


def test_a_wait_forgets_symmetric_memory_alone():
    kept, symmetric, own = KeptReads(), memory(), Buffer(torch.zeros(4, 8).half(), "b_ptr", 0)
    keep(kept, symmetric, 0, "place", tile())
    keep(kept, own, 0, "place", tile())
    kept.forget_symmetric()
    assert kept.get(symmetric, 0, "place") is None
    assert kept.get(own, 0, "place") is not None


def test_no_more_is_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 2 * 4 * 8 * 4)
    kept, buffer = KeptReads(), memory()
    for key in range(3):
        keep(kept, buffer, 0, key, tile())
    assert [kept.get(buffer, 0, key) is not None for key in range(3)] == [True, True, False]
    kept.forget(buffer.storage, None)
    keep(kept, buffer, 0, 2, tile())
    assert kept.get(buffer, 0, 2) is not None


def test_the_slots_of_a_region():
    buffer = memory()
    assert buffer.slots(Region(0, (4, 8), (8, 1))) == range(1)
    assert buffer.slots(Region(32, (4, 8), (8, 1))) == range(1, 2)
    assert buffer.slots(Region(24, (2, 8), (8, 1))) == range(2)
    assert buffer.slots(Region(0, (3,), (1,), torch.tensor([0, 1, 40]))) is None
    assert Buffer(torch.zeros(4, 8), "a", 0).slots(Region(8, (2, 8), (8, 1))) == range(1)
