"""The rank's side of the launcher: what a worker function is given, and the process that calls it.

Its ``main`` is started by ``launch.py`` only. Its standard input holds one JSON object (``RankSpec``).
Messages go to the parent as JSON lines on a pipe of their own, so that nothing a library prints passes for one:

    {"type": "phase", "text": ..., "waiting": ...}      {"type": "progress", "done": ..., "total": ...}
    {"type": "publish", "data": ...}
    {"type": "result", "value": ...}                    {"type": "error", "kind": 1|2|3, "message": ..., ...}
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol

from agcli.errors import AgGemmError, EnvironmentFault

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

Message = dict[str, Any]

PROGRESS_EVERY_S = 0.1
# Waits inside torch must not end before the launcher's own timeout, which alone knows whether other ranks still get on.
NEVER = timedelta(days=1)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Place:
    """Which rank this is, and which device is its own. ``rank`` counts over all nodes, ``local_rank`` on this one."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    device: int


@dataclass(frozen=True)
class RankSpec:
    """What the launcher hands to one rank's process. File descriptors are inherited."""

    place: Place
    target: str
    payload: dict[str, Any]
    timeout_s: float
    run_id: str
    parent_pid: int
    port: int  # of the store, on 127.0.0.1
    message_fd: int
    hold_fd: int  # at its end once every rank has reported; rank 0, which serves the store, must not leave before
    listen_fd: int | None  # rank 0: the socket that already listens on ``port``

    @staticmethod
    def from_json(data: dict[str, Any]) -> RankSpec:
        return RankSpec(**{**data, "place": Place(**data["place"])})


class Reporter(Protocol):
    """The part of ``RankContext`` that long work needs: which rank it is, and to whom it says how far it is."""

    rank: int
    local_world: int

    def phase(self, text: str, waiting: bool = False) -> None:
        """As ``RankContext.phase``."""

    def progress(self, done: int, total: int) -> None:
        """As ``RankContext.progress``."""


