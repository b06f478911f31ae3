"""What a row of a benchmark stands for: how each implementation is called, and what is wrong with its answer.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, gathered A ``[W * M, K]``, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from agcli.bench_hooks import Product
from agcli.compare import Comparison
from agcli.problem import KernelConfig, Problem, make_plan
from agcli.reference import gather, multiply
from agcli.verdict import tolerance


@dataclass(frozen=True)
class InputSet:
    """One rank's operands and results of a call."""

    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor
    gathered: torch.Tensor


Call = Callable[[InputSet], torch.Tensor]
"""Makes an answer from a set, usually in it, and returns it: C or gathered A."""


@dataclass(frozen=True)
class Implementation:
    """What a row stands for; ``gathers`` if its answer is the gathered A rather than C."""

    name: str
    call: Call
    gathers: bool = False


def of_set(product: Product) -> Call:
    """A product of A and B as a call on a set."""
    return lambda s: product(s.a, s.b)


def replay(graphs: Mapping[int, Callable[[], torch.Tensor]]) -> Call:
    """Graphs by the ``id`` of the set that each was captured with, as a call on a set."""
    return lambda s: graphs[id(s)]()


def _torch(s: InputSet) -> torch.Tensor:
    return multiply(gather(s.a, out=s.gathered), s.b, s.c)


def _gemm(s: InputSet) -> torch.Tensor:
    return multiply(s.gathered, s.b, s.c)


def _allgather(s: InputSet) -> torch.Tensor:
    return gather(s.a, out=s.gathered)


PARTS = {
    "torch": Implementation("torch", _torch),
    "gemm": Implementation("gemm", _gemm),
    "allgather": Implementation("allgather", _allgather, gathers=True),
}


def complaint(problem: Problem, gathered: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> str:
    """What is wrong with ``c``, "" if nothing is."""
    comparison = Comparison(make_plan(problem, KernelConfig(), None), tolerance(problem.dtype, problem.k))
    comparison.add(gathered, b, c, None)
    verdict = comparison.verdict(0, "", 0.0)
    if verdict.first_bad is None:
        return ""
    bad = verdict.first_bad
    return (
        f"{verdict.mismatches} of {verdict.elements} elements, first row {bad.row}, column {bad.col}: "
        f"got {bad.got}, want {bad.want}"
    )
