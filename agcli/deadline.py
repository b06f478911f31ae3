"""A limit for a whole command: what is over time is ended as TERM would end it, so that it cleans up."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

AGAIN_S = 0.1  # until the next attempt, where nothing handles the signal yet
LONGEST_S = 1e9  # 31 years; the system's timers cannot be set to any number


@dataclass
class Deadline:
    """``passed`` tells a run that was over time from one that somebody stopped."""

    passed: bool = False


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[Deadline]:
    """After ``seconds`` this process gets a TERM, as soon as something handles it, as ``stops`` does in a command.

    Until then it only sets ``passed``. In the main thread only.
    """
    limit = Deadline()
    if threading.current_thread() is not threading.main_thread():
        yield limit
        return

    def ring(*_: Any) -> None:
        limit.passed = True
        if callable(signal.getsignal(signal.SIGTERM)):
            signal.raise_signal(signal.SIGTERM)
        else:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(seconds, LONGEST_S))
    try:
        yield limit
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
