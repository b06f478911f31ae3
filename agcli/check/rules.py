"""Rules of single-operator development that cost speed and not correctness, as warnings with numbers.

A phase is what lies between two barriers of a launch. Work is counted in writes to global memory: a tile stored or a
transfer started is one piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from agcli.check.access import Access
from agcli.check.findings import Finding, Place
from agcli.simulator.memory import Buffer

INCAST_FACTOR = 1.5  # writers of one peer over the mean of all peers
SiteKey = tuple[str, int]


class Work:
    """Who wrote how much, where and when."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._cores: dict[int, int] = {}  # cores of each rank
        # (launch, rank, "cube" or "vector", phase) -> unit and core -> line -> pieces
        self._pieces: dict[tuple[int, int, str, int], dict[tuple[str, int], dict[SiteKey, int]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(int))
        )
        # (launch, phase) -> step of a task -> peer -> ranks that write to it, one entry a writing core
        self._remote: dict[tuple[int, int], dict[int, dict[int, list[int]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        self._steps: dict[tuple[int, int, int], int] = defaultdict(int)  # (actor, launch, phase) -> writes to peers
        self._places: dict[SiteKey, Place] = {}
        self._atomics: dict[SiteKey, list[int]] = defaultdict(list)

    def wrote(self, access: Access, kind: str, buffer: Buffer) -> None:
        """A task stores, adds to or transfers to a buffer."""
        if access.site is None:
            return
        task = access.task
        machine, site = task.machine, (access.site.file, access.site.line)
        if site not in self._places:
            self._places[site] = access.place()
        self._cores[machine.rank] = machine.cores
        role = "cube" if task.unit == "cube" else "vector"
        self._pieces[machine.launch, machine.rank, role, access.passed][task.unit, task.core][site] += 1
        if buffer.rank == machine.rank:
            return
        if kind == "atomic":
            self._atomics[site].append(machine.rank)
        step = self._steps[task.actor, machine.launch, access.passed]
        self._steps[task.actor, machine.launch, access.passed] += 1
        self._remote[machine.launch, access.passed][step][buffer.rank].append(machine.rank)

    def warnings(self) -> Iterator[Finding]:
        """All rules that were broken."""
        yield from self._idle_cores()
        yield from self._incast()
        for site, ranks in self._atomics.items():
            yield Finding(
                "remote-atomics",
                f"{len(ranks)} atomic operations on the memory of other ranks, by {len(set(ranks))} ranks: they "
                "contend for the peer's memory; load from the peer and add atomically at home",
                (self._places[site],),
                warning=True,
            )

    def _idle_cores(self) -> Iterator[Finding]:
        worst: dict[SiteKey, tuple[int, int, int, int]] = {}
        phases: dict[SiteKey, int] = defaultdict(int)
        for (_, rank, _, _), tasks in self._pieces.items():
            units = {unit for unit, _ in tasks}  # a unit that never works is left alone: half the vectors may suffice
            idle = len(units) * self._cores[rank] - len(tasks)
            for site in {site for lines in tasks.values() for site in lines} if idle else ():
                pieces = [lines[site] for lines in tasks.values() if site in lines]
                fair = -(-sum(pieces) // (len(pieces) + idle))
                if max(pieces) >= fair + 2:
                    phases[site] += 1
                    worst[site] = max(worst.get(site, (0, 0, 0, 0)), (max(pieces), idle, len(pieces), sum(pieces)))
        for site, (most, idle, busy, total) in worst.items():
            yield Finding(
                "idle-cores",
                f"{total} pieces of work are divided among {busy} tasks, up to {most} for one, while {idle} others of "
                "the same kind have nothing to do until the next barrier: flatten the task space before dividing it",
                (self._places[site],),
                count=phases[site],
                warning=True,
            )

    def _incast(self) -> Iterator[Finding]:
        for (launch, phase), steps in sorted(self._remote.items()):
            writes = hot = 0
            worst: tuple[int, int] = (0, 0)
            for peers in steps.values():
                in_step = sum(len(ranks) for ranks in peers.values())
                peer, ranks = max(peers.items(), key=lambda item: len(item[1]))
                writes += in_step
                if len(set(ranks)) > 1 and len(ranks) > INCAST_FACTOR * in_step / (self._world - 1):
                    hot += in_step
                    worst = max(worst, (len(set(ranks)), peer))
            if 2 * hot >= writes and hot:
                yield Finding(
                    "incast",
                    f"{worst[0]} ranks write to rank {worst[1]} at the same step (launch {launch}, phase {phase}; so "
                    f"do {hot} of {writes} writes to peers): start with the own rank, target = (rank + turn) % world",
                    warning=True,
                )
                return
