"""What the split asks of a kernel's syntax tree: what a call does, which names are set and used."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any


def call_kind_of(call: ast.Call, names: dict[str, Any]) -> str:
    """The ``kind`` of a primitive; "pure" for all else that ``refusals`` lets pass: methods and arithmetic."""
    kind = getattr(lookup(call.func, names), "kind", None)
    return kind if isinstance(kind, str) else "pure"


def lookup(node: ast.expr, names: dict[str, Any]) -> Any:
    """The object that a dotted name means, or None."""
    if isinstance(node, ast.Name):
        return names.get(node.id, names["__builtins__"].get(node.id))
    if isinstance(node, ast.Attribute):
        base = lookup(node.value, names)
        return None if base is None else getattr(base, node.attr, None)
    return None


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (child for child in ast.walk(node) if isinstance(child, ast.Call))


def argument_of(call: ast.Call, position: int, name: str) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[position] if position < len(call.args) else None


def targets_of(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, (ast.AugAssign, ast.AnnAssign)):
        return [node.target]
    return []


def leaves(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for element in target.elts:
            yield from leaves(element)
    else:
        yield target


def names_in(target: ast.expr) -> set[str]:
    return {node.id for node in leaves(target) if isinstance(node, ast.Name)}


def uses_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def constexprs_of(function: Callable[..., Any]) -> set[str]:
    """Parameters annotated as ``tl.constexpr`` (by whatever module stands for ``tl``)."""
    return {
        name
        for name, annotation in function.__annotations__.items()
        if "constexpr" in (annotation if isinstance(annotation, str) else getattr(annotation, "__name__", ""))
    }
