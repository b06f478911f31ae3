"""What INT and TERM do, for all commands: they break into what runs, or wait until what is at work has been brought
to its end. Neither is ever lost: what breaks in without effect is tried again, and the exit status tells in any case.

    start of the program  ``early``    nothing has been started yet: one line, and the process is gone
    a command             ``handled``  the signal raises ``Interrupted`` in the main thread
    ranks, reports        ``held``     the signal is only noted, and raises ``Interrupted`` at the end; while a report
                                       is delivered, which may take for ever, a later one breaks in
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from agcli import early
from agcli.errors import Interrupted

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_S = 0.2  # between attempts of a signal to break in
PATIENCE_S = 1.0  # from one signal to another that breaks into a delivery; `timeout` and torchrun send two at once


class _State:
    """Signals are a process's own, so this is too. Only the main thread changes it."""

    def __init__(self) -> None:
        self.installed = False  # whether ``handled`` is in effect
        self.noted: list[int] = []  # what came since then
        self.noted_at = 0.0  # when the first came, seconds of the monotonic clock
        self.holds = 0  # ``held`` contexts in effect, kept ones included
        self.firm_holds = 0  # those of them that no later signal breaks into
        self.keeping: int | None = None  # holds kept for ``until_delivered``; None outside it
        self.over = False  # whether the program is about to end
        self.clean_ups: list[Callable[[], None]] = []


_state = _State()


def tell(stop: KeyboardInterrupt) -> int:
    """Say what ended the program, once; the exit status, as shells report a process that a signal ended."""
    if not early.told:
        print(f"ag-gemm: {str(stop) or 'interrupted'}", file=sys.stderr)
    early.told = True
    return 128 + int(getattr(stop, "signum", signal.SIGINT))


def at_stop(clean_up: Callable[[], None]) -> None:
    """Have ``clean_up``, which must not wait, called when a signal breaks in and when the program ends."""
    _state.clean_ups.append(clean_up)


def finish() -> None:
    """The program ends: what threads have begun is cleaned up, and they are to begin no more.

    All is told; a signal that comes only now, such as torchrun's when another rank has ended, is no news.
    """
    _state.over = early.told = True
    for clean_up in _state.clean_ups:
        clean_up()


def stopping() -> bool:
    """Whether the program ends or a signal has come, so that nothing new is to be started. From any thread."""
    return _state.over or (_state.installed and bool(_state.noted))


def forget() -> None:
    """The signals so far were none of the user's (``deadline``)."""
    _state.noted.clear()


@contextlib.contextmanager
def handled() -> Iterator[list[int]]:
    """INT and TERM raise ``Interrupted`` within; the list holds those that came (main thread only).

    Where the exception is lost on its way, it is raised again. Contexts inside another change nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    if _state.installed:
        yield _state.noted
        return
    forget()
    early.told, _state.over, _state.keeping = early.is_other_rank(), False, None
    before: dict[signal.Signals, Any] = {}
    hook = sys.unraisablehook
    try:
        _state.installed = True
        sys.unraisablehook = functools.partial(_hush, hook)
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if handler not in (signal.SIG_IGN, None):
                before[number] = handler
                signal.signal(number, _on_signal)
        try:
            yield _state.noted
        finally:
            _state.holds += 1  # from here on signals are only noted
            _state.firm_holds += 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        _state.installed, _state.holds, _state.firm_holds = False, 0, 0
    if _state.noted:
        raise Interrupted(_state.noted[0])


def _on_signal(number: int, frame: object) -> None:
    _state.noted.append(number)
    now = time.monotonic()
    if len(_state.noted) == 1:
        _state.noted_at = now
    again = now - _state.noted_at >= PATIENCE_S and not _state.firm_holds
    if (again or not _state.holds) and not _in_flight():
        _break_in()


def _in_flight() -> bool:
    """Whether what runs is clean-up on account of a signal, which another one must not cut short."""
    error: BaseException | None = sys.exc_info()[1]
    while error is not None and not isinstance(error, Interrupted):
        error = error.__context__
    return error is not None


def _break_in() -> NoReturn:
    for clean_up in _state.clean_ups:
        clean_up()
    stop = Interrupted(_state.noted[0])
    with contextlib.suppress(RuntimeError):  # no more threads
        # not threading.Thread: its locks may be held by what the signal breaks into
        _thread.start_new_thread(_repeat, (_thread.get_ident(), stop.signum))
    raise stop


def _repeat(thread: int, number: int) -> None:
    """Send the signal again until ``handled`` has ended: finalizers and C code lose exceptions."""
    while True:
        time.sleep(AGAIN_S)
        if not (_state.installed and _state.noted):
            return
        signal.pthread_kill(thread, number)


def _hush(hook: Callable[[Any], object], ignored: Any) -> None:
    """Python is about to say that it ignores an exception; of a signal's nothing is to be said, as it comes again."""
    if not isinstance(ignored.exc_value, Interrupted):
        hook(ignored)


@contextlib.contextmanager
def held(keep: bool = False, firm: bool = True) -> Iterator[list[int]]:
    """INT and TERM are only noted in the list this yields, and raise ``Interrupted`` at the end (main thread only).

    Unless ``firm``, one that comes ``PATIENCE_S`` after the first raises it at once. With ``keep``, inside
    ``until_delivered``, they go on being held to the end of that, not firmly, unless this ends by an exception.
    """
    if threading.current_thread() is not threading.main_thread():
        yield []
        return
    with handled() as noted:
        _state.holds += 1
        _state.firm_holds += firm
        kept = False
        try:
            yield noted
            if keep and _state.keeping is not None:
                _state.keeping += 1
                kept = True
        finally:
            _state.holds -= not kept
            _state.firm_holds -= firm
        if noted and not _state.holds:
            _break_in()


@contextlib.contextmanager
def until_delivered() -> Iterator[None]:
    """Within, signals that come when ranks have ended wait until this ends: their results are not to be lost."""
    with handled() as noted:
        _state.keeping = 0
        try:
            yield
        finally:
            kept, _state.keeping = _state.keeping, None
            _state.holds -= kept
        if noted and not _state.holds:
            _break_in()
