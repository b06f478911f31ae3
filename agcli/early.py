"""INT and TERM before a command begins and after it has ended, when there is nothing to clean up.

Loaded before everything else, so that as little as possible is loaded before the signals are looked after: ``signal``
alone takes as long as the interpreter's own start.
"""

import _signal  # type: ignore[import-not-found]
import os

NAMES = {1: "SIGHUP", 2: "SIGINT", 15: "SIGTERM"}


def is_other_rank() -> bool:
    """Whether this is a rank of a job other than 0, whose launcher ends it when another rank has had its say."""
    return os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) != "0"


told = is_other_rank()  # whether there is nothing more to tell of what ended the program


def exit_at_once() -> None:
    """From now on INT, TERM and HUP end the process where it is, with one line on stderr and status 128 + number."""
    for number in NAMES:
        if _signal.getsignal(number) not in (_signal.SIG_IGN, None):  # `nohup` and background jobs stay deaf
            _signal.signal(number, _exit)


def _exit(number: int, frame: object) -> None:
    try:
        if not told:
            os.write(2, f"ag-gemm: stopped by {NAMES[number]}\n".encode())
    finally:
        os._exit(128 + number)
