"""One rank of a job that torchrun or Slurm started: the worker function runs in this very process.

There is no parent to watch the ranks, so each watches the whole job through the job's store. The function runs in a
thread; the main thread, which stays free, publishes this rank's state and looks for the others'. A job may run several
commands, in one process or one after another, in the same order on all ranks: ``runs/R`` counts those of rank R, since
torchrun's store outlives the processes. Keys of a run:

    beat       counts every sign of progress of any rank: unchanged for the whole timeout, the run is given up
    failed     counts the ranks that failed; what they report first gets their order
    state/R    where rank R was last seen      result/R  what became of it
    read       counts the ranks that need the store no more       done       rank 0 has printed: all may leave
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from agcli import stops
from agcli.errors import EnvironmentFault, Interrupted
from agcli.jobenv import JobEnv
from agcli.launch import OnData, OnProgress, remove_leftovers
from agcli.outcome import SETTLE_S, Job, RankResult, RankState, died, ended, reported, timed_out
from agcli.rank import NEVER, Message, Place, RankContext, prefixed, run_target, tcp_store

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

WATCH_EVERY_S = 0.2
LEAVE_S = 10.0  # how long ranks wait for each other before they leave


@dataclass
class Joined:
    """All ranks' results, on every rank alike. Print only where ``speaks`` is set, and end through ``leave``."""

    results: list[RankResult]
    speaks: bool
    _board: _Board
    _stuck: bool  # the worker function still runs; an orderly exit would wait for it

    def leave(self, status: int) -> NoReturn:
        """End this process with ``status``, after rank 0 has printed: torchrun ends all as soon as one has failed."""
        sys.stdout.flush()
        sys.stderr.flush()
        stops.finish()
        with contextlib.suppress(Exception, KeyboardInterrupt):  # whoever is gone has left: that is what is waited for
            self._board.part()
        if self._stuck:
            os._exit(status)
        sys.exit(status)


def run_joined(
    job: Job,
    env: JobEnv,
    *,
    timeout_s: float,
    on_progress: OnProgress | None = None,
    on_data: OnData | None = None,
    devices: Sequence[int] | None = None,
) -> Joined:
    """Run ``job`` as rank ``env.rank``, and gather the results of all ranks.

    ``devices`` are this node's device indices (``local_rank`` picks one; by default it is the index). When no rank of
    the job makes progress for ``timeout_s`` seconds, or one fails and the others cannot go on, the missing ranks get
    results that say so. ``on_progress`` is called on rank 0 with sums over all ranks, and ``on_data`` on every rank
    with what it published itself. Raises ``EnvironmentFault`` if the job's store cannot be reached within
    ``timeout_s`` (the variables were probably left by a job that is over), ``Interrupted`` on INT or TERM.
    """
    board = _Board(env, timeout_s)
    device = devices[env.local_rank] if devices is not None else env.local_rank
    ctx = RankContext(
        Place(env.rank, env.world, env.local_rank, env.local_world, device),
        timeout_s=timeout_s,
        run_id=board.run_id,
        master=(env.master_addr, env.master_port),
        send=board.post,
        open_store=lambda: prefixed(_connect(env, timeout_s), board.run_id),
    )
    thread = threading.Thread(target=_call, args=(job, ctx, board), name="agcli-rank", daemon=True)
    thread.start()
    with stops.held(keep=True) as caught:
        try:
            results = board.watch(on_progress if env.rank == 0 else None, on_data, caught)
        except _store_errors():
            results = board.lost()
        finally:
            if env.local_rank == 0:
                remove_leftovers(board.run_id)
        if caught:
            atexit.register(_end_at_once, thread, 128 + caught[0])
            if not all(r.ok for r in results):
                raise Interrupted(caught[0])
    thread.join(timeout=0 if any(not r.ok for r in results) else None)
    return Joined(results, env.rank == 0 or board.is_lost, board, thread.is_alive())


def _end_at_once(thread: threading.Thread, status: int) -> None:
    """End this process here if the worker function still runs: an orderly end would abort inside torch's C++ code."""
    if thread.is_alive():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _call(job: Job, ctx: RankContext, board: _Board) -> None:
    try:
        board.post(run_target(ctx, job.target, job.payload))
    except SystemExit as e:
        board.post({"type": "exit", "code": e.code if isinstance(e.code, int) else int(e.code is not None)})


def _connect(env: JobEnv, timeout_s: float) -> Store:
    serve = env.rank == 0 and not env.store_is_served
    try:
        if not serve:
            _await_server(env, timeout_s)
        # multi_tenant: a second connection of rank 0 shares the server of the first
        limit = timedelta(seconds=timeout_s)
        store = tcp_store(env.master_addr, env.master_port, limit, is_master=serve, multi_tenant=True)
    except (OSError, RuntimeError) as e:
        what = "cannot listen on" if serve else f"found no store within {timeout_s:g} s at"
        raise EnvironmentFault(
            f"rank {env.rank} of {env.world} {what} {env.where}, where by the environment its job meets. If there is "
            f"no such job, unset {', '.join(env.names)}. ({str(e).splitlines()[0]})"
        ) from e
    store.set_timeout(NEVER)
    return store


