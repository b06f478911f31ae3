"""What a platform may add to a benchmark: a device clock, a vendor baseline, its transports, graphs, cache sizes.

A backend offers them through one optional method, ``bench_hooks() -> BenchHooks``, cheap enough for the parent
process. It overrides here what it has; everything has a default that works on any platform.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agcli.backends.base import Backend

if TYPE_CHECKING:
    import torch

    from agcli.problem import Problem

Product = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
"""``C = f(a, b)``: a ``[M, K]``, b ``[K, N]`` of this rank; collective."""

MIB = 2**20


class Timer(Protocol):
    """Times of single calls: ``start``, the call, ``stop``, many times over; then ``ms``."""

    def start(self) -> None:
        """Right before the call."""

    def stop(self) -> None:
        """Right after the call was made; whether it has ended by then is the timer's affair."""

    def ms(self) -> list[float]:
        """Milliseconds of every call so far, on the device; waits for them."""


class HostTimer:
    """``perf_counter`` around calls that are waited for: right everywhere, and includes what the host adds."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self._synchronize = synchronize
        self._ms: list[float] = []
        self._begin = 0.0

    def start(self) -> None:
        self._synchronize()
        self._begin = time.perf_counter()

    def stop(self) -> None:
        self._synchronize()
        self._ms.append((time.perf_counter() - self._begin) * 1e3)

    def ms(self) -> list[float]:
        return self._ms


class EventTimer:
    """Pairs of device events on the current stream; the host waits only in ``ms``.

    ``event`` makes one event that can time, such as ``torch.npu.Event(enable_timing=True)``.
    """

    def __init__(self, event: Callable[[], Any]) -> None:
        self._event = event
        self._pairs: list[tuple[Any, Any]] = []

    def start(self) -> None:
        begin = self._event()
        self._pairs.append((begin, self._event()))
        begin.record()

    def stop(self) -> None:
        self._pairs[-1][1].record()

    def ms(self) -> list[float]:
        self._pairs[-1][1].synchronize()
        return [float(begin.elapsed_time(end)) for begin, end in self._pairs]


class BenchHooks:
    """Defaults for a platform about which nothing is known."""

    can_capture = False  # whether ``capture`` works
    transports: tuple[str, ...] = ()  # of KernelConfig; empty where a platform has one way only

    @property
    def has_vendor(self) -> bool:
        """Whether this platform has a fused operation of its vendor at all."""
        return type(self).vendor is not BenchHooks.vendor

    # -- called in a rank, after ``Backend.start`` -----------------------------------------------------------------
    def timer(self) -> Timer | None:
        """A fresh device clock, or None where ``perf_counter`` around ``synchronize`` has to do. Event timers see the
        device's work as it comes: where that starves, the platform holds its stream back in ``start``."""
        return None

    def vendor(self, problem: Problem) -> tuple[str, Product | None]:
        """The vendor's own fused operation: its name and how to call it; the reason and None where it cannot run.

        The answer must be the same on all ranks.
        """
        return "this platform has no fused operation of its vendor", None

    def capture(self, call: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        """``call``, which has run before, as a graph: each replay makes the same tensor's contents anew.

        Collective if the call is. RuntimeError if it cannot be captured.
        """
        raise NotImplementedError

    def peak(self) -> tuple[float, str] | None:
        """The device's stated dense 16-bit TFLOPS and its source, where the platform's ``Chip`` does not say."""
        return None

    def cache_bytes(self) -> int:
        """Size of the last cache before this device's main memory."""
        return host_cache_bytes()

    def free_bytes(self, local_world: int) -> int:
        """Memory that this rank may take now, being one of ``local_world`` on this host."""
        return host_free_bytes() // local_world


def hooks_of(backend: Backend) -> BenchHooks:
    """The backend's own hooks, or the defaults."""
    make = getattr(backend, "bench_hooks", None)
    hooks = make() if make is not None else BenchHooks()
    assert isinstance(hooks, BenchHooks)
    return hooks


def host_cache_bytes(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Size of the host's last-level cache as Linux gives it; 32 MiB where it does not."""
    sizes = [0]
    for path in folder.glob("index*/size"):
        text = path.read_text().strip()
        if text.endswith("K"):
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes) or 32 * MIB


def host_free_bytes() -> int:
    """Free memory of the host as Linux gives it, without what it could reclaim; 1 GiB where it does not."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 1024 * MIB
