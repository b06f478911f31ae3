"""What the ranks are asked and what becomes of each: jobs, results, and one message for one cause.

The same for ranks that the launcher started and for ranks of a job that was joined. Standard library only.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from agcli.errors import AgGemmError, EnvironmentFault, KernelFault, UsageError

SETTLE_S = 3.0  # after the first failure: how long other ranks may still report theirs before they are ended
SETTLE_WAITING_S = 0.5  # the same, when all others only wait for the one that failed

_ERRORS: dict[int, type[AgGemmError]] = {1: KernelFault, 2: UsageError, 3: EnvironmentFault}


@dataclass(frozen=True)
class Job:
    """In every rank ``target`` ("package.module:function") is called with a context and ``payload``, which is JSON."""

    target: str
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass
class RankState:
    """Where a rank was last seen, from its messages."""

    phase: str = "starting"
    waiting: bool = False
    done: int = 0
    total: int = 0

    def update(self, message: Mapping[str, Any]) -> bool:
        """Take in a phase or progress message; True if it says that the rank got on."""
        before = asdict(self)
        if message["type"] == "phase":
            self.phase, self.waiting = message["text"], message["waiting"]
        elif message["type"] == "progress":
            self.done, self.total = message["done"], message["total"]
        return asdict(self) != before


@dataclass(frozen=True)
class RankResult:
    """What became of one rank.

    ``status`` is "ok" (it reported; a verdict in ``value`` may still say FAIL), "error" (it raised), "exited" or
    "killed" (it ended without a report, or wrongly after it), "timeout", or "ended" (because another rank failed).
    ``order`` counts the failures: 0 failed first, -1 did not fail by itself.
    """

    rank: int
    status: str
    value: Any = None
    message: str = ""
    exit_code: int | None = None
    signal: int | None = None
    error_kind: int | None = None  # exit status that this failure asks for: 1, 2 or 3
    traceback: str = ""
    log_tail: str = ""
    phase: str = ""
    waiting: bool = False
    order: int = -1
    specific: bool = (
        False  # the message was written for the user, or the rank died: rarely a consequence of another failure
    )

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON data; ``RankResult(**data)`` is the way back."""
        return asdict(self)

    def log_lines(self) -> list[str]:
        """The last lines that the rank printed, each labelled with its rank."""
        return [f"[rank {self.rank}] {line}" for line in self.log_tail.splitlines()]


def reported(rank: int, message: Mapping[str, Any], state: RankState, order: int) -> RankResult:
    """The result that a rank's own last message ("result" or "error") stands for."""
    if message["type"] == "result":
        return RankResult(rank, "ok", value=message["value"], phase=state.phase)
    return RankResult(
        rank,
        "error",
        message=message["message"],
        error_kind=message["kind"],
        traceback=message["traceback"],
        phase=state.phase,
        waiting=state.waiting,
        order=order,
        specific=message["specific"],
    )


def died(rank: int, exit_code: int, state: RankState, order: int, *, after_report: bool = False) -> RankResult:
    """The result of a rank whose process ended without a report, or wrongly; a negative ``exit_code`` is a signal."""
    when = "after it had reported" if after_report else f"before it reported, last seen {state.phase!r}"
    if exit_code < 0:
        what, status = f"killed by signal {-exit_code} ({_signal_name(-exit_code)})", "killed"
    else:
        what, status = f"ended with exit status {exit_code}", "exited"
    return RankResult(
        rank,
        status,
        message=f"{what} {when}",
        exit_code=exit_code if exit_code >= 0 else None,
        signal=-exit_code if exit_code < 0 else None,
        error_kind=3,
        phase=state.phase,
        waiting=state.waiting,
        order=order,
        specific=True,
    )


def timed_out(rank: int, state: RankState) -> RankResult:
    """The result of a rank that had not reported when the time was up."""
    where = f"waited in {state.phase!r}" if state.waiting else f"did not arrive: last seen {state.phase!r}"
    return RankResult(rank, "timeout", message=where, error_kind=3, phase=state.phase, waiting=state.waiting)


def ended(rank: int, state: RankState) -> RankResult:
    """The result of a rank that was ended because another one failed."""
    text = f"ended in {state.phase!r}, because another rank failed"
    return RankResult(rank, "ended", message=text, error_kind=3, phase=state.phase, waiting=state.waiting)


def cause(results: Sequence[RankResult]) -> list[RankResult]:
    """The ranks to blame: the first to fail by itself and those that failed alike; after a timeout, all it concerns.

    A rank's death or a message written for the user outranks a bare exception, which may come from a connection that
    another rank's end has cut.
    """
    failed = [r for r in results if r.order >= 0]
    if not failed:
        return [r for r in results if r.status == "timeout"] or [r for r in results if not r.ok]
    first = min(failed, key=lambda r: (not r.specific, r.order))
    return [r for r in failed if (r.message, r.error_kind) == (first.message, first.error_kind)]


def failure(results: Sequence[RankResult], timeout_s: float | None = None) -> AgGemmError | None:
    """One error for one cause, to be raised or printed by the caller; None if every rank reported a value.

    Its class follows from the exit status that the failure asks for. ``timeout_s`` (seconds) only completes the text.
    """
    blamed = cause(results)
    if not blamed:
        return None
    if blamed[0].status == "timeout":
        return EnvironmentFault(_timeout_text(results, timeout_s))
    error = _ERRORS.get(blamed[0].error_kind or 3, EnvironmentFault)
    return error(f"{rank_names(r.rank for r in blamed)}: {blamed[0].message}")


def rank_names(ranks: Iterable[int]) -> str:
    """``[0, 1, 2, 5]`` -> "ranks 0-2, 5"; ``[3]`` -> "rank 3"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"ranks {text}"


def with_logs(results: Sequence[RankResult], tails: Sequence[str]) -> list[RankResult]:
    """The results, each with the tail of its rank's log."""
    return [replace(r, log_tail=tail) for r, tail in zip(results, tails, strict=True)]


def _timeout_text(results: Sequence[RankResult], timeout_s: float | None) -> str:
    late = [r for r in results if r.status == "timeout"]
    groups: dict[str, list[int]] = {}
    for r in sorted(late, key=lambda r: (r.waiting, r.rank)):
        groups.setdefault(r.message, []).append(r.rank)
    parts = [f"{rank_names(ranks)} {message}" for message, ranks in groups.items()]
    finished = [r.rank for r in results if r.ok]
    if finished:
        parts.append(f"{rank_names(finished)} had finished")
    limit = f" for {timeout_s:g} s" if timeout_s is not None else " in time"
    return (
        f"no rank made progress{limit}: " + "; ".join(parts) + ". A longer --timeout helps if the work is merely slow."
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
