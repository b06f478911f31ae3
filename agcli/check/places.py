"""Where a running task is in its kernel: the source line, and the values of the loops around it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from agcli.simulator.context import Site
from agcli.simulator.split import SplitKernel

Loops = tuple[tuple[str, int], ...]
NOWHERE = Site("", 0, "")


class Places:
    """Looks up the place of the running task in the sources of a kernel."""

    def __init__(self, kernel: SplitKernel) -> None:
        self.vector_barrier = 0  # a line with a barrier_all_vec, if there is one
        self._loops: dict[str, list[tuple[int, int, str]]] = {}
        for source in kernel.sources:
            name = source.function.__code__.co_filename
            self._loops.setdefault(name, []).extend(_loops_of(source.tree))
            self.vector_barrier = self.vector_barrier or _line_of(source.tree, "barrier_all_vec")
        self._names: dict[tuple[str, int], tuple[str, ...]] = {}

    def here(self) -> tuple[Site | None, Loops]:
        """The innermost kernel line on the stack, and the loop variables around it, outermost first."""
        return self._of(_stack(sys._getframe(1)))

    def of_error(self, error: BaseException) -> tuple[Site | None, Loops]:
        """The same for the place where an error was raised."""
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append((traceback.tb_frame, traceback.tb_lineno))
            traceback = traceback.tb_next
        return self._of(reversed(frames))

    def _of(self, frames: Iterable[tuple[Any, int]]) -> tuple[Site | None, Loops]:
        site = None
        loops: list[tuple[str, int]] = []
        for frame, line in frames:
            code = frame.f_code
            if code.co_filename in self._loops:
                if site is None:
                    site = Site(code.co_filename, line, code.co_name)
                names = self._loops_at(code.co_filename, line)
                if names:
                    local = frame.f_locals
                    loops[:0] = [(name, int(local[name])) for name in names if name in local]
        return site, tuple(loops)

    def _loops_at(self, file: str, line: int) -> tuple[str, ...]:
        key = (file, line)
        if key not in self._names:
            self._names[key] = tuple(name for first, last, name in self._loops[file] if first < line <= last)
        return self._names[key]


def _line_of(tree: ast.AST, primitive: str) -> int:
    """The first line that calls a primitive, whatever module it comes from; 0 if none does."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return min((call.lineno for call in calls if ast.unparse(call.func).split(".")[-1] == primitive), default=0)


def _stack(frame: Any) -> Iterator[tuple[Any, int]]:
    while frame is not None:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _loops_of(tree: ast.AST) -> Iterable[tuple[int, int, str]]:
    """First and last line and variable of each loop, outer before inner."""
    loops = [
        (node.lineno, node.end_lineno or node.lineno, node.target.id)
        for node in ast.walk(tree)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name)
    ]
    return sorted(loops)
