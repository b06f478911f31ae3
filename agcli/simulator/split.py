"""Give each core its part of a kernel, as the compiler does when it splits a mixed kernel.

The cube's part holds the products, the loads that feed them and the stores of their results; the vectors' part all
other loads and stores, puts and atomics; barriers, signals and scalar work are in both. Each part is the kernel's own
source without the statements whose results it never uses. Two passes over the syntax tree find them:

1. forwards, ``_Taint`` finds the names that hold a product's result at each place; a store of such a value is the
   cube's;
2. backwards, ``_Slice`` keeps the statements with an effect of this part and all that those need (liveness).

Functions that a kernel calls are split the same way, once for each set of arguments that hold products.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agcli.errors import UsageError
from agcli.simulator import context
from agcli.simulator.binding import kernel_function, resolved_globals
from agcli.simulator.refusals import refuse_unknown
from agcli.simulator.shmem import sub_vec_id
from agcli.simulator.syntax import (
    argument_of,
    call_kind_of,
    calls_in,
    constexprs_of,
    lookup,
    names_in,
    targets_of,
    uses_in,
)


@dataclass
class Source:
    """A function's syntax tree and the names it can see, as the simulator resolves them."""

    function: Callable[..., Any]
    tree: ast.FunctionDef
    names: dict[str, Any]
    calls: dict[int, Source] = field(default_factory=dict)  # id of an ast.Call -> the kernel function it calls

    @property
    def parameters(self) -> list[str]:
        """Parameter names in order."""
        return [a.arg for a in (*self.tree.args.posonlyargs, *self.tree.args.args, *self.tree.args.kwonlyargs)]


@dataclass(frozen=True)
class Effects:
    """What a function does beyond its result, given which of its parameters hold products.

    ``waits`` counts waits that the compiler keeps only while their token is used.
    """

    cube: bool
    vector: bool
    waits: bool
    returns_product: bool


