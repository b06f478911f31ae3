"""What the split asks of a kernel's syntax tree: what a call does, which names are set and used, what is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from agcli.errors import UsageError

UNKNOWN = "both"  # what a call does when nothing is known of it: it stays in every part
_UNKNOWN_SYNTAX: dict[type[ast.AST], str] = {
    ast.Break: "'break'",
    ast.Continue: "'continue'",
    ast.With: "'with'",
    ast.Try: "'try'",
    ast.Lambda: "'lambda'",
    ast.NamedExpr: "':='",
    ast.FunctionDef: "a function in a function",
}


def refuse_unknown_syntax(definition: ast.FunctionDef, file: str) -> None:
    """Raise UsageError for syntax that the split does not follow and would get wrong in silence.

    Triton's compiler knows few of these either: it has no ``break``, for one.
    """
    if definition.args.kwonlyargs:
        raise UsageError(f"{file}:{definition.lineno}: {definition.name} has keyword-only parameters; drop the '*'")
    for node in ast.walk(definition):
        what = _UNKNOWN_SYNTAX.get(type(node))
        if what is None and isinstance(node, (ast.For, ast.While)) and node.orelse:
            what = "'else' of a loop"
        if what is not None and node is not definition:
            line = getattr(node, "lineno", definition.lineno)
            raise UsageError(f"{file}:{line}: {what} is not supported in a kernel ({definition.name})")


def call_kind_of(call: ast.Call, names: dict[str, Any]) -> str:
    """The ``kind`` of a primitive; "pure" for methods and arithmetic, "both" for what is not known."""
    target = lookup(call.func, names)
    if target is None:
        return UNKNOWN if _is_missing(call.func, names) or _is_global(call.func, names) else "pure"
    kind = getattr(target, "kind", None)
    if isinstance(kind, str):
        return kind
    return "pure" if _is_pure(target) else UNKNOWN


def _is_pure(target: Any) -> bool:
    module = getattr(target, "__module__", "") or ""
    return module.startswith("agcli.simulator") or module == "builtins" or isinstance(target, type)


def _is_missing(node: ast.expr, names: dict[str, Any]) -> bool:
    """Whether this asks one of the simulator's namespaces for a name that it does not have."""
    return isinstance(node, ast.Attribute) and isinstance(lookup(node.value, names), SimpleNamespace)


def _is_global(node: ast.expr, names: dict[str, Any]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def lookup(node: ast.expr, names: dict[str, Any]) -> Any:
    """The object that a dotted name means, or None."""
    if isinstance(node, ast.Name):
        builtins = names.get("__builtins__", {})
        table = builtins if isinstance(builtins, dict) else vars(builtins)
        return names.get(node.id, table.get(node.id))
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
