"""The parent's side of the launcher: one process per device on this machine, and nothing left of them afterwards.

    launch() --start--> agcli.rank (one a rank, each a Python in a session of its own)
       ^                      |
       +--- JSON lines -------+      stdout and stderr of a rank go to a file without a name: none can be left over

The parent listens on the store's port before any rank exists and hands the socket to rank 0: no other run can get
in between. It imports no torch, and its own environment stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from agcli.errors import EnvironmentFault, Interrupted
from agcli.host import usable_cores
from agcli.outcome import (
    SETTLE_S,
    SETTLE_WAITING_S,
    Job,
    RankResult,
    RankState,
    died,
    ended,
    failure,
    rank_names,
    reported,
    timed_out,
    with_logs,
)
from agcli.rank import Place, RankSpec
from agcli.stops import held

__all__ = ["Interrupted", "Job", "RankResult", "failure", "launch", "rank_names"]

TERM_GRACE_S = 2.0  # between TERM and KILL
EXIT_GRACE_S = 15.0  # for ranks to end by themselves after the last report
TICK_S = 0.1
LOG_TAIL_BYTES = 8192
LOG_TAIL_LINES = 40

# Left by another launcher; a rank that believed them would wait for ranks that do not exist.
_FOREIGN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}
_FOREIGN_NAMES |= {"MASTER_ADDR", "MASTER_PORT"}
_FOREIGN_PREFIXES = ("TORCHELASTIC_", "ROLE_", "SLURM_", "PMI_", "PMIX_", "OMPI_")

OnProgress = Callable[[int, int], None]
OnData = Callable[[int, Any], None]


def launch(
    job: Job,
    *,
    world: int,
    devices: Sequence[int],
    timeout_s: float,
    on_progress: OnProgress | None = None,
    on_data: OnData | None = None,
    env: Mapping[str, str] | None = None,
) -> list[RankResult]:
    """Run ``job`` in ``world`` processes, rank r on device index ``devices[r]``; one result per rank, in rank order.

    The first rank to fail ends the others. When no rank has made progress for ``timeout_s`` seconds, all are ended.
    ``on_progress(done, total)`` gets sums over all ranks, in the ranks' unit; ``on_data(rank, data)`` what a rank
    publishes, while it runs. ``env`` is added to the ranks' environment.
    Raises ``Interrupted`` on INT or TERM, ``EnvironmentFault`` if a process cannot be started; both after clean-up.
    Within ``stops.until_delivered`` a signal that comes when all ranks have reported is raised only at the end of that.
    """
    if len(devices) != world or world < 1:
        raise ValueError(f"launch needs one device per rank: world is {world}, devices are {list(devices)}")
    with held(keep=True) as caught:
        run = _Run(job, devices, timeout_s, on_progress, on_data, caught)
        try:
            run.start(_rank_environment(os.environ, world, env or {}))
            run.watch()
        finally:
            run.end()
        if caught and not run.complete:
            raise Interrupted(caught[0])
        return run.results()


HOST_HEAP_BYTES = 2**30


def _rank_environment(parent: Mapping[str, str], world: int, extra: Mapping[str, str]) -> dict[str, str]:
    env = {k: v for k, v in parent.items() if k not in _FOREIGN_NAMES and not k.startswith(_FOREIGN_PREFIXES)}
    env.setdefault("OMP_NUM_THREADS", str(max(1, usable_cores() // world)))
    if sys.platform == "linux":
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine, whatever its host name resolves to
        for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):  # glibc: keep large temporaries of the host,
            env.setdefault(name, str(HOST_HEAP_BYTES))  # which would else be zeroed by the kernel at each use
    return {**env, "PYTHONUNBUFFERED": "1", **extra}


@dataclass
class _Child:
    """One rank's process as the parent knows it."""

    rank: int
    process: subprocess.Popen[bytes]
    messages: IO[bytes]
    log: IO[bytes]
    state: RankState = field(default_factory=RankState)
    unread: bytes = b""
    at_end: bool = False  # of its messages
    result: RankResult | None = None

    def exit_code(self) -> int | None:
        """Exit status, negative for a signal; None while it runs. Does not reap, so that the group keeps its number."""
        if self.process.returncode is not None:
            return self.process.returncode
        info = os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is None:
            return None
        return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status

    def read(self) -> list[dict[str, Any]]:
        """The messages that have arrived, without waiting."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.messages.fileno(), 65536):
                self.unread += data
            self.at_end = True
        *lines, self.unread = self.unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def signal_group(self, number: int) -> None:
        """Signal the process and all that it started, as long as it is not reaped."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def log_tail(self) -> str:
        size = os.fstat(self.log.fileno()).st_size
        data = os.pread(self.log.fileno(), LOG_TAIL_BYTES, max(0, size - LOG_TAIL_BYTES))
        return "\n".join(data.decode(errors="replace").splitlines()[-LOG_TAIL_LINES:])


