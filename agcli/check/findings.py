"""What a check finds: plain frozen data, the first of each kind with a count."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

FAULTS = {
    "dead-wait": "a dl.wait whose token is never consumed, which the compiler deletes",
    "misuse": "a rule of the programming model is broken",
    "symm-at-block": "symm_at of a block of pointers",
    "overflow": "an integer that does not fit its width",
    "barrier-not-reached": "a barrier that not all tasks reach equally often",
    "transfer-size": "a transfer whose size is in elements where bytes are meant",
    "unfinished-transfer": "a non-blocking transfer that neither quiet nor a barrier completes",
    "signal-reuse": "a wait that an old signal satisfies, which an earlier wait consumed",
    "lost-signal": "a signal that is overwritten before its wait must have seen it",
    "outside-tensor": "an access outside a tensor",
    "outside-slot": "one access that reaches from one slot of symmetric memory into another",
    "race": "two accesses of one element that nothing orders",
    "unwritten-read": "a read of symmetric memory that nothing wrote in this launch",
    "deadlock": "a wait that cannot end",
    "wrong-result": "a result that differs from the reference",
}
"""Kinds of faults, causes before what follows from them: reports keep this order."""

WARNINGS = {
    "idle-cores": "cores without work while others have several pieces",
    "incast": "several ranks write to one peer at the same step",
    "remote-atomics": "atomics on the memory of other ranks",
    "double-store": "both vector cores of an AI core store the same values to the same place",
    "wait-scope": "a scope of dl.wait that not every version accepts",
    "signal-reuse": "a wait that an old signal satisfies, which an earlier wait consumed",
}


@dataclass(frozen=True)
class Place:
    """One access: what it does, where in the source, and who does it when. ``loops`` are the loop variables there."""

    what: str
    file: str
    line: int
    function: str
    rank: int
    core: int
    unit: str
    launch: int
    loops: tuple[tuple[str, int], ...] = ()
    barriers: int = 0

    @property
    def source(self) -> str:
        """File, line and function."""
        return f"{self.file}:{self.line} in {self.function}" if self.file else "outside the kernel's source"

    @property
    def static(self) -> bool:
        """Whether this is a place in the source and not something that happened."""
        return self.rank < 0

    @property
    def who(self) -> str:
        """Rank, core, unit, launch and iteration."""
        parts = [f"rank {self.rank}", f"core {self.core}", self.unit, f"launch {self.launch}"]
        parts += [f"{name} = {value}" for name, value in self.loops]
        return ", ".join([*parts, f"after {self.barriers} barrier{'s' * (self.barriers != 1)} of this launch"])


@dataclass(frozen=True)
class Finding:
    """A fault (or, with ``warning``, a rule that costs speed): what, by which accesses, and why nothing prevents it."""

    kind: str
    what: str
    places: tuple[Place, ...] = ()
    last_common: str = ""
    why: str = ""
    details: tuple[str, ...] = ()
    count: int = 1
    warning: bool = False
    case: str = ""

    @property
    def key(self) -> tuple[Any, ...]:
        """Findings with equal keys are the same finding seen again; who waits where differs between schedules."""
        if self.kind == "deadlock":
            return (self.kind, self.what)
        sites = tuple(sorted((place.what, place.file, place.line) for place in self.places))
        return (self.kind, self.warning, sites or self.what)

    def to_json(self) -> dict[str, Any]:
        """JSON data."""
        return asdict(self)


class Findings:
    """Collects findings; one seen again only adds to the count of the first."""

    def __init__(self) -> None:
        self._first: dict[tuple[Any, ...], Finding] = {}

    def add(self, finding: Finding) -> None:
        """Note a finding."""
        first = self._first.get(finding.key)
        self._first[finding.key] = replace(first, count=first.count + finding.count) if first else finding

    def count(self, key: tuple[Any, ...]) -> bool:
        """Note one more of a finding known by its key; False if there is none."""
        first = self._first.get(key)
        if first is not None:
            self._first[key] = replace(first, count=first.count + 1)
        return first is not None

    def demote(self, kind: str) -> None:
        """Make warnings of the faults of a kind."""
        for key, finding in list(self._first.items()):
            if finding.kind == kind and not finding.warning:
                self._first[key] = replace(finding, warning=True)

    def extend(self, findings: list[Finding], case: str) -> None:
        """Note findings of a case."""
        for finding in findings:
            self.add(replace(finding, case=case))

    @property
    def faults(self) -> list[Finding]:
        """All faults: by kind in the order of ``FAULTS``, within a kind as they were found first."""
        order = list(FAULTS)
        faults = [finding for finding in self._first.values() if not finding.warning]
        return sorted(faults, key=lambda finding: order.index(finding.kind))

    @property
    def warnings(self) -> list[Finding]:
        """All warnings in the order in which they were found first."""
        return [finding for finding in self._first.values() if finding.warning]
