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

Place = tuple[Any, ...]
LIMIT_BYTES = 192 * 2**20  # of all tiles that one launch of one rank keeps


class KeptReads:
    """Tiles by ``place``, all that says what was read; forgotten by memory and, for memory in slots, by slot."""

    def __init__(self) -> None:
        self._tiles: dict[Place, Tile | None] = {}  # None: read once
        self._places: dict[int, dict[int, list[Place]]] = {}  # by storage and slot
        self._symmetric: set[int] = set()
        self._bytes = 0

    def get(self, place: Place) -> Tile | None:
        """The tile kept of a place, if any."""
        return self._tiles.get(place)

    def put(self, buffer: Buffer, slot: int, place: Place, tile: Tile) -> None:
        """Keep a tile at its second read (new memory costs more than one conversion), up to the limit."""
        if place not in self._tiles:
            self._tiles[place] = None
            self._places.setdefault(buffer.storage, {}).setdefault(slot, []).append(place)
            if buffer.symmetric:
                self._symmetric.add(buffer.storage)
        elif self._bytes + tile.data.nbytes <= LIMIT_BYTES:
            self._bytes += tile.data.nbytes
            self._tiles[place] = tile

    def has(self, storage: int) -> bool:
        """Whether anything that was read from a memory is kept."""
        return bool(self._places.get(storage))

    def forget(self, storage: int, slots: range | None) -> None:
        """Something was stored to these slots of a memory; None: to any of them."""
        places = self._places.get(storage, {})
        for slot in [slot for slot in places if slots is None or slot in slots]:
            tiles = [self._tiles.pop(place) for place in places.pop(slot)]
            self._bytes -= sum(tile.data.nbytes for tile in tiles if tile is not None)

    def forget_symmetric(self) -> None:
        """A wait has ended: other ranks may have stored to this rank's memory."""
        while self._symmetric:
            self.forget(self._symmetric.pop(), None)
