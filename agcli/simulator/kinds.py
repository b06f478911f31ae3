"""What a primitive does to the outside, by which ``split`` gives it to the cube, to the vector cores, or to both.

"dot", "load", "store" (cube or vector by the value stored), "vector" (an effect of the vector cores), "both" (an effect
of every core), "wait" (an effect only while its token is used).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def kind(name: str) -> Callable[[F], F]:
    """Mark a primitive with what it does to the outside (see the module's docstring)."""

    def mark(function: F) -> F:
        function.kind = name  # type: ignore[attr-defined]
        return function

    return mark