class SplitKernel:
    """A kernel ready to run: ``part("cube")`` and ``part("vector")`` are plain Python functions.

    ``function`` is a kernel: a plain function or what ``triton.jit`` made of one. Raises TypeError for anything else.
    ``part("sync")`` has neither core's effects, only what all cores do: it is for vector core 1 of a kernel that never
    asks ``sub_vec_id``, since the compiler then lets only vector core 0 store (TileAndBindSubBlock.cpp).
    ``multiplies`` says whether it has products at all: without, the compiler launches no cube cores.
    ``dead_waits`` are the lines of waits that no part keeps, since their token is never used.
    """

    def __init__(self, function: Any) -> None:
        self._sources: dict[Any, Source] = {}
        self._effects: dict[tuple[int, frozenset[str]], Effects] = {}
        self._parts: dict[tuple[int, frozenset[str], str], Callable[..., Any]] = {}
        self.kept_waits: set[tuple[str, int]] = set()
        self.dropped_waits: set[tuple[str, int]] = set()
        self.source = self._source(kernel_function(function))
        self.signature = inspect.signature(self.source.function)
        self.constexprs = constexprs_of(self.source.function)
        self.name = self.source.tree.name
        for part in ("cube", "vector"):
            self.part(part)
        self.asks_sub_vec_id = any(lookup(call.func, names) is sub_vec_id for call, names in self._all_calls())
        self.multiplies = any(call_kind_of(call, names) == "dot" for call, names in self._all_calls())

    @property
    def sources(self) -> list[Source]:
        """The kernel and all kernel functions that it calls."""
        return list(self._sources.values())

    def _all_calls(self) -> Iterator[tuple[ast.Call, dict[str, Any]]]:
        return ((call, source.names) for source in self.sources for call in calls_in(source.tree))

    @property
    def dead_waits(self) -> list[tuple[str, int]]:
        """``(file, line)`` of waits that the compiler would delete everywhere."""
        return sorted(self.dropped_waits - self.kept_waits)

    def part(self, part: str) -> Callable[..., Any]:
        """The kernel's part for "cube" or "vector" cores, or "sync"."""
        return self._part(self.source, frozenset(), part)

    # -- sources -------------------------------------------------------------------------------------------------
    def _source(self, function: Callable[..., Any]) -> Source:
        if function in self._sources:
            return self._sources[function]
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        definition = tree.body[0]
        if not isinstance(definition, ast.FunctionDef):
            raise TypeError(f"{function!r} is not a kernel function")
        ast.increment_lineno(definition, first - 1)
        names = resolved_globals(function, uses_in(definition))
        refuse_unknown(definition, function.__code__.co_filename, names)
        source = Source(function, definition, names)
        self._sources[function] = source
        context.kernel_files.add(function.__code__.co_filename)
        for call in ast.walk(definition):
            if isinstance(call, ast.Call):
                target = lookup(call.func, source.names)
                if target is not None and getattr(target, "is_kernel_function", False):
                    source.calls[id(call)] = self._source(target.fn)
        return source

    # -- effects of calls ----------------------------------------------------------------------------------------
    def effects(self, source: Source, products: frozenset[str]) -> Effects:
        """The effects of a kernel function called with products in the parameters named."""
        key = (id(source), products)
        if key not in self._effects:
            self._effects[key] = Effects(True, True, False, False)  # while it is being found (no recursion in kernels)
            taint = _Taint(self, source, products)
            taint.block(source.tree.body, set(products))
            kinds = {self.call_kind(source, call, taint) for call in calls_in(source.tree)}
            cube, vector = bool(kinds & {"cube", "both"}), bool(kinds & {"vector", "both"})
            self._effects[key] = Effects(cube, vector, "wait" in kinds, taint.returns)
        return self._effects[key]

    def call_kind(self, source: Source, call: ast.Call, taint: _Taint) -> str:
        """What a call does: "pure", "cube", "vector", "both" or "wait"."""
        callee = source.calls.get(id(call))
        if callee is not None:
            effects = self.effects(callee, _products_of(call, callee, taint))
            if effects.cube and effects.vector:
                return "both"
            return "cube" if effects.cube else "vector" if effects.vector else "wait" if effects.waits else "pure"
        kind = call_kind_of(call, source.names)
        if kind == "store":
            value = argument_of(call, 1, "value")
            return "cube" if value is not None and taint.at_call.get(id(call), {}).get(id(value)) else "vector"
        return "pure" if kind in ("load", "dot") else kind

    # -- parts ---------------------------------------------------------------------------------------------------
    def _part(self, source: Source, products: frozenset[str], part: str) -> Callable[..., Any]:
        key = (id(source), products, part)
        if key not in self._parts:
            taint = _Taint(self, source, products)
            taint.block(source.tree.body, set(products))
            names = dict(source.names)
            body = _Slice(self, source, taint, part, names).function_body()
            self._parts[key] = _compiled(source, body, names)
        return self._parts[key]

    def callee_part(self, source: Source, call: ast.Call, taint: _Taint, part: str) -> Callable[..., Any]:
        """The part of a called kernel function that fits this call."""
        callee = source.calls[id(call)]
        return self._part(callee, _products_of(call, callee, taint), part)


