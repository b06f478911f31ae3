"""What a tuning is to do: problems and their candidates, decided once by the parent. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agcli.errors import UsageError
from agcli.problem import Problem
from agcli.tuned import Choice


@dataclass(frozen=True)
class Task:
    """One problem and what to try for it, in this order; ``refused`` counts what the compiler refused beforehand."""

    problem: Problem
    space: tuple[Choice, ...]
    refused: int = 0


@dataclass(frozen=True)
class TunePlan:
    """All that the ranks must agree on. ``budget_s`` is for all tasks together."""

    backend: str
    tasks: tuple[Task, ...]
    budget_s: float
    soc: str | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.budget_s) and self.budget_s > 0):
            raise UsageError(f"the time must be a positive number of seconds, got {self.budget_s:g} (--budget)")

    def to_json(self) -> dict[str, Any]:
        """As the payload of a job; ``from_json`` is the way back."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> TunePlan:
        tasks = tuple(
            Task(Problem(**task["problem"]), tuple(Choice(**choice) for choice in task["space"]), task["refused"])
            for task in data["tasks"]
        )
        return TunePlan(**{**data, "tasks": tasks})
