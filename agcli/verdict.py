"""What verifying one rank comes to, and how much a right result may differ from the reference. Pure: no torch.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

PASS, FAIL, OVERFLOW = "PASS", "FAIL", "OVERFLOW"
LISTED_REGIONS = 16  # entries of each list of bad regions that a report carries; their counts are always whole

Number = float | str  # a JSON number, or "nan", "inf", "-inf", which JSON has no numbers for


@dataclass(frozen=True)
class Tolerance:
    """An element c is right if ``|c - r| <= atol + rtol * |r|``, r being the reference in fp32.

    With both 0, r is first rounded to the element type, as C is, and c must equal it.
    """

    rtol: float
    atol: float

    @property
    def exact(self) -> bool:
        """Whether every element must equal the rounded reference."""
        return self.rtol == 0 and self.atol == 0

    @property
    def text(self) -> str:
        """For reports."""
        return "exact" if self.exact else f"rtol {self.rtol:.4g}, atol {self.atol:.4g}"


def tolerance(
    dtype: str, k: int, data: str = "normal", rtol: float | None = None, atol: float | None = None
) -> Tolerance:
    """The tolerance for a product over ``k``; ``rtol`` and ``atol`` replace what is derived. 0 and 0 for "integers".

    C is a sum in fp32, rounded once; r is the same sum in another order, not rounded. So

        |c - r| <= u * |r| + E        u = 2^-p, half an ulp, for p bits of significand (bf16: 8, fp16: 11)

    where E is what two ways to add up K products in fp32 differ by (products of 16-bit floats are exact in fp32), with
    unit normal inputs: a partial sum of j terms is about sqrt(j). Two kinds of adders:

    Rounding to nearest, one product at a time, which is the worst order: an error of at most 2^-24 of the partial sum,
    uniformly distributed, so a standard deviation of 2^-24 * sqrt(j / 3); over K steps 2^-24 * K / sqrt(6), for both
    sums 2^-24 * K / sqrt(3). 2^-22 * K is seven times that.

    Matrix units, which cut off instead: all errors go towards 0 and add up. 16 products at a time, K / 16 steps lose
    less than 2^-23 of about sqrt(K) each: together less than 2^-27 * K^1.5. On an H200 the standard deviation of
    elements near 0 is 0.08 of that, the largest of 3 * 10^6 such elements 0.6 of it (cuBLAS, K = 4096 to 65536;
    benchmarks/cuda-notes.md). So

        E = max(2^-22 * K, 2^-27 * K^1.5)              K = 8192: 0.0055; the second is larger above K = 1024
        bf16: rtol = 2^-8, atol = E
        fp16: rtol = 1e-3, atol = max(1e-3, E)         as in the defining document (rtol is twice u) up to K = 2621

    A missing column of K changes an element by a product of two unit normals (0.64 on average), a missing tile of 64
    by 8: at K = 8192 a hundred times atol and more, and more than rtol * |r| (0.35 for |r| = sqrt(K)) on most elements;
    at K = 65536 five and 64 times atol.
    """
    sums = max(2.0**-22 * k, 2.0**-27 * k**1.5)
    if data == "integers":
        derived = (0.0, 0.0)
    elif dtype == "bf16":
        derived = (2.0**-8, sums)
    else:
        derived = (1e-3, max(1e-3, sums))
    return Tolerance(derived[0] if rtol is None else rtol, derived[1] if atol is None else atol)


@dataclass(frozen=True)
class FirstBad:
    """The first wrong element of the first launch that had one. ``row`` and ``col`` count over C, repeats from 1."""

    row: int
    col: int
    got: Number
    want: Number
    repeat: int
    source_rank: int
    local_row: int
    iteration: int
    slot: int | None
    tile_row: int
    tile_col: int


@dataclass(frozen=True)
class BadRegions:
    """To which parts of the computation the wrong elements belong: elements per part, most first, over all repeats.

    Lists are cut to ``LISTED_REGIONS`` entries; ``tiles_total`` counts all tiles of C with a wrong element. A tile is
    named by source rank, iteration, tile row in the iteration, and tile column.
    """

    source_ranks: list[list[int]] = field(default_factory=list)  # [source rank, elements]
    iterations: list[list[int]] = field(default_factory=list)  # [iteration, elements]
    slots: list[list[int]] = field(default_factory=list)  # [slot, elements]
    tiles: list[list[int]] = field(default_factory=list)  # [source rank, iteration, tile row, tile column, elements]
    tiles_total: int = 0


@dataclass(frozen=True)
class Verdict:
    """What one rank found, over all repeats.

    ``max_abs_err`` and ``max_rel_err`` are over elements that are finite in C and in the reference (None if there is
    none); the relative one is relative to ``max(|reference|, 1)``, since sums that cancel have no meaningful one.
    ``nan_count`` and ``inf_count`` are elements of C (Inf where the reference is finite), ``nonfinite_reference``
    elements whose reference is beyond the element type's range. ``seconds`` is the time of all launches.
    """

    rank: int
    device: str
    result: str
    max_abs_err: float | None
    max_rel_err: float | None
    mismatches: int
    elements: int
    nan_count: int
    inf_count: int
    nonfinite_reference: int
    rtol: float
    atol: float
    seconds: float
    repeats: int
    first_bad: FirstBad | None = None
    bad: BadRegions | None = None

    @property
    def passed(self) -> bool:
        """Whether this rank computed what it should."""
        return self.result == PASS

    def to_json(self) -> dict[str, Any]:
        """As JSON data; ``from_json`` is the way back."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """The verdict that ``to_json`` wrote."""
        first, bad = data["first_bad"], data["bad"]
        parts = {"first_bad": first and FirstBad(**first), "bad": bad and BadRegions(**bad)}
        return cls(**{**data, **parts})
