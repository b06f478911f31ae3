"""What tests of processes and signals ask the system."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def is_running(pid: int) -> bool:
    """Whether the process is there and has not ended; one that nobody has waited for yet has."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> bool:
    """Whether ``condition`` comes true within ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False
