"""Other programs that a command asks: compilers, pip, npu-smi. None outlives the command, whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from agcli import stops

_running: set[subprocess.Popen[str]] = set()


def run(
    command: Sequence[str],
    *,
    timeout_s: float,
    stdin: str = "",
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and return its status and what it printed, as text.

    After ``timeout_s`` seconds, or when a signal stops this program, it is killed with all that it has started.
    Raises OSError if it does not start, ``subprocess.TimeoutExpired``, and ``InterruptedError`` once a stop has come.
    """
    process = None
    try:
        with stops.held():  # or a signal in between would leave a process that nobody knows
            if stops.stopping():
                raise InterruptedError(f"{command[0]} is not started any more")
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True, errors="replace", cwd=cwd, env=env, start_new_session=True,
            )  # fmt: skip
            _running.add(process)
        if stops.stopping():  # the stop came while this thread started it
            _kill(process)
        out, err = process.communicate(stdin, timeout_s)
    except BaseException:
        if process is not None:
            _kill(process)
            with process:  # closes the pipes, which somebody who left the group may hold, and waits for the process
                pass
        raise
    finally:
        if process is not None:
            _running.discard(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill_all() -> None:
    """Kill what runs, with all that it has started; those who wait for it go on."""
    for process in list(_running):
        _kill(process)


def _kill(process: subprocess.Popen[str]) -> None:
    if process.returncode is None:  # not waited for yet, so the number is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


stops.at_stop(kill_all)
