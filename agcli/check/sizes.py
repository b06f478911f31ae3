"""Transfers whose size is in elements where bytes are meant: they move a half (or a quarter) of what they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agcli.check.findings import Finding, Place
from agcli.simulator.memory import Buffer, Region


@dataclass(frozen=True)
class Transfer:
    """What a put or get moves: ``origin`` of ``source`` to ``target`` of ``dest``, both contiguous."""

    place: Place
    dest: Buffer
    target: Region
    source: Buffer
    origin: Region

    def rest(self, buffer: Buffer, region: Region) -> Region | None:
        """What it would cover beyond ``region`` if its size were in elements; None if that leaves the tensor."""
        end = region.offset + region.size
        more = region.size * (buffer.dtype.itemsize - 1)
        return Region(end, (more,), (1,)) if more and end + more <= buffer.flat.numel() else None


class Sizes:
    """Sets unwritten elements that are read beside the transfers that end just before them."""

    def __init__(self) -> None:
        self._transfers: list[Transfer] = []
        self._suspects: list[tuple[Transfer, Place]] = []  # with the read that found nothing

    def transferred(self, transfer: Transfer) -> None:
        """Note a transfer."""
        self._transfers.append(transfer)

    def missed(self, buffer: Buffer, offset: int, read: Place) -> None:
        """A read meets an element that nothing wrote."""
        for transfer in self._transfers:
            if transfer.dest is buffer:
                rest = transfer.rest(buffer, transfer.target)
                if rest is not None and rest.offset <= offset < rest.offset + rest.size:
                    self._suspects.append((transfer, read))
                    return

    def findings(self, written: Callable[[Buffer, Region], bool]) -> Iterator[Finding]:
        """Transfers after whose target nobody writes, and whose source goes on with what nobody transfers."""
        starts = {(id(transfer.source), transfer.origin.offset) for transfer in self._transfers}
        for transfer, read in self._suspects:
            rest = transfer.rest(transfer.dest, transfer.target)
            more = transfer.rest(transfer.source, transfer.origin)
            if rest is None or more is None or written(transfer.dest, rest):
                continue
            if (id(transfer.source), more.offset) in starts:
                continue
            count, itemsize = transfer.target.size, transfer.dest.dtype.itemsize
            yield Finding(
                "transfer-size",
                f"this transfer moves {count * itemsize} bytes, {count} elements, to {transfer.dest.name} of rank "
                f"{transfer.dest.rank}, and nobody writes the next {rest.size}, which are read: is its size in "
                f"elements? It must be in bytes, {itemsize} for each element",
                (transfer.place, read),
            )
