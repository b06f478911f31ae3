"""Who is running now: the current task, and how to report what it did wrong."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agcli.errors import KernelFault

if TYPE_CHECKING:
    from agcli.simulator.scheduler import Task

task: Task | None = None
"""The task that runs now; the scheduler sets it at every switch."""

kernel_files: set[str] = set()
"""Files that hold kernel source: frames of these are the kernel's own lines."""


@dataclass(frozen=True)
class Site:
    """A place in a kernel's source."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def site() -> Site | None:
    """The innermost line of kernel source on the stack of the running task; for a transfer, the line that began it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename in kernel_files:
            return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return task.origin if task is not None else None


def current() -> Task:
    """The running task. Raises RuntimeError outside a launch."""
    if task is None:
        raise RuntimeError("this works only inside a kernel that the simulator runs")
    return task


def fault(message: str, rule: str = "misuse") -> KernelFault:
    """An error with the source line, the rank and the core of the running task; ``rule`` names what was broken."""
    where = site()
    parts = [message]
    if where is not None:
        parts.append(f"at {where}")
    if task is not None:
        parts.append(f"on {task.label}")
    return KernelFault("\n  ".join(parts), rule, message, where)