class RankContext:
    """What a worker function may know and do.

    Attributes: ``rank``, ``world``, ``local_rank``, ``local_world``, ``device`` (index), ``timeout_s`` (seconds without
    progress of any rank until the run is given up), ``run_id`` (equal on all ranks, different for each run: begin the
    names of shared memory and temporary files with it, so that the launcher can remove them after a crash),
    ``master_addr`` and ``master_port`` (where the store listens).
    """

    def __init__(
        self,
        place: Place,
        *,
        timeout_s: float,
        run_id: str,
        master: tuple[str, int],
        send: Callable[[Message], None],
        open_store: Callable[[], Store],
    ) -> None:
        self.rank = place.rank
        self.world = place.world
        self.local_rank = place.local_rank
        self.local_world = place.local_world
        self.device = place.device
        self.timeout_s = timeout_s
        self.run_id = run_id
        self.master_addr, self.master_port = master
        self._send = send
        self._open_store = open_store
        self._store: Store | None = None
        self._owns_group = False
        self._phase: tuple[str, bool] | None = None
        self._held_back: Message | None = None
        self._sent_at = 0.0

    def phase(self, text: str, waiting: bool = False) -> None:
        """Say where this rank is; ``waiting`` when it goes on only once others arrive. A repetition is no news."""
        if (text, waiting) == self._phase:
            return
        self._phase = (text, waiting)
        self.flush()
        self._send({"type": "phase", "text": text, "waiting": waiting})

    def progress(self, done: int, total: int) -> None:
        """Say how much of this rank's work is done (any unit). Ten messages a second leave; the last always does."""
        self._held_back = {"type": "progress", "done": done, "total": total}
        if done >= total or time.monotonic() - self._sent_at >= PROGRESS_EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Send the progress message that was held back, if any."""
        if self._held_back is not None:
            message, self._held_back = self._held_back, None
            self._sent_at = time.monotonic()
            self._send(message)

    def publish(self, data: Any) -> None:
        """Hand JSON data to the parent at once, before this rank has its result (``launch``'s ``on_data``)."""
        self.flush()
        self._send({"type": "publish", "data": data})

    def store(self) -> Store:
        """The run's key-value store, private to this run; connected on first use."""
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def init_process_group(self, pg_backend: str, **kw: Any) -> bool:
        """Create torch's default process group over the run's store. False, and nothing done, if one exists already.

        ``kw`` goes to ``torch.distributed.init_process_group``. ``close`` destroys only a group created here.
        """
        import torch.distributed as dist

        if dist.is_initialized():
            return False
        kw.setdefault("timeout", NEVER)
        store = prefixed(self.store(), "process_group")
        dist.init_process_group(pg_backend, store=store, rank=self.rank, world_size=self.world, **kw)
        self._owns_group = True
        _keep_what_is_loaded()
        return True

    def close(self) -> None:
        """Destroy the process group, if it was created here. May be called twice."""
        if self._owns_group:
            import torch.distributed as dist

            self._owns_group = False
            if dist.is_initialized():
                dist.destroy_process_group()


def run_target(ctx: RankContext, target: str, payload: dict[str, Any]) -> Message:
    """Call the worker function; its value or its exception as a message. SystemExit and its kin pass through."""
    try:
        module, _, name = target.partition(":")
        value = getattr(importlib.import_module(module), name)(ctx, payload)
        ctx.flush()
        ctx.close()
        json.dumps(value)  # refuses here, with this rank's name, what could not be sent
        return {"type": "result", "value": value}
    except Exception as e:
        known = isinstance(e, AgGemmError)
        return {
            "type": "error",
            "kind": e.exit_status if isinstance(e, AgGemmError) else AgGemmError.exit_status,
            "message": str(e) if known else _explained(e),
            "traceback": traceback.format_exc(),
            "specific": known,
        }


def _explained(error: Exception) -> str:
    """An error that nobody raised for the user, with what to do where that is known."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, MemoryError) or re.search(r"(?i)can't allocate memory|out of memory", text):
        return f"not enough memory; lower --m, --n, --k or --world ({text.splitlines()[0]})"
    return text


def tcp_store(host: str, port: int, timeout: timedelta, **options: Any) -> Store:
    """A connection of its own to the key-value store at ``host:port``; with ``is_master`` also the server."""
    import torch.distributed as dist

    tcp: Any = dist.TCPStore  # type: ignore[attr-defined]  # public, but not declared so
    store: Store = tcp(host, port, timeout=timeout, wait_for_workers=False, **options)
    return store


def prefixed(store: Store, prefix: str) -> Store:
    """The same store with ``prefix`` before every key."""
    import torch.distributed as dist

    view: Store = dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
    return view


class _Sender:
    """Writes messages to the parent, whole and in order."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def __call__(self, message: Message) -> None:
        data = memoryview(json.dumps(message).encode() + b"\n")
        with self._lock:
            while data:
                try:
                    data = data[os.write(self._fd, data) :]
                except BrokenPipeError:  # the parent is gone: nobody wants the result
                    os._exit(EnvironmentFault.exit_status)


def _end_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, even if by KILL (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the call above
        os._exit(EnvironmentFault.exit_status)


def _open_store(spec: RankSpec) -> Store:
    serve = spec.listen_fd is not None
    store = tcp_store("127.0.0.1", spec.port, NEVER, is_master=serve, master_listen_fd=spec.listen_fd)
    return prefixed(store, spec.run_id)


def _keep_what_is_loaded() -> None:
    """Collect garbage from now on (``main`` had that wait), and only among what is made from now on.

    Looking through the modules of torch is more than a third of the time that it takes to load and to leave them.
    """
    gc.freeze()
    gc.enable()


def main() -> int:
    """Serve one rank from the first byte of its specification to the parent's leave to go."""
    gc.disable()  # until torch is loaded
    spec = RankSpec.from_json(json.load(sys.stdin))
    _end_with_parent(spec.parent_pid)
    for fd in (spec.message_fd, spec.hold_fd, spec.listen_fd):
        if fd is not None:
            os.set_inheritable(fd, False)
    send = _Sender(spec.message_fd)
    ctx = RankContext(
        spec.place,
        timeout_s=spec.timeout_s,
        run_id=spec.run_id,
        master=("127.0.0.1", spec.port),
        send=send,
        open_store=lambda: _open_store(spec),
    )
    message = run_target(ctx, spec.target, spec.payload)
    send(message)
    os.read(spec.hold_fd, 1)
    return int(message.get("kind", 0))
