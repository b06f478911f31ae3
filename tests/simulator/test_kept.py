"""Tiles that cube cores keep between reads: what a store or a wait may have changed is read anew."""

import torch

from agcli.simulator import kept as module
from agcli.simulator.blocks import COLUMN, ROW, Tile
from agcli.simulator.dtypes import float16
from agcli.simulator.kept import KeptReads
from agcli.simulator.language import arange
from agcli.simulator.memory import Buffer, PointerBlock, Region


def memory(shape=(2, 4, 8)):
    tensor = torch.zeros(shape, dtype=torch.float16)
    return Buffer(tensor, "peer_mem", 0, torch.zeros(tensor.numel(), dtype=torch.uint8))


def tile():
    return Tile(torch.ones(4, 8), float16)


def keep(kept, buffer, slot, key, value):
    kept.put(buffer, slot, key, value)
    assert kept.get(key) is None  # read once
    kept.put(buffer, slot, key, value)


def test_a_tile_is_kept_at_its_second_read():
    kept, buffer, value = KeptReads(), memory(), tile()
    keep(kept, buffer, 0, "place", value)
    assert kept.get("place") is value
    assert kept.get("another") is None


def test_a_store_to_a_slot_forgets_that_slot_alone():
    kept, buffer = KeptReads(), memory()
    first, second = tile(), tile()
    keep(kept, buffer, 0, "here", first)
    keep(kept, buffer, 1, "there", second)
    kept.forget(buffer.storage, range(1, 2))
    assert kept.get("here") is first
    assert kept.get("there") is None
    kept.forget(buffer.storage, None)
    assert kept.get("here") is None


def test_a_wait_forgets_symmetric_memory_alone():
    kept, symmetric, own = KeptReads(), memory(), Buffer(torch.zeros(4, 8).half(), "b_ptr", 0)
    keep(kept, symmetric, 0, "peer_mem", tile())
    keep(kept, own, 0, "b", tile())
    kept.forget_symmetric()
    assert kept.get("peer_mem") is None
    assert kept.get("b") is not None


def test_no_more_is_kept_than_the_limit(monkeypatch):
    monkeypatch.setattr(module, "LIMIT_BYTES", 2 * 4 * 8 * 4)
    kept, buffer = KeptReads(), memory()
    for key in range(3):
        keep(kept, buffer, 0, key, tile())
    assert [kept.get(key) is not None for key in range(3)] == [True, True, False]
    kept.forget(buffer.storage, None)
    keep(kept, buffer, 0, 2, tile())
    assert kept.get(2) is not None


def test_the_slots_of_a_region():
    buffer = memory()
    assert buffer.slots(Region(0, (4, 8), (8, 1))) == range(1)
    assert buffer.slots(Region(32, (4, 8), (8, 1))) == range(1, 2)
    assert buffer.slots(Region(24, (2, 8), (8, 1))) == range(2)
    assert buffer.slots(Region(0, (3,), (1,), torch.tensor([0, 1, 40]))) is None
    assert Buffer(torch.zeros(4, 8), "a", 0).slots(Region(8, (2, 8), (8, 1))) == range(1)


def test_a_place_tells_every_read_from_every_other():
    rows, columns = arange(0, 4)[COLUMN], arange(0, 8)[ROW]
    one, other = memory(), memory()
    masks = (None, (rows < 4) & (columns < 8), (rows < 3) & (columns < 8), (rows >= 1) & (columns < 8), rows < 4)
    blocks = (rows * 8 + columns, rows * 8 + columns + 8, rows * 4 + columns, rows * 8 + columns * 0, rows * 8)
    pointers = [PointerBlock(buffer, base, block) for buffer in (one, other) for base in (0, 32) for block in blocks]
    places = {pointer.place(mask) for pointer in pointers for mask in masks}
    assert len(places) == 2 * (2 * len(blocks)) * len(masks)
    assert PointerBlock(one, 0, (rows * 8 + columns).tile()).place(None) is None
    assert pointers[0].place(((rows < 4) & (columns < 8)).tile()) is None
