"""Tiles that cube cores have read: kept, so that the next core that reads the same needs no copy and no conversion.

A kept tile stands for a read at the time of the first one. That is a timing that hardware may show too, as long as no
store of this rank and no wait lies between the two reads; at either, the tiles concerned are forgotten. So results are
those of a legal timing, and of every timing where the kernel has no race.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agcli.simulator.blocks import Tile
    from agcli.simulator.memory import Buffer

LIMIT_BYTES = 192 * 2**20  # of all tiles that one launch of one rank keeps


class KeptReads:
    """Tiles by the memory they were read from (its slot, for memory in slots) and by the place in it."""

    def __init__(self) -> None:
        self._tiles: dict[int, dict[int, dict[Any, Tile | None]]] = {}  # storage, slot, place; None: read once
        self._symmetric: set[int] = set()
        self._bytes = 0

    def get(self, buffer: Buffer, slot: int, key: Any) -> Tile | None:
        """The tile kept under ``key``, if any."""
        slots = self._tiles.get(buffer.storage)
        tiles = None if slots is None else slots.get(slot)
        return None if tiles is None else tiles.get((buffer.address, key))

    def put(self, buffer: Buffer, slot: int, key: Any, tile: Tile) -> None:
        """Keep a tile at its second read (new memory costs more than one conversion), up to the limit."""
        tiles = self._tiles.setdefault(buffer.storage, {}).setdefault(slot, {})
        if buffer.symmetric:
            self._symmetric.add(buffer.storage)
        place = (buffer.address, key)
        if place not in tiles:
            tiles[place] = None
        elif self._bytes + tile.data.nbytes <= LIMIT_BYTES:
            self._bytes += tile.data.nbytes
            tiles[place] = tile

    def forget(self, storage: int, slots: range | None) -> None:
        """Something was stored to these slots of a memory; None: to any of them."""
        kept = self._tiles.get(storage)
        if not kept:
            return
        for slot in [slot for slot in kept if slots is None or slot in slots]:
            self._bytes -= sum(tile.data.nbytes for tile in kept.pop(slot).values() if tile is not None)

    def forget_symmetric(self) -> None:
        """A wait has ended: other ranks may have stored to this rank's memory."""
        while self._symmetric:
            self.forget(self._symmetric.pop(), None)