class _Taint:
    """Forward pass: which names hold a product at each place; what each call's arguments are is noted as it goes."""

    def __init__(self, kernel: SplitKernel, source: Source, products: frozenset[str]) -> None:
        self.kernel = kernel
        self.source = source
        self.products = products
        self.returns = False
        self.at_call: dict[int, dict[int, bool]] = {}

    def block(self, statements: list[ast.stmt], held: set[str]) -> set[str]:
        """Walk statements; ``held`` before, the result after."""
        for statement in statements:
            held = self._statement(statement, held)
        return held

    def _statement(self, node: ast.stmt, held: set[str]) -> set[str]:
        if isinstance(node, (ast.For, ast.While)):
            self._expression(node.iter if isinstance(node, ast.For) else node.test, held)
            while True:  # the names held grow until a round adds none
                after = held | self.block(node.body, set(held))
                if after == held:
                    return held
                held = after
        if isinstance(node, ast.If):
            self._expression(node.test, held)
            return self.block(node.body, set(held)) | self.block(node.orelse, set(held))
        if isinstance(node, ast.Return):
            self.returns |= node.value is not None and self._expression(node.value, held)
            return held
        values = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        product = any([self._expression(value, held) for value in values])  # noqa: C419 - each call must be noted
        if isinstance(node, ast.AugAssign):
            product |= bool(names_in(node.target) & held)
        targets = set().union(*(names_in(t) for t in targets_of(node)))
        return held | targets if product else held - targets

    def _expression(self, node: ast.expr, held: set[str]) -> bool:
        """Whether the expression holds a product."""
        if isinstance(node, ast.Name):
            return isinstance(node.ctx, ast.Load) and node.id in held
        if isinstance(node, ast.Call):
            return self._call(node, held)
        parts = [self._expression(c, held) for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        return any(parts)

    def _call(self, node: ast.Call, held: set[str]) -> bool:
        arguments = [*node.args, *(k.value for k in node.keywords)]
        notes = self.at_call.setdefault(id(node), {})
        for argument in arguments:
            notes[id(argument)] = self._expression(argument, held) or notes.get(id(argument), False)
        any_product = any(notes.values())
        callee = self.source.calls.get(id(node))
        if callee is not None:
            return self.kernel.effects(callee, _products_of(node, callee, self)).returns_product
        if call_kind_of(node, self.source.names) == "dot":
            return True
        return any_product or self._expression(node.func, held)


class _Slice:
    """Backward pass: the statements of one part, and the names live before them."""

    def __init__(self, kernel: SplitKernel, source: Source, taint: _Taint, part: str, names: dict[str, Any]) -> None:
        self.kernel = kernel
        self.source = source
        self.taint = taint
        self.part = part
        self.names = names  # global names of the part; called parts are added to them

    def function_body(self) -> list[ast.stmt]:
        """The function's statements in this part."""
        body, _ = self.block(self.source.tree.body, set())
        return body

    def block(self, statements: list[ast.stmt], live: set[str]) -> tuple[list[ast.stmt], set[str]]:
        """The statements kept, given the names live after them; and the names live before them."""
        kept: list[ast.stmt] = []
        for statement in reversed(statements):
            new, live = self._statement(statement, live)
            if new is not None:
                kept.append(new)
        return kept[::-1], live

    def _statement(self, node: ast.stmt, live: set[str]) -> tuple[ast.stmt | None, set[str]]:
        if isinstance(node, ast.For):
            return self._for(node, live)
        if isinstance(node, ast.While):
            return self._while(node, live)
        if isinstance(node, ast.If):
            return self._if(node, live)
        if isinstance(node, (ast.Return, ast.Pass, ast.Assert)):
            return self._rewritten(node), live | uses_in(node)
        targets = set().union(*(names_in(t) for t in targets_of(node)))
        wanted = bool(targets & live)
        if wanted and self.part != "vector":
            self._refuse_vector_results(node)
        if not (wanted or self._has_effect(node)):
            self._note_waits(node, kept=False)
            return None, live
        self._note_waits(node, kept=True)
        uses = uses_in(node) | (targets if isinstance(node, ast.AugAssign) else set())
        return self._rewritten(node), (live - targets) | uses

    def _for(self, node: ast.For, live: set[str]) -> tuple[ast.stmt | None, set[str]]:
        after = live
        while True:
            body, before = self.block(node.body, after)
            if before <= after:
                break
            after = after | before
        if not body:
            return None, live
        new = ast.copy_location(ast.For(node.target, self._expr(node.iter), body, []), node)
        return new, (after - names_in(node.target)) | live | uses_in(node.iter)

    def _while(self, node: ast.While, live: set[str]) -> tuple[ast.stmt, set[str]]:
        after = live | uses_in(node.test)
        while True:
            body, before = self.block(node.body, after)
            if before <= after:
                break
            after = after | before
        body = body or [ast.copy_location(ast.Pass(), node)]
        return ast.copy_location(ast.While(self._expr(node.test), body, []), node), after

    def _if(self, node: ast.If, live: set[str]) -> tuple[ast.stmt | None, set[str]]:
        body, live_body = self.block(node.body, set(live))
        orelse, live_orelse = self.block(node.orelse, set(live))
        if not body and not orelse:
            return None, live
        body = body or [ast.copy_location(ast.Pass(), node)]
        new = ast.copy_location(ast.If(self._expr(node.test), body, orelse), node)
        return new, live_body | live_orelse | uses_in(node.test)

    def _has_effect(self, node: ast.stmt) -> bool:
        kinds = (self.kernel.call_kind(self.source, call, self.taint) for call in calls_in(node))
        return any(kind in (self.part, "both") for kind in kinds)

    def _refuse_vector_results(self, node: ast.stmt) -> None:
        """An atomic runs on the vector cores; running it on the cube too, for its result, would do it twice."""
        for call in calls_in(node):
            if self.kernel.call_kind(self.source, call, self.taint) == "vector":
                file = self.source.function.__code__.co_filename
                raise UsageError(
                    f"{file}:{call.lineno}: the cube cores need the result of {ast.unparse(call.func)}, which runs on "
                    "the vector cores only; pass it through memory and a barrier"
                )

    def _note_waits(self, node: ast.stmt, *, kept: bool) -> None:
        for call in calls_in(node):
            if self.kernel.call_kind(self.source, call, self.taint) == "wait":
                where = (self.source.function.__code__.co_filename, call.lineno)
                (self.kernel.kept_waits if kept else self.kernel.dropped_waits).add(where)

    def _expr(self, node: ast.expr) -> ast.expr:
        return _Rewrite(self).visit(node)  # type: ignore[no-any-return]

    def _rewritten(self, node: ast.stmt) -> ast.stmt:
        return _Rewrite(self).visit(node)  # type: ignore[no-any-return]


class _Rewrite(ast.NodeVisitor):
    """A copy in which calls of kernel functions go to the part of the callee.

    The tree itself must not change: its calls are known by identity, and a loop's body is sliced more than once.
    """

    def __init__(self, owner: _Slice) -> None:
        self.owner = owner

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """The same node with rewritten children."""
        new = copy.copy(node)
        for name, value in ast.iter_fields(node):
            if isinstance(value, ast.AST):
                setattr(new, name, self.visit(value))
            elif isinstance(value, list):
                setattr(new, name, [self.visit(v) if isinstance(v, ast.AST) else v for v in value])
        return new

    def visit_Call(self, node: ast.Call) -> ast.AST:
        source = self.owner.source
        callee = source.calls.get(id(node))
        arguments = [self.visit(a) for a in node.args]
        keywords = [ast.keyword(k.arg, self.visit(k.value)) for k in node.keywords]
        function = node.func if callee else self.visit(node.func)
        if callee is not None:
            name = f"_part_{id(node)}"
            self.owner.names[name] = self.owner.kernel.callee_part(source, node, self.owner.taint, self.owner.part)
            function = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return ast.copy_location(ast.Call(function, arguments, keywords), node)


def _products_of(call: ast.Call, callee: Source, taint: _Taint) -> frozenset[str]:
    """Parameters of the callee that this call gives products."""
    notes = taint.at_call.get(id(call), {})
    positional = zip(callee.parameters, call.args)
    named = ((k.arg or "", k.value) for k in call.keywords)
    return frozenset(name for name, value in (*positional, *named) if notes.get(id(value)))


def _compiled(source: Source, body: list[ast.stmt], names: dict[str, Any]) -> Callable[..., Any]:
    """A Python function of these statements, with the file and lines of the original."""
    tree = source.tree
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(p) for p in source.parameters], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    new = ast.FunctionDef(tree.name, arguments, body or [ast.Pass()], [], None)
    module = ast.fix_missing_locations(ast.copy_location(ast.Module([ast.copy_location(new, tree)], []), tree))
    scope = names
    exec(compile(module, source.function.__code__.co_filename, "exec"), scope)
    function: Callable[..., Any] = scope[tree.name]
    function.__defaults__ = source.function.__defaults__
    function.__kwdefaults__ = source.function.__kwdefaults__
    return function
