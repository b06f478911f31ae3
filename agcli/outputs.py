"""Where reports go: files that are refused early or written whole, and a stdout with nothing else on it.

Whatever keeps one of them from being written, the others are, the text for people first.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

from agcli.errors import EnvironmentFault, UsageError
from agcli.stops import held


def check_writable(path: Path | None, option: str) -> None:
    """Refuse a report that could not be written, before hours of work are done for it. ``-`` is stdout."""
    if path is None or str(path) == "-":
        return
    folder = path.parent
    if path.is_dir():
        raise UsageError(f"{path} is a directory ({option})")
    if not folder.is_dir():
        raise UsageError(f"there is no directory {folder} ({option} {path})")
    replaceable = os.access(folder, os.W_OK | os.X_OK) and (not path.exists() or os.access(path, os.W_OK))
    if not replaceable:
        raise UsageError(f"{path} cannot be written: no permission ({option})")


def check_distinct(paths: Mapping[str, Path | None]) -> None:
    """Refuse two files of a run, by option, that are the same place. Raises UsageError."""
    seen: dict[str, str] = {}
    for option, path in paths.items():
        if path is None:
            continue
        place = "-" if str(path) == "-" else str(path.resolve())
        if place in seen:
            where = "stdout" if place == "-" else str(path)
            raise UsageError(f"{seen[place]} and {option} both name {where}; give each its own")
        seen[place] = option


def write_file(path: Path, text: str) -> None:
    """Write ``path`` whole or not at all: readers never see a part of it."""
    temporary = None
    try:
        if path.exists() and not path.is_file():  # /dev/stderr, a pipe: nothing to put in its place
            path.write_text(text, encoding="utf-8")
            return
        target = path.resolve()
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise EnvironmentFault(f"{path} could not be written: {error.strerror or error}") from error


Report = tuple[Path | None, Callable[[], str]]
"""Where a report is wanted, if at all, and what makes its text."""


def deliver(
    print_for_people: Callable[[TextIO], object],
    reports: Sequence[Report],
    stdout: TextIO,
    *more: Callable[[], object],
) -> None:
    """Print, then write every report that is wanted and can be written, then do ``more``.

    A stop waits for all of it, since it is short; if not, a second stop breaks in.

    Raises what went wrong first: EnvironmentFault, or BrokenPipeError where the reader of ``stdout`` went away.
    """
    wanted = [(path, make) for path, make in reports if path is not None]
    people = people_stream(stdout, *(path for path, _ in wanted))
    steps: list[Callable[[], object]] = [lambda: print_for_people(people), stdout.flush]
    steps += [functools.partial(_write_made, make, path, stdout) for path, make in wanted]
    errors: list[Exception] = []
    with held(firm=False):
        for step in (*steps, *more, stdout.flush):
            try:
                with _telling_of_stdout():
                    step()
            except (BrokenPipeError, EnvironmentFault) as error:
                errors.append(error)
        if errors:
            raise errors[0]


def _write_made(make: Callable[[], str], path: Path, stdout: TextIO) -> None:
    write_report(make(), path, stdout)


def stdout_fault(error: OSError) -> EnvironmentFault:
    """What to say where stdout takes no more."""
    return EnvironmentFault(f"stdout could not be written: {error.strerror or error}")


@contextlib.contextmanager
def _telling_of_stdout() -> Iterator[None]:
    """An OSError of stdout within is an EnvironmentFault, but for a BrokenPipeError: nobody is there to be told."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise stdout_fault(error) from error


def write_report(text: str, path: Path, stdout: TextIO) -> None:
    """Put a report where its option says: on ``stdout`` (``-``) or in a file, whole."""
    if str(path) == "-":
        stdout.write(text)
    else:
        write_file(path, text)


def people_stream(stdout: TextIO, *paths: Path | None) -> TextIO:
    """Where text for people goes: ``stdout``, or stderr if one of the reports is to be on stdout (``-``)."""
    return sys.stderr if "-" in map(str, paths) else stdout


def xml_text(root: ElementTree.Element) -> str:
    """An XML document, indented."""
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def open_standard_streams() -> None:
    """Put the null device where stdin, stdout or stderr is closed, so that no file of ours takes its number.

    Raises EnvironmentFault if it was stdout: no report could be read there.
    """
    closed = [name for name in ("stdin", "stdout", "stderr") if getattr(sys, name) is None]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if name in closed:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)  # open takes the lowest number, which is often this one
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
    if "stdout" in closed:
        raise EnvironmentFault("stdout is closed; send it to /dev/null if nobody is to read it")


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """The real stdout, for the report alone: within, whatever libraries print there goes to stderr instead.

    Raises EnvironmentFault if at the end not all could be written.
    """
    stdout = sys.stdout
    try:
        stdout.flush()
        fd = stdout.fileno()
        kept = os.dup(fd)
    except (OSError, ValueError):  # not a file, as in tests: nothing below Python writes to it
        with contextlib.redirect_stdout(sys.stderr):
            yield stdout
        return
    report = open(kept, "w", encoding=stdout.encoding, errors=stdout.errors, closefd=False)  # noqa: SIM115
    try:
        os.dup2(sys.stderr.fileno(), fd)
        yield report
        with _telling_of_stdout():
            report.flush()
    finally:
        with contextlib.suppress(OSError):  # told already
            report.close()
        with contextlib.suppress(OSError):
            stdout.flush()
        os.dup2(kept, fd)
        os.close(kept)
