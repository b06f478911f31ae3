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

    where E is what two orders of K additions in fp32 differ by (products of 16-bit floats are exact in fp32). With unit
    normal inputs a partial sum of j terms is about sqrt(j), and its rounding error at most 2^-24 of it, uniformly
    distributed: a standard deviation of 2^-24 * sqrt(j / 3). Over K steps that adds up to 2^-24 * K / sqrt(6), for
    both sums to 2^-24 * K / sqrt(3), if each is added up one by one, which is the worst order. 2^-22 * K is seven
    times that: no false alarm in 10^11 elements. So

        bf16: rtol = 2^-8, atol = 2^-22 * K            K = 8192: 0.0039 and 0.0020

    A missing column of K changes an element by a product of two unit normals (0.64 on average), a missing tile of 64
    by 8: hundreds of times atol, and at K = 8192 more than rtol * |r| (0.35 for |r| = sqrt(K)) on most elements.
    For fp16 both are 1e-3 as in the defining document (twice u); above K = 4194 atol is 2^-22 * K here too.
    """
    if data == "integers":
        derived = (0.0, 0.0)
    elif dtype == "bf16":
        derived = (2.0**-8, 2.0**-22 * k)
    else:
        derived = (1e-3, max(1e-3, 2.0**-22 * k))
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
