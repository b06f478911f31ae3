"""Memory that all ranks of one host map: the symmetric heap and the ranks' status words.

On Linux a segment is an anonymous ``memfd``, which other ranks open through ``/proc``: it has no name, so nothing can
be left behind, and it does not count against the size of ``/dev/shm``. Elsewhere it is a temporary file that is
unlinked as soon as all ranks have opened it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agcli.errors import EnvironmentFault

Exchange = Callable[[Any], list[Any]]
"""Gives one object of this rank, returns those of all ranks in rank order. Collective."""


class SharedSegments:
    """``nbytes`` of zeroed memory of every rank, mapped by all: ``maps[r]`` is rank r's. Collective.

    Raises EnvironmentFault on every rank if any rank cannot have its part.
    """

    def __init__(self, rank: int, nbytes: int, exchange: Exchange, purpose: str) -> None:
        self.maps: list[mmap.mmap] = []
        self._lock = -1  # rank 0's segment, opened by each rank on its own: what they lock against each other
        size = max(nbytes, mmap.PAGESIZE)
        offer, fd = _make(size)
        try:
            offers = exchange(offer)
            _refuse_failures(offers, purpose, nbytes)
            problem = None
            try:
                self._lock = os.open(offers[0]["path"], os.O_RDWR)
                for other, their in enumerate(offers):
                    self.maps.append(mmap.mmap(fd, size) if other == rank else _open(their["path"], size))
            except OSError as error:
                problem = f"rank {rank} cannot map it: {error}"
            problems = exchange({"host": offer["host"], "error": problem})
            _refuse_failures(problems, purpose, nbytes)
        finally:
            if fd >= 0:
                os.close(fd)
            if offer.get("unlink"):
                Path(offer["path"]).unlink(missing_ok=True)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other rank is in such a section of these segments meanwhile."""
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Unmap. Tensors made from the maps must be gone; those that are not keep their map alive."""
        for segment in self.maps:
            try:
                segment.close()
            except BufferError:  # a tensor still uses it; it goes with the tensor
                continue
        self.maps = []
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def available_bytes() -> int | None:
    """Memory that can still be taken on this host: what is free or the control group's rest; None if unknown."""
    known = []
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                known.append(int(line.split()[1]) * 1024)
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        if limit.isdigit():
            known.append(int(limit) - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except OSError:
        pass
    return min(known) if known else None


def _make(size: int) -> tuple[dict[str, Any], int]:
    """This rank's segment as an offer to the others, and its file descriptor (-1 on failure)."""
    offer: dict[str, Any] = {"host": socket.gethostname(), "error": None}
    fd = -1
    try:
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("ag-gemm")
            offer["path"] = f"/proc/{os.getpid()}/fd/{fd}"
        else:
            fd, path = tempfile.mkstemp(prefix="ag-gemm-")
            offer |= {"path": path, "unlink": True}
        os.ftruncate(fd, size)
    except OSError as error:
        offer["error"] = str(error)
    return offer, fd


def _open(path: str, size: int) -> mmap.mmap:
    fd = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(fd, size)
    finally:
        os.close(fd)


def _refuse_failures(offers: list[dict[str, Any]], purpose: str, nbytes: int) -> None:
    hosts = sorted({offer["host"] for offer in offers})
    if len(hosts) > 1:
        raise EnvironmentFault(f"the cpu backend simulates one host, but the ranks run on {', '.join(hosts)}")
    for rank, offer in enumerate(offers):
        if offer["error"]:
            raise EnvironmentFault(
                f"rank {rank} has no {nbytes} bytes of shared memory for {purpose}: {offer['error']}"
            )
