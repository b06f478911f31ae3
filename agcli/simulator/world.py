"""The other ranks, each in its own process: barriers and status through words in shared memory.

Each rank writes only its own words and reads all. Counters only grow, so nothing is ever reset and a fast rank cannot
confuse a slow one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from agcli.errors import EnvironmentFault, UsageError
from agcli.simulator.heap import Exchange, SharedSegments, available_bytes
from agcli.simulator.memory import Buffer

SCOPES = ("barrier_all", "barrier_all_vec")
_ENTERED = {scope: i for i, scope in enumerate(SCOPES)}  # words 0 and 1: barriers entered
_STATE, _ACTIVITY, _POLLS, _LAUNCHES = 2, 3, 4, 5  # word 5: launches ended
_HISTORY = 8  # from here: barriers entered when launch l ended, for the last launches
_KEPT = 64
_WORDS = _HISTORY + _KEPT * len(SCOPES)
_IDLE, _RUNNING, _WAITING, _FAILED = 0, 1, 2, 3
QUIET_S = 2.0  # all ranks wait and none moved for this long: nothing can end the waits
_lock = threading.Lock()


def _fence() -> None:
    """Order earlier memory accesses before later ones, on processors that do not by themselves."""
    with _lock:
        pass


class SharedWorld:
    """The world of one rank process. ``exchange`` is a collective object exchange (torch's all_gather_object)."""

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        phase: Callable[[str, bool], None] = lambda text, waiting: None,
    ) -> None:
        self.rank = rank
        self.size = size
        self.exchange = exchange
        self.symmetric: dict[int, Buffer] = {}
        self._phase = phase
        self._segments = SharedSegments(rank, _WORDS * 8, exchange, "the ranks' status")
        self._words = [memoryview(segment).cast("q") for segment in self._segments.maps]
        self._own = self._words[rank]
        self._heaps: dict[int, SharedSegments] = {}
        self._quiet: tuple[tuple[int, ...], float] | None = None
        self._reported = False

    # -- symmetric memory ----------------------------------------------------------------------------------------
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, advice: str) -> torch.Tensor:
        """Zeroed symmetric memory; the same shape and dtype on all ranks. Collective.

        Beside the elements it holds one byte an element that says which launch wrote it. Raises EnvironmentFault on
        every rank if the host has not enough memory for all ranks; ``advice`` says what to change.
        """
        count = int(torch.Size(shape).numel())
        data_bytes = count * dtype.itemsize
        need = (data_bytes + count) * self.size
        have = available_bytes()
        lowest = min((h for h in self.exchange(have) if h is not None), default=None)
        if lowest is not None and need > lowest:
            raise EnvironmentFault(
                f"symmetric memory does not fit: {self.size} ranks need {data_bytes} bytes each ({need} in all with "
                f"the simulator's records), this host has {lowest} available; {advice}"
            )
        heap = SharedSegments(self.rank, data_bytes + count, self.exchange, "symmetric memory")
        buffers = []
        for rank, segment in enumerate(heap.maps):
            data = torch.frombuffer(segment, dtype=dtype, count=count).reshape(shape)
            written = torch.frombuffer(segment, dtype=torch.uint8, count=count, offset=data_bytes)
            buffers.append(Buffer(data, "peer_mem", rank, written))
        for buffer in buffers:
            buffer.peers = tuple(buffers)
        own = buffers[self.rank].flat.as_strided(shape, buffers[self.rank].strides)
        self.symmetric[own.data_ptr()] = buffers[self.rank]
        self._heaps[own.data_ptr()] = heap
        return own

    def free(self, tensor: torch.Tensor) -> None:
        """Give symmetric memory back. Raises UsageError for a tensor that ``allocate`` did not return."""
        buffer = self.symmetric.pop(tensor.data_ptr(), None)
        if buffer is None:
            raise UsageError("this tensor is not symmetric memory, or was freed before")
        buffer.peers = ()
        self._heaps.pop(tensor.data_ptr()).close()

    def close(self) -> None:
        """Leave the world."""
        for word in self._words:
            word.release()
        self._segments.close()

    # -- launches ------------------------------------------------------------------------------------------------
    def begin(self) -> int:
        """A launch begins on this rank; returns its number, counted from 0."""
        self._own[_STATE] = _RUNNING
        self._reported = False
        self._phase(f"in launch {self._own[_LAUNCHES]}", False)
        return self._own[_LAUNCHES]

    def end(self, failed: bool) -> None:
        """A launch ended on this rank."""
        launches = self._own[_LAUNCHES]
        for scope, i in _ENTERED.items():
            self._own[_HISTORY + launches % _KEPT * len(SCOPES) + i] = self._own[_ENTERED[scope]]
        _fence()
        self._own[_LAUNCHES] = launches + 1
        self._own[_STATE] = _FAILED if failed else _IDLE
        self._phase(f"after launch {launches}", True)

    # -- barriers (see machine.World) ----------------------------------------------------------------------------
    def enter(self, scope: str) -> int:
        """All tasks of this rank reached a barrier; returns its number, counted from 1."""
        _fence()
        number = self._own[_ENTERED[scope]] + 1
        self._own[_ENTERED[scope]] = number
        return number

    def complete(self, scope: str, number: int) -> bool:
        """Whether all ranks have entered that barrier."""
        word = _ENTERED[scope]
        if any(words[word] < number for words in self._words):
            return False
        _fence()
        return True

    def missing(self, scope: str, number: int) -> list[int]:
        """Ranks that have not entered it."""
        return [rank for rank, words in enumerate(self._words) if words[_ENTERED[scope]] < number]

    def exclusive(self) -> AbstractContextManager[None]:
        """A section in which no other rank's atomics run."""
        return self._segments.exclusive()

    def waiting(self, text: str) -> None:
        """Report that this rank waits."""
        self._reported = True
        self._phase(text, True)

    def running(self) -> None:
        """This rank goes on."""
        self._own[_STATE] = _RUNNING
        self._own[_ACTIVITY] += 1
        self._quiet = None
        if self._reported:
            self._reported = False
            self._phase(f"in launch {self._own[_LAUNCHES]}", False)

    def stuck(self, turn: int, waits: dict[str, int]) -> str | None:
        """Why this rank's waits can never end, or None while they may."""
        self._own[_STATE] = _WAITING
        self._own[_POLLS] += 1
        for rank, words in enumerate(self._words):
            if words[_STATE] == _FAILED:
                raise EnvironmentFault(f"rank {rank} failed in its launch, so this rank's wait cannot end")
            for scope, number in waits.items():
                reason = self._left_early(rank, scope, number)
                if reason:
                    return reason
        return self._all_waiting(waits)

    def _left_early(self, rank: int, scope: str, number: int) -> str | None:
        launch, words = self._own[_LAUNCHES], self._words[rank]
        if not launch < words[_LAUNCHES] <= launch + _KEPT:
            return None
        entered = words[_HISTORY + launch % _KEPT * len(SCOPES) + _ENTERED[scope]]
        if entered >= number:
            return None
        return f"rank {rank} ended launch {launch} {number - entered} {scope} before this rank's"

    def _all_waiting(self, waits: dict[str, int]) -> str | None:
        """All ranks wait inside a launch, and none has moved for a while although each looked at its waits again."""
        if any(words[_STATE] != _WAITING for words in self._words):
            self._quiet = None
            return None
        if any(self.complete(scope, number) for scope, number in waits.items()):
            return None
        now = tuple(words[_ACTIVITY] for words in self._words)
        if self._quiet is None or self._quiet[0] != now:
            self._quiet = (now, time.monotonic())
            self._polls = [words[_POLLS] for words in self._words]
            return None
        looked = all(words[_POLLS] > before + 2 for words, before in zip(self._words, self._polls))
        if looked and time.monotonic() - self._quiet[1] > QUIET_S:
            return "all ranks wait, and none can end another's wait"
        return None
