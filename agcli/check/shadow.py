"""For each element of a buffer, the number of the last access of each actor: what a race is found from.

One row an actor and kind of access, int32, dense, since checked shapes are small. An access asks for the rows that hold
anything its actor's clock does not know yet; after a barrier that is none, and no element is looked at.
"""

from __future__ import annotations

import torch

from agcli.check.clocks import Clock
from agcli.errors import UsageError
from agcli.simulator.memory import Buffer, Region

CONFLICTS = {
    "read": ("write", "atomic"),
    "write": ("write", "read", "atomic", "wait"),
    "atomic": ("write", "read"),
    "wait": ("write",),
}
"""Kinds of earlier accesses that race with a kind of access. Signals count as atomics, waits as atomic reads."""

LIMIT_BYTES = 2 * 2**30
FIRST_ROWS = 4


def too_large(elements: int) -> UsageError:
    """What to say of a tensor whose accesses cannot be kept."""
    return UsageError(
        f"a tensor of {elements} elements is too large to check with so many cores; races do not depend on sizes: "
        "check a smaller problem (--m, --n, --k) or fewer cores (--cores)"
    )


def check_size(elements: int) -> None:
    """Raise UsageError for a tensor that is too large whatever is done with it."""
    if FIRST_ROWS * elements * 4 > LIMIT_BYTES:
        raise too_large(elements)


class Rows:
    """The last accesses of one kind to one buffer."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._actors: list[int] = []
        self._latest: list[int] = []
        self._data = torch.zeros((0, size), dtype=torch.int32)

    def note(self, region: Region, actor: int, number: int) -> None:
        """Actor's access ``number`` touches the region."""
        row = self._row(actor)
        self._latest[row] = number
        if region.elements is not None:
            self._data[row, region.elements] = number
        else:
            self._data.as_strided(region.sizes, region.strides, row * self._size + region.offset).fill_(number)

    def touched(self, region: Region) -> bool:
        """Whether any access of this kind was to a contiguous region."""
        return bool(self._data[:, region.offset : region.offset + region.size].any())

    def unordered(self, region: Region, actor: int, clock: Clock) -> dict[int, torch.Tensor]:
        """Accesses of others to the region that ``clock`` does not know: number -> flat offsets of the elements."""
        late = [
            row
            for row, (by, latest) in enumerate(zip(self._actors, self._latest, strict=True))
            if by != actor and latest > clock[by]
        ]
        if not late:
            return {}
        limits = torch.tensor([clock[self._actors[row]] for row in late], dtype=torch.int32)
        if region.elements is not None:
            seen = self._data[: len(self._actors), region.elements]
        else:
            shape, strides = (len(self._actors), *region.sizes), (self._size, *region.strides)
            seen = self._data.as_strided(shape, strides, region.offset)
        chosen = seen if len(late) == len(self._actors) else seen[late]
        racing = chosen > limits.view(-1, *[1] * (chosen.dim() - 1))
        if not bool(racing.any()):
            return {}
        offsets = region.offsets().expand(chosen.shape[1:])
        found: dict[int, torch.Tensor] = {}
        for row in range(len(late)):
            for number in chosen[row][racing[row]].unique().tolist():  # type: ignore[no-untyped-call]
                found[number] = offsets[racing[row] & (chosen[row] == number)]
        return found

    def _row(self, actor: int) -> int:
        if actor in self._actors:
            return self._actors.index(actor)
        row = len(self._actors)
        if row == self._data.shape[0]:
            capacity = max(FIRST_ROWS, 2 * row)
            if capacity * self._size * 4 > LIMIT_BYTES:
                raise too_large(self._size)
            grown = torch.zeros((capacity, self._size), dtype=torch.int32)
            grown[:row] = self._data
            self._data = grown
        self._actors.append(actor)
        self._latest.append(0)
        return row


class Shadow:
    """All accesses to one buffer. Reads of a private buffer are only listed until something writes to it."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self._rows: dict[str, Rows] = {}
        self._listed: list[tuple[Region, int, int]] | None = None if buffer.symmetric else []

    def unordered(self, kind: str, region: Region, actor: int, clock: Clock) -> dict[int, torch.Tensor]:
        """Earlier accesses that race with this one: number -> flat offsets."""
        if self._listed is not None and kind != "read":
            listed, self._listed = self._listed, None
            for where, who, number in listed:
                self.note("read", where, who, number)
        found: dict[int, torch.Tensor] = {}
        for other in CONFLICTS[kind]:
            rows = self._rows.get(other)
            if rows is not None:
                found |= rows.unordered(region, actor, clock)
        return found

    def written(self, region: Region) -> bool:
        """Whether anybody wrote to any element of a contiguous region."""
        return any(kind in self._rows and self._rows[kind].touched(region) for kind in ("write", "atomic"))

    def note(self, kind: str, region: Region, actor: int, number: int) -> None:
        """An access has happened."""
        if self._listed is not None and kind == "read":
            self._listed.append((region, actor, number))
            return
        rows = self._rows.get(kind)
        if rows is None:
            rows = self._rows[kind] = Rows(max(1, self.buffer.flat.numel()))
        rows.note(region, actor, number)
