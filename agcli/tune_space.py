"""Which configurations ``tune`` tries, and in which order. Pure.

A platform names the axes and says which combinations it allows. The first candidate is always what runs without tuning,
then come those that differ from it on one axis, which teach most, then combinations at random, the same every time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agcli.errors import UsageError
from agcli.problem import Problem
from agcli.tuned import Choice

if TYPE_CHECKING:
    from agcli.chips import Chip

Axes = Mapping[str, Sequence[Any]]
CANDIDATES = 160  # of one problem; how many of them are tried is the budget's affair
TRIES = 40  # random combinations for each that is wanted, before it is given up
TOGETHER = (2, 3, 4)  # axes that a random combination changes: far from the defaults little is good
SEED = 1

# Of ``KernelConfig``. Tiles are powers of two as the cube likes them; the chip's memories refuse the largest together.
SLOTTED_AXES: dict[str, tuple[Any, ...]] = {
    "block_m": (64, 128, 256),
    "block_n": (64, 128, 256),
    "block_k": (64, 128, 256, 512),
    "pvalue": (1, 2, 4, 8, 16),
    "comm_block_m": (16, 20, 32, 64, 128),
    "comm_block_k": (256, 512, 1024),
    "buffer_num": (2, 3, 4),
    "transport": ("store", "putmem"),
}


class Tunable(Protocol):
    """What a backend offers that can be tuned, besides ``Backend``."""

    def tuning_space(self, problem: Problem, chip: Chip | None) -> list[Choice]:
        """Candidates for a problem in the order in which to try them, the first being ``Choice()``. Asked by the
        parent; starts no device."""


def spread(axes: Axes, allowed: Callable[[dict[str, Any]], bool], count: int = CANDIDATES) -> list[dict[str, Any]]:
    """Up to ``count`` different settings of ``axes`` that are ``allowed``; ``{}``, which sets nothing, is the first.

    ``spread({"a": (1, 2), "b": (3, 4)}, lambda s: True, 4)`` is ``[{}, {"a": 1}, {"a": 2}, {"b": 3}]``.
    """
    found: list[dict[str, Any]] = [{}]
    for setting in _settings(axes, count):
        if len(found) >= count:
            break
        if setting not in found and allowed(setting):
            found.append(setting)
    return found


def _settings(axes: Axes, count: int) -> Iterator[dict[str, Any]]:
    for name, values in axes.items():
        for value in values:
            yield {name: value}
    chance = random.Random(SEED)
    for _ in range(count * TRIES):
        names = chance.sample(list(axes), min(chance.choice(TOGETHER), len(axes)))
        yield {name: chance.choice(list(axes[name])) for name in axes if name in names}


def slotted_space(problem: Problem, chip: Chip | None, axes: Axes = SLOTTED_AXES) -> list[Choice]:
    """Candidates of the kernel with slots: what ``KernelConfig`` and the chip's memories allow, each plan once."""
    seen = {Choice().plan(problem, chip)}

    def allowed(setting: dict[str, Any]) -> bool:
        try:
            plan = Choice(setting).plan(problem, chip)
        except UsageError:
            return False
        config = plan.config
        # A slot with more rows than there are, or a communication tile with more columns, only wastes memory.
        wasteful = config.pvalue > 1 and plan.rows_per_iteration >= 2 * problem.m
        wasteful = wasteful or (config.comm_block_k > 256 and config.comm_block_k >= 2 * problem.k)
        if wasteful or plan in seen:
            return False
        seen.add(plan)
        return True

    return [Choice(setting) for setting in spread(axes, allowed)]
