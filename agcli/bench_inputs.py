"""Operands that timed calls take in turn, and the time that all ranks agree on.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, gathered A ``[W * M, K]``, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from agcli.agreement import from_first, group_device
from agcli.bench_hooks import hooks_of
from agcli.bench_parts import InputSet
from agcli.inputs import make_inputs
from agcli.problem import Problem, cdiv
from agcli.reference import gather

if TYPE_CHECKING:
    from agcli.backends.base import Backend
    from agcli.rank import Reporter

MAX_SETS = 256  # sets of inputs; fewer do where a set is large or memory small
MEMORY_SHARE = 0.25  # of the memory that a rank may take, for its inputs


def input_sets(
    ctx: Reporter, backend: Backend, problem: Problem, seed: int, warm: bool = False
) -> tuple[list[InputSet], str]:
    """One set if caches are to be ``warm``, else so many that a set has left the cache when its turn comes again.

    Also says how caches are: "warm", "cold", or "partly cold" where memory was short. Collective.
    """
    p, hooks = problem, hooks_of(backend)
    one = p.itemsize * (p.m * p.k + p.k * p.n + p.world * p.m * (p.n + p.k))
    count, caches = 1, "warm"
    if not warm:
        room = int(hooks.free_bytes(ctx.local_world) * MEMORY_SHARE) // one
        wanted = cdiv(2 * hooks.cache_bytes(), one) + 1
        count = int(from_first(str(max(1, min(wanted, room, MAX_SETS))), None))
        caches = temperature(count, one, hooks.cache_bytes())
    device = backend.device()
    first = [t.to(device) for t in make_inputs(p, "normal", seed, 0, ctx.rank)]
    sets = []
    for index in range(count):  # the same random rows in another order, other products: drawing them takes long
        a, b = (t.roll(index, 0) for t in first)
        sets.append(InputSet(a, b, torch.empty(p.c_shape, dtype=a.dtype, device=device), gather(a)))
    return sets, caches


def temperature(sets: int, touched_bytes: int, cache_bytes: int) -> str:
    """How caches are if so many bytes of each set are touched: "cold" if a set has left them when it comes again."""
    return "cold" if sets * touched_bytes > cache_bytes else "partly cold"


def slowest(times_ms: Sequence[Sequence[float]]) -> list[list[float]]:
    """The largest of all ranks' times for each implementation and call; in whole nanoseconds on the way. Collective."""
    own = torch.tensor([[round(ms * 1e6) for ms in line] for line in times_ms], device=group_device(None))
    every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(every, own)
    found: list[list[int]] = torch.stack(every).amax(dim=0).tolist()
    return [[ns / 1e6 for ns in line] for line in found]
