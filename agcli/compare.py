"""C against the reference: by row chunks, in fp32, with a bounded amount of memory; and where it is wrong.

Legend: W ranks, gathered A ``[W * M, K]``, B ``[K, N]``, C ``[W * M, N]``; row r of C belongs to source rank r // M.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from agcli.operands import TORCH_DTYPES
from agcli.problem import Plan
from agcli.verdict import FAIL, LISTED_REGIONS, OVERFLOW, PASS, BadRegions, FirstBad, Number, Tolerance, Verdict

CHUNK_BYTES = 16 * 2**20  # of one fp32 intermediate
CACHE_BYTES = 2**20  # the same on a CPU while it is compared, in a dozen passes: what a core's own cache holds
Tile = tuple[int, int, int | None, int, int]  # source rank, iteration, slot, tile row in the iteration, tile column


class Comparison:
    """What one rank's results differ from the reference by, over all repeats. ``add`` each, then ``verdict``."""

    def __init__(self, plan: Plan, tolerance: Tolerance) -> None:
        self._plan = plan
        self._tolerance = tolerance
        self._dtype = TORCH_DTYPES[plan.problem.dtype]
        self._max_abs: float | None = None
        self._max_rel: float | None = None
        self._mismatches = self._elements = self._nans = self._infs = self._nonfinite_reference = 0
        self._repeats = 0
        self._first: FirstBad | None = None
        self._tiles: Counter[Tile] = Counter()

    def add(
        self,
        gathered: torch.Tensor,
        b: torch.Tensor,
        c: torch.Tensor,
        first_slot: int | None,
        on_rows: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Compare the ``c`` of one launch, which began in ``first_slot`` (None: no slots).

        ``on_rows`` is told how many rows are done.
        The reference is made in fp32 on C's device, whatever the platform, and not rounded: rounding it would hide
        half an ulp. fp16 and bf16 fit the shorter significands that some devices multiply fp32 with.
        """
        self._repeats += 1
        wide = b.float()
        rows = c.shape[0]
        step = max(1, CHUNK_BYTES // (4 * max(b.shape)))
        at_once = max(1, CACHE_BYTES // (4 * c.shape[1])) if c.device.type == "cpu" else step
        for row in range(0, rows, step):
            end = min(row + step, rows)
            want = gathered[row:end].float() @ wide
            for part, of_want in enumerate(torch.split(want, at_once)):
                first = row + part * at_once
                self._add_rows(of_want, c[first : first + len(of_want)], first, first_slot)
            on_rows(end)

    def _add_rows(self, want: torch.Tensor, c: torch.Tensor, row: int, first_slot: int | None) -> None:
        """Rows of C from ``row`` on; ``want`` is their reference in fp32, which is used up."""
        if self._tolerance.exact:
            want = want.to(c.dtype).float()
        got = c.float()
        error = (got - want).abs_()
        size = want.abs()
        if float(size.max()) <= torch.finfo(c.dtype).max and math.isfinite(float(error.max())):
            bad = error > size.mul(self._tolerance.rtol).add_(self._tolerance.atol)
            relative = error / size.clamp_(min=1.0)
        else:
            error, relative, bad = self._with_nonfinite(got, want, error, size)
        self._elements += got.numel()
        self._max_abs = _larger(self._max_abs, error)
        self._max_rel = _larger(self._max_rel, relative)
        if bool(bad.any()):
            self._add_bad(bad, got, want, row, first_slot)

    def _with_nonfinite(
        self, got: torch.Tensor, want: torch.Tensor, error: torch.Tensor, size: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Errors, relative errors and bad elements where C or the reference has NaN or Inf; their errors are -1.

        A reference beyond the element type's range is what it rounds to, an Inf, and C must have the same Inf.
        """
        rounded = want.to(self._dtype).float()
        overflown = ~rounded.isfinite()
        want[overflown] = rounded[overflown]
        self._nans += int(got.isnan().sum())
        self._infs += int((got.isinf() & ~overflown).sum())
        self._nonfinite_reference += int(overflown.sum())
        close = error <= size * self._tolerance.rtol + self._tolerance.atol  # false for NaN
        bad = torch.where(overflown, got != rounded, ~close)
        counts = error.isfinite() & ~overflown
        return torch.where(counts, error, -1.0), torch.where(counts, error / size.clamp(min=1.0), -1.0), bad

    def _add_bad(
        self, bad: torch.Tensor, got: torch.Tensor, want: torch.Tensor, row: int, first_slot: int | None
    ) -> None:
        self._mismatches += int(bad.sum())
        if self._first is None:
            i, j = divmod(int(bad.flatten().int().argmax()), bad.shape[1])
            self._first = self._first_bad(row + i, j, _number(got[i, j]), _number(want[i, j]), first_slot)
        problem, config = self._plan.problem, self._plan.config
        by_column = torch.stack([part.sum(dim=1) for part in torch.split(bad, config.block_n, dim=1)], dim=1).cpu()
        rows = torch.arange(row, row + bad.shape[0])
        first_rows = rows - rows % problem.m % config.block_m  # of each row's tile
        tops, which = torch.unique(first_rows, return_inverse=True)
        counts = torch.zeros(len(tops), by_column.shape[1], dtype=torch.int64).index_add_(0, which, by_column)
        for top, in_tiles in zip(tops.tolist(), counts, strict=True):
            place = self._plan.locate(top, 0, first_slot or 0)
            slot = None if first_slot is None else place["slot"]
            for j in in_tiles.nonzero().flatten().tolist():
                tile = (place["source_rank"], place["iteration"], slot, place["tile_row"], j)
                self._tiles[tile] += int(in_tiles[j])

    def _first_bad(self, row: int, col: int, got: Number, want: Number, first_slot: int | None) -> FirstBad:
        place: dict[str, Any] = {**self._plan.locate(row, col, first_slot or 0)}
        if first_slot is None:
            place["slot"] = None
        return FirstBad(row=row, col=col, got=got, want=want, repeat=self._repeats, **place)

    def verdict(self, rank: int, device: str, seconds: float) -> Verdict:
        """The verdict over all that was added."""
        result = FAIL if self._mismatches else OVERFLOW if self._nonfinite_reference else PASS
        return Verdict(
            rank=rank,
            device=device,
            result=result,
            max_abs_err=self._max_abs,
            max_rel_err=self._max_rel,
            mismatches=self._mismatches,
            elements=self._elements,
            nan_count=self._nans,
            inf_count=self._infs,
            nonfinite_reference=self._nonfinite_reference,
            rtol=self._tolerance.rtol,
            atol=self._tolerance.atol,
            seconds=seconds,
            repeats=self._repeats,
            first_bad=self._first,
            bad=bad_regions(self._tiles) if self._mismatches else None,
        )


def bad_regions(tiles: Counter[Tile]) -> BadRegions:
    """The wrong elements of each tile, summed up by source rank, iteration and slot."""
    sums: list[Counter[int]] = [Counter(), Counter(), Counter()]
    merged: Counter[tuple[int, int, int, int]] = Counter()  # repeats use different slots for the same tile
    for (source, iteration, slot, tile_row, tile_col), count in tiles.items():
        merged[source, iteration, tile_row, tile_col] += count
        for counter, key in zip(sums, (source, iteration, slot), strict=True):
            if key is not None:
                counter[key] += count
    by_source, by_iteration, by_slot = ([[key, n] for key, n in c.most_common(LISTED_REGIONS)] for c in sums)
    listed = [[*tile, n] for tile, n in merged.most_common(LISTED_REGIONS)]
    return BadRegions(by_source, by_iteration, by_slot, listed, len(merged))


def _larger(known: float | None, errors: torch.Tensor) -> float | None:
    """The larger of the largest error so far and those in ``errors``, of which negative ones do not count."""
    largest = float(errors.max())
    return known if largest < 0 else max(known or 0.0, largest)


def _number(value: torch.Tensor) -> Number:
    """A number that JSON can hold, or its name."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
