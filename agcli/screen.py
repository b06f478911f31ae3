"""Text for people: tables and fields that stay whole on a wide terminal, a narrow one, in a file and in a pipe.

Three layouts, chosen by where the text goes:

- a terminal that is wide enough: a rich table, with colour unless ``NO_COLOR`` or ``TERM=dumb`` says otherwise;
- a terminal that is too narrow: one block per record, a ``name: value`` line per cell;
- no terminal: plain columns, as wide as they need, so that a line found with grep is a whole record.

Nothing is ever cut, and no value is broken in two. ``FORCE_COLOR`` asks for a terminal's table in a file too.
"""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {"PASS": "green", "FAIL": "bold red", "OVERFLOW": "bold yellow", "ok": "green", "missing": "bold red"}
DUMB_TERMINALS = ("", "dumb", "unknown")
UNLIMITED = 100_000  # columns, where rich wants a number


@dataclass(frozen=True)
class Column:
    """A column's heading; ``numeric`` ones are aligned to the right."""

    name: str
    numeric: bool = False


@dataclass(frozen=True)
class Screen:
    """Where text goes: ``width`` is None where lines may be as long as they like."""

    stream: TextIO
    width: int | None
    color: bool

    @classmethod
    def of(cls, stream: TextIO | None = None) -> Screen:
        """What ``stream`` (default: stdout) can show, by the usual environment variables."""
        stream = sys.stdout if stream is None else stream
        forced = bool(os.environ.get("FORCE_COLOR")) and not os.environ.get("NO_COLOR")
        if not stream.isatty():
            return cls(stream, None, forced)
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "").lower() in DUMB_TERMINALS
        return cls(stream, _terminal_width(stream), forced or not plain)

    @property
    def rich(self) -> bool:
        """Whether a table is drawn by rich rather than as plain columns."""
        return self.width is not None or self.color

    @property
    def animated(self) -> bool:
        """Whether lines may be drawn over: on a terminal that knows how, and not in the log of a CI job."""
        dumb = os.environ.get("TERM", "").lower() in DUMB_TERMINALS
        return self.stream.isatty() and not dumb and not os.environ.get("CI")


def _terminal_width(stream: TextIO) -> int:
    """Columns of the terminal behind ``stream``; ``COLUMNS`` overrules what the terminal says."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


def render_table(
    columns: Sequence[Column | str], rows: Sequence[Sequence[str]], title: str = "", stream: TextIO | None = None
) -> None:
    """Print ``rows`` under ``columns`` to ``stream`` (default: stdout) in the layout that keeps them whole."""
    screen = Screen.of(stream)
    heads = [column if isinstance(column, Column) else Column(column) for column in columns]
    if not screen.rich:
        screen.stream.write(_plain_table(heads, rows, title))
        return
    if title:
        screen.stream.write(_wrapped(title, screen.width, "") + "\n")
    table = _rich_table(heads, rows)
    if screen.width is not None and _console(screen, UNLIMITED).measure(table).maximum > screen.width:
        _stacked(screen, heads, rows)
    else:
        _console(screen, screen.width or UNLIMITED).print(table)


def render_fields(fields: Sequence[tuple[str, str]], stream: TextIO | None = None, indent: str = "") -> None:
    """Print ``name: value`` lines; values break only between words, and only where a terminal is too narrow."""
    screen = Screen.of(stream)
    for name, value in fields:
        screen.stream.write(_wrapped(f"{name}: {value}", screen.width, indent) + "\n")


def _plain_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str) -> str:
    lines = [[column.name for column in columns], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = [title] if title else []
    for line in lines:
        cells = [
            cell.rjust(width) if column.numeric else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        text.append("  ".join(cells).rstrip())
    return "\n".join(text) + "\n"


def _rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for column in columns:
        table.add_column(Text(column.name), justify="right" if column.numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table


def _stacked(screen: Screen, columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    console = _console(screen, screen.width or UNLIMITED)
    for row in rows:
        for column, cell in zip(columns, row, strict=True):
            line = _wrapped(f"{column.name}: {cell}", screen.width, "")
            if screen.color and cell in STYLES:
                console.print(line, style=STYLES[cell])
            else:
                screen.stream.write(line + "\n")
        screen.stream.write("\n")


def _wrapped(line: str, width: int | None, indent: str) -> str:
    if width is None or len(indent) + len(line) <= width:
        return indent + line
    wrapper = textwrap.TextWrapper(
        width, initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False, break_on_hyphens=False
    )
    return wrapper.fill(line)


def _console(screen: Screen, width: int) -> Console:
    """A rich console that neither guesses a size (it ignores a width without a height) nor interprets the text."""
    from rich.console import Console

    return Console(
        file=screen.stream,
        width=width,
        height=25,
        force_terminal=screen.color,
        color_system="auto" if screen.color else None,
        no_color=not screen.color,
        highlight=False,
        markup=False,
        emoji=False,
    )