def _await_server(env: JobEnv, timeout_s: float) -> None:
    """Until something listens at the master address. torch's own client waits longer than told, and prints stacks."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            remaining_s = max(WATCH_EVERY_S, deadline - time.monotonic())
            socket.create_connection((env.master_addr, env.master_port), timeout=remaining_s).close()
            return
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(WATCH_EVERY_S)


def _store_errors() -> type[Exception]:
    import torch.distributed as dist

    return dist.DistError


class _Board:
    """What this rank tells the job and hears of it. Only ``post`` may be called from any thread."""

    def __init__(self, env: JobEnv, timeout_s: float) -> None:
        self._env = env
        self._timeout_s = timeout_s
        attempt = prefixed(_connect(env, timeout_s), f"agcli/{env.attempt}")
        self._store = prefixed(attempt, str(attempt.add(f"runs/{env.rank}", 1)))
        self._lock = threading.Lock()
        self._posted: list[Message] = []
        self._state = RankState()
        self._result: RankResult | None = None
        self.is_lost = False
        self.run_id = self._agree()
        self._publish_state()

    def _agree(self) -> str:
        """The run's name, which rank 0 makes up."""
        if self._env.rank == 0:
            self._store.set("run_id", f"agcli-{secrets.token_hex(6)}")
        try:
            self._store.wait(["run_id"], timedelta(seconds=self._timeout_s))
        except RuntimeError as e:
            raise EnvironmentFault(
                f"rank {self._env.rank} waited {self._timeout_s:g} s at {self._env.where}, but rank 0 did not come"
            ) from e
        return bytes(self._store.get("run_id")).decode()

    def post(self, message: Message) -> None:
        with self._lock:
            self._posted.append(message)

    def watch(self, on_progress: OnProgress | None, on_data: OnData | None, caught: list[int]) -> list[RankResult]:
        """Until every rank has a result, the time is up, a failure has left no hope of more, or a signal was caught."""
        beat, beat_at = -1, time.monotonic()
        failed_at: float | None = None
        while True:
            self._publish(on_data)
            now = time.monotonic()
            if (count := self._store.add("beat", 0)) != beat:
                beat, beat_at = count, now
                if on_progress:
                    states = self._states()
                    on_progress(sum(s.done for s in states), sum(s.total for s in states))
            if self._store.add("failed", 0) and failed_at is None:
                failed_at = now
            if self._store.check([f"result/{r}" for r in range(self._env.world)]):
                return self._results(ended)
            if caught:
                self._stopped(caught[0])
                return self._results(ended)
            if failed_at is not None and now - failed_at >= SETTLE_S:
                return self._results(ended)
            if failed_at is None and now - beat_at >= self._timeout_s:
                return self._results(timed_out)
            time.sleep(WATCH_EVERY_S)

    def lost(self) -> list[RankResult]:
        """The results as far as this rank can tell without the store."""
        self.is_lost = True
        text = f"the connection to {self._env.where} is gone, and with it the process of rank 0 or of torchrun"
        fault = RankResult(0, "exited", message=text, error_kind=3, order=0, specific=True)
        own = self._result or ended(self._env.rank, self._state)
        return [fault] + [own if r == own.rank else ended(r, RankState("unknown")) for r in range(1, self._env.world)]

    def part(self) -> None:
        """Wait until rank 0 has come here, having printed, and rank 0, which may serve the store, for all others."""
        others = self._env.world - 1
        if self._env.rank:
            self._store.add("read", 1)
            self._store.wait(["done"], timedelta(seconds=LEAVE_S))
            return
        self._store.set("done", "1")
        deadline = time.monotonic() + LEAVE_S
        while self._store.add("read", 0) < others and time.monotonic() < deadline:
            time.sleep(WATCH_EVERY_S)

    def _stopped(self, signum: int) -> None:
        """Tell the others, which may not have got the signal, that this rank will not come."""
        if self._result is None:
            order = self._store.add("failed", 1) - 1
            self._result = died(self._env.rank, -signum, self._state, order)
            self._store.set(f"result/{self._env.rank}", json.dumps(self._result.to_json()))
        if self._env.rank:
            self._store.add("read", 1)  # so that rank 0 does not wait for this rank before it leaves

    def _publish(self, on_data: OnData | None) -> None:
        """Send what was posted since the last time."""
        with self._lock:
            posted, self._posted = self._posted, []
        moved = False
        for message in posted:
            if message["type"] in ("result", "error", "exit"):
                self._result = self._final(message)
                self._store.set(f"result/{self._env.rank}", json.dumps(self._result.to_json()))
                moved = True
            elif message["type"] == "publish":
                moved = True
                if on_data:
                    on_data(self._env.rank, message["data"])
            else:
                moved |= self._state.update(message)
        if moved:
            self._publish_state()

    def _publish_state(self) -> None:
        self._store.set(f"state/{self._env.rank}", json.dumps(asdict(self._state)))
        self._store.add("beat", 1)

    def _final(self, message: Message) -> RankResult:
        rank = self._env.rank
        if message["type"] == "result":
            return reported(rank, message, self._state, -1)
        order = self._store.add("failed", 1) - 1
        if message["type"] == "exit":
            return died(rank, message["code"], self._state, order)
        return reported(rank, message, self._state, order)

    def _read(self, key: str) -> Any:
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _states(self) -> list[RankState]:
        states = (self._read(f"state/{r}") for r in range(self._env.world))
        return [RankState(**s) if s else RankState("not joined yet") for s in states]

    def _results(self, otherwise: Callable[[int, RankState], RankResult]) -> list[RankResult]:
        results = []
        for rank, state in enumerate(self._states()):
            data = self._read(f"result/{rank}")
            results.append(RankResult(**data) if data else otherwise(rank, state))
        return results