class _Run:
    """All ranks of one launch: ``start``, ``watch``, and on every path ``end``; then ``results``."""

    def __init__(
        self,
        job: Job,
        devices: Sequence[int],
        timeout_s: float,
        on_progress: OnProgress | None,
        on_data: OnData | None,
        caught: list[int],
    ) -> None:
        self._job = job
        self._devices = devices
        self._timeout_s = timeout_s
        self._on_progress = on_progress
        self._on_data = on_data
        self._caught = caught
        self._run_id = f"agcli-{os.getpid()}-{secrets.token_hex(4)}"
        self._children: list[_Child] = []
        self._tails: list[str] = []
        self._open = contextlib.ExitStack()
        self._selector = self._open.enter_context(selectors.DefaultSelector())
        self._held, self._hold = os.pipe()
        self._failures = 0
        self._failed_at: float | None = None
        self._progress_at = time.monotonic()

    # -- start ---------------------------------------------------------------------------------------------------

    def start(self, env: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            for rank in range(len(self._devices)):
                if self._caught:
                    return
                try:
                    self._children.append(self._start_rank(rank, listener, env))
                except OSError as e:
                    raise EnvironmentFault(f"cannot start rank {rank} of {len(self._devices)}: {e}") from e
        self._progress_at = time.monotonic()

    def _start_rank(self, rank: int, listener: socket.socket, env: dict[str, str]) -> _Child:
        world = len(self._devices)
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        fds = [writer, self._held] + ([listener.fileno()] if rank == 0 else [])
        spec = RankSpec(
            place=Place(rank, world, rank, world, self._devices[rank]),
            target=self._job.target,
            payload=self._job.payload,
            timeout_s=self._timeout_s,
            run_id=self._run_id,
            parent_pid=os.getpid(),
            port=listener.getsockname()[1],
            message_fd=writer,
            hold_fd=self._held,
            listen_fd=listener.fileno() if rank == 0 else None,
        )
        try:
            messages = self._open.enter_context(open(reader, "rb", buffering=0))  # noqa: SIM115  # until end()
            log = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            with tempfile.TemporaryFile() as stdin:
                stdin.write(json.dumps(asdict(spec)).encode())
                stdin.seek(0)
                process = subprocess.Popen(
                    [sys.executable, "-c", _rank_program(), f"rank={rank}/{world}"],  # the last is for readers of `ps`
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    env=env,
                    pass_fds=fds,
                    start_new_session=True,
                )
        finally:
            os.close(writer)
        child = _Child(rank, process, messages, log)
        self._selector.register(messages, selectors.EVENT_READ, child)
        return child

    # -- watch ---------------------------------------------------------------------------------------------------

    def watch(self) -> None:
        """Until every rank has reported and left, or one has failed, the time is up, or a signal came."""
        while not self._caught and not all(c.result for c in self._children):
            self._listen()
            now = time.monotonic()
            if self._failed_at is not None:
                idle = all(c.result or c.state.waiting for c in self._children)
                if now - self._failed_at >= (SETTLE_WAITING_S if idle else SETTLE_S):
                    return
            elif now - self._progress_at >= self._timeout_s:
                self._give_up()
                return
        if self._caught:
            self._listen()  # what ranks published before the signal came is not lost
        elif self._failed_at is None:
            self._let_go()

    def _listen(self) -> None:
        """Take in messages and deaths, waiting at most a tick for the first message."""
        for key, _ in self._selector.select(TICK_S):
            self._take(key.data)
        for child in self._children:
            code = child.exit_code()
            if code is None or (child.result and not child.result.ok):
                continue
            self._take(child)  # what it said before it died
            if child.result is None or child.result.ok:
                after_report = child.result is not None
                self._fail(child, died(child.rank, code, child.state, self._failures, after_report=after_report))

    def _take(self, child: _Child) -> None:
        messages = child.read()
        if child.at_end and child.messages in self._selector.get_map():
            self._selector.unregister(child.messages)  # or it would wake us up again and again
        for message in messages:
            if message["type"] == "error":
                self._fail(child, reported(child.rank, message, child.state, self._failures))
            elif message["type"] == "result":
                child.result = reported(child.rank, message, child.state, -1)
                self._progress_at = time.monotonic()
            elif message["type"] == "publish":
                self._progress_at = time.monotonic()
                if self._on_data:
                    self._on_data(child.rank, message["data"])
            elif child.state.update(message):
                self._progress_at = time.monotonic()
        if self._on_progress and any(m["type"] == "progress" for m in messages):
            states = [c.state for c in self._children]
            self._on_progress(sum(s.done for s in states), sum(s.total for s in states))

    def _fail(self, child: _Child, result: RankResult) -> None:
        child.result = result
        self._failures += 1
        if self._failed_at is None:
            self._failed_at = time.monotonic()

    def _give_up(self) -> None:
        for child in self._children:
            if child.result is None:
                child.result = timed_out(child.rank, child.state)

    def _let_go(self) -> None:
        """Every rank has reported a value: let them leave, and hold a wrong way of leaving against them."""
        self._release()
        deadline = time.monotonic() + EXIT_GRACE_S
        while not self._caught and time.monotonic() < deadline:
            if all(c.exit_code() is not None for c in self._children):
                break
            time.sleep(TICK_S / 5)
        for child in self._children:
            code = child.exit_code()
            if code is None and not self._caught:
                text = f"still running {EXIT_GRACE_S:g} s after every rank had reported"
                self._fail(child, RankResult(child.rank, "killed", message=text, error_kind=3, order=self._failures))
            elif code:
                self._fail(child, died(child.rank, code, child.state, self._failures, after_report=True))

    # -- end -----------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Leave no process, file descriptor, shared memory or file of this run behind. Takes a few seconds at most."""
        for number, patience_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, TERM_GRACE_S)):
            for child in self._children:
                child.signal_group(number)
            deadline = time.monotonic() + patience_s
            while time.monotonic() < deadline and any(c.exit_code() is None for c in self._children):
                time.sleep(TICK_S / 5)
        for child in self._children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(timeout=1.0)
            self._tails.append(child.log_tail())
        self._open.close()
        self._release()
        os.close(self._held)
        remove_leftovers(self._run_id)

    @property
    def complete(self) -> bool:
        """Whether every rank has reported a value."""
        return len(self._children) == len(self._devices) and all(c.result and c.result.ok for c in self._children)

    def _release(self) -> None:
        if self._hold >= 0:
            os.close(self._hold)
            self._hold = -1

    def results(self) -> list[RankResult]:
        return with_logs([c.result or ended(c.rank, c.state) for c in self._children], self._tails)


def remove_leftovers(run_id: str) -> None:
    """Remove shared memory and temporary files whose names begin with ``run_id``: ranks that were killed could not."""
    for folder in {"/dev/shm", tempfile.gettempdir()}:
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                if not entry.name.startswith(run_id):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def _rank_program() -> str:
    """A Python program that is a rank, and imports from where this process does, then from its own environment's paths.

    With ``-m`` the working directory would come first, and a file there called like a module be taken for it.
    """
    here = [path for path in sys.path if isinstance(path, str)]
    paths = f"own = sys.path[1:]; sys.path[:] = [path for path in {here!r} if path not in own] + own"
    return f"import sys; {paths}; from agcli.rank import main; sys.exit(main())"
