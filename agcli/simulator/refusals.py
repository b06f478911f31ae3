"""Refuse what the simulator would not run as it is written: before anything runs, with its line and what it is.

The split leaves out statements whose results nobody uses, as the compiler does. What means nothing here must not get
that far: it would be left out in silence, where Triton's compiler refuses it. Triton does not read a branch whose
condition is known to be false when it compiles: what is refused there is refused if a launch comes to it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from agcli.errors import UsageError
from agcli.simulator.syntax import leaves, names_in, targets_of, uses_in

_EXPRESSIONS = (
    ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp,
    ast.Subscript, ast.Slice, ast.Tuple, ast.List, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip
_SPELLINGS: dict[type[ast.AST], str] = {
    ast.NamedExpr: "':='", ast.FunctionDef: "a function in a function", ast.ClassDef: "a class", ast.Delete: "'del'",
    ast.ImportFrom: "'import'", ast.YieldFrom: "'yield'", ast.Starred: "'*'", ast.Dict: "a dictionary",
    ast.Set: "a set", ast.ListComp: "a comprehension", ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension", ast.GeneratorExp: "a comprehension",
}  # fmt: skip
# What kernels may ask of values that are known at run time only: of scalars, blocks, pointers and their types.
_METHODS = frozenset(("to", "is_floating", "is_fp16", "is_bf16", "is_fp32", "is_ptr"))
_ATTRIBUTES = _METHODS | {
    "T",
    "dtype",
    "element_ty",
    "itemsize",
    "name",
    "primitive_bitwidth",
    "shape",
    "type",
    "value",
}
_FOLDED: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
REFUSAL = "__refused__"  # the function that a refused branch calls
_RUN_TIME = object()  # a value that is not known before the kernel runs


def refuse_unknown(definition: ast.FunctionDef, file: str, names: Mapping[str, Any]) -> None:
    """Raise UsageError for the first thing in a kernel function that the simulator does not understand.

    That is syntax beyond Triton's, a name without a value, an unknown attribute or function, arguments that do not fit
    a function, and arithmetic on constants that fails. ``names`` are the global names, as the simulator resolves them.
    """
    arguments = definition.args
    if arguments.kwonlyargs:
        raise UsageError(f"{file}:{definition.lineno}: {definition.name} has keyword-only parameters; drop the '*'")
    if arguments.vararg or arguments.kwarg:
        raise UsageError(f"{file}:{definition.lineno}: {definition.name} takes any number of arguments; name them all")
    _Reader(definition, file, names).block(definition.body)


class _Reader:
    """Walks a function in the order of its lines; ``bound`` are the names that may have a value so far."""

    def __init__(self, definition: ast.FunctionDef, file: str, names: Mapping[str, Any]) -> None:
        self.function = definition.name
        self.file = file
        self.names = names
        self.bound = {a.arg for a in (*definition.args.posonlyargs, *definition.args.args)}
        self.local = self.bound | _stored_in(*definition.body)
        parameters = (*definition.args.posonlyargs, *definition.args.args)
        constexprs = {a.arg for a in parameters if a.annotation and "constexpr" in ast.unparse(a.annotation)}
        self.run_time = self.local - (constexprs - _stored_in(*definition.body))

    def block(self, statements: list[ast.stmt]) -> None:
        """Read statements one after the other."""
        for statement in statements:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.For, ast.While)):
            self._loop(node)
        elif isinstance(node, ast.If):
            self._expression(node.test)
            chosen_before = not uses_in(node.test) & self.run_time
            for branch in (node.body, node.orelse):
                if chosen_before:
                    self._perhaps_untaken(branch)
                else:
                    self.block(branch)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)):
            if node.value is not None:
                self._expression(node.value)
            if isinstance(node, ast.AugAssign):
                self._name_of_target(node.target)
                self._meaning(node.target)
            if node.value is not None:
                self._bind(targets_of(node))
        elif isinstance(node, (ast.Return, ast.Expr, ast.Assert)):
            self._children(node)
        elif not isinstance(node, ast.Pass):
            self._refuse_syntax(node)

    def _perhaps_untaken(self, branch: list[ast.stmt]) -> None:
        """Read a branch that constants alone decide on; what is refused in it becomes its only statement."""
        try:
            self.block(branch)
        except UsageError as error:
            self.bound |= _stored_in(*branch)
            call = ast.Call(ast.Name(REFUSAL, ast.Load()), [ast.Constant(str(error))], [])
            branch[:] = [ast.fix_missing_locations(ast.copy_location(ast.Expr(call), branch[0]))]

    def _loop(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            self._refuse(node, "'else' of a loop is not supported in a kernel")
        if isinstance(node, ast.For):
            self._expression(node.iter)
            self._bind([node.target])
        self.bound |= _stored_in(node)  # a later turn sees what an earlier one has set
        if isinstance(node, ast.While):
            self._expression(node.test)
        self.block(node.body)

    def _bind(self, targets: list[ast.expr]) -> None:
        for target in targets:
            for leaf in leaves(target):
                self._name_of_target(leaf)
            self.bound |= names_in(target)

    def _name_of_target(self, target: ast.expr) -> None:
        if not isinstance(target, ast.Name):
            self._refuse(target, f"an assignment to '{ast.unparse(target)}' is not supported in a kernel")

    # -- expressions -----------------------------------------------------------------------------------------------
    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, _EXPRESSIONS):
            self._refuse_syntax(node)
        if isinstance(node, (ast.Name, ast.Attribute)):
            if isinstance(self._meaning(node), (SimpleNamespace, ModuleType)):
                self._refuse_name(node)
        elif isinstance(node, ast.Call):
            self._call(node)
        else:
            self._children(node)
            if isinstance(node, ast.BinOp):
                self._constant(node)

    def _children(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._expression(child)

    def _meaning(self, node: ast.expr) -> Any:
        """The object that a dotted name means, ``_RUN_TIME`` for a value of the run."""
        if isinstance(node, ast.Name):
            if node.id in self.local:
                if node.id not in self.bound:
                    self._refuse(node, f"{node.id} is used before it is given a value")
                return _RUN_TIME
            for table in (self.names, self.names["__builtins__"]):
                if node.id in table:
                    return table[node.id]
            python = hasattr(builtins, node.id)
            self._refuse(node, f"{node.id} of Python cannot be used" if python else f"{node.id} is not defined")
        if not isinstance(node, ast.Attribute):
            self._expression(node)
            return _RUN_TIME
        base = self._meaning(node.value)
        if base is _RUN_TIME:
            return _RUN_TIME if node.attr in _ATTRIBUTES else self._refuse_name(node)
        return getattr(base, node.attr) if hasattr(base, node.attr) else self._refuse_name(node)

    def _call(self, node: ast.Call) -> None:
        of_module = isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr")
        for argument in (*node.args[of_module:], *(keyword.value for keyword in node.keywords)):
            self._expression(argument)
        for argument in node.args[:of_module]:  # which may be a module
            self._meaning(argument)
        if any(keyword.arg is None for keyword in node.keywords):
            self._refuse(node, "'**' is not supported in a kernel")
        if not isinstance(node.func, (ast.Name, ast.Attribute)):
            self._refuse(node, f"a call of '{ast.unparse(node.func)}', which is no name, is not supported in a kernel")
        target = self._meaning(node.func)
        if target is _RUN_TIME:
            if not (isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS):
                self._refuse(node, f"'{ast.unparse(node.func)}' is called, but is known at run time only")
        elif isinstance(target, (SimpleNamespace, ModuleType)):
            self._refuse_name(node.func)  # a stand-in has any name that is imported from it: as a module
        elif getattr(target, "is_kernel_function", False):
            self._refuse_misfit(node, target.fn)
        elif _is_primitive(target):
            self._refuse_misfit(node, target)
        elif not any(target is known for known in self.names["__builtins__"].values()):
            self._refuse(node, f"{ast.unparse(node.func)} is neither a primitive nor a @triton.jit function")

    def _constant(self, node: ast.expr) -> Any:
        """What literals and numbers of the file come to; ``_RUN_TIME`` for all else. A failure is refused."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, (ast.Name, ast.Attribute)):
            value = self._meaning(node)
            return value if isinstance(value, (int, float)) else _RUN_TIME
        if not isinstance(node, ast.BinOp) or type(node.op) not in _FOLDED:
            return _RUN_TIME
        left, right = self._constant(node.left), self._constant(node.right)
        unknown = left is _RUN_TIME
        if right is _RUN_TIME or (unknown and not isinstance(node.op, (ast.FloorDiv, ast.Mod))):
            return _RUN_TIME
        try:
            value = _FOLDED[type(node.op)](1 if unknown else left, right)  # whatever it is, // 0 and % 0 fail
        except Exception as error:
            self._refuse(node, f"{ast.unparse(node)} raises {type(error).__name__}: {error}")
        return _RUN_TIME if unknown else value

    # -- refusals --------------------------------------------------------------------------------------------------
    def _refuse_misfit(self, node: ast.Call, function: Callable[..., Any]) -> None:
        """Raise UsageError if a function does not take the number or the names of these arguments."""
        named = {keyword.arg or "": None for keyword in node.keywords}
        try:
            inspect.signature(function).bind(*node.args, **named)
        except TypeError as error:
            self._refuse(node, f"{ast.unparse(node.func)}: {error}")

    def _refuse_syntax(self, node: ast.stmt | ast.expr) -> NoReturn:
        what = _SPELLINGS.get(type(node), f"'{type(node).__name__.lower()}'")
        self._refuse(node, f"{what} is not supported in a kernel")

    def _refuse_name(self, node: ast.expr) -> NoReturn:
        name = ast.unparse(node)
        self._refuse(node, f"the simulator does not know {name}, so it cannot run this; take it out")

    def _refuse(self, node: ast.stmt | ast.expr, what: str) -> NoReturn:
        raise UsageError(f"{self.file}:{node.lineno}: {what} ({self.function})")


def _is_primitive(target: Any) -> bool:
    module = getattr(target, "__module__", "") or ""
    return isinstance(getattr(target, "kind", None), str) or module.startswith("agcli.simulator")


def _stored_in(*nodes: ast.AST) -> set[str]:
    return {n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
