"""A progress bar for long work: on stderr, and only where that is a terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from agcli.screen import Screen

OnProgress = Callable[[int, int], None]


@contextlib.contextmanager
def progress_bar(unit: str) -> Iterator[OnProgress | None]:
    """A function to be called with what is done and the total, summed up over all ranks; None if nobody would see it.

    The bar shows both, counted in ``unit``, and the time left, and is gone at the end.
    """
    if not Screen.of(sys.stderr).animated:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(elapsed_when_finished=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(unit, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
