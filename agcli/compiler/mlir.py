"""A reader of MLIR text in its generic form (``--mlir-print-op-generic``), which is the same for every dialect.

Grammar: MLIR language reference, "Operations" and "Top level Productions". An op is
``%r:2 = "dialect.name"(%a, %b)[^succ] <{properties}> ({regions}) {attributes} : (types) -> types loc(...)``.
Everything keeps its place in the text, so that a rewriter edits the text where it understood it and nowhere else.
The module imports nothing of the package's other parts: it also runs in the toolchain's environment.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*)
      | (?P<string>"(?:[^"\\]|\\.)*")
      | (?P<ssa>%[\w$.-]+(?:\#\d+)?)
      | (?P<caret>\^\w+)
      | (?P<word>[\#!@]?[A-Za-z_][\w$.]*)
      | (?P<number>-?\d[\w.+-]*)
      | (?P<arrow>->)
      | (?P<punct>.)""",
    re.VERBOSE | re.DOTALL,
)
_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}


class MlirError(Exception):
    """Text that is not MLIR in generic form, or not what a rewriter knows."""


@dataclass(frozen=True)
class Token:
    """A word of the text and where it stands."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(eq=False)
class Value:
    """What an op makes, or a block's argument (``maker`` is None). Sibling regions may use one name for two values."""

    name: str
    type: str = ""
    maker: Op | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Use:
    """A value where an op uses it."""

    value: Value
    start: int
    end: int


@dataclass
class Block:
    """A label (empty for an unnamed entry block), arguments, the stretch of text that holds them, and ops."""

    label: str = ""
    args: list[Value] = field(default_factory=list)
    args_span: tuple[int, int] = (-1, -1)
    ops: list[Op] = field(default_factory=list)


@dataclass(eq=False)
class Op:
    """One operation. ``properties`` and ``attributes`` map names to text (empty for unit attributes).

    ``location`` is the text of ``loc``, with aliases resolved. ``spans`` has the places of the values of properties and
    attributes by name, and of ``<attributes>``, the dictionary with its braces (an empty stretch where none stands).
    """

    name: str
    line: int
    start: int
    end: int = -1
    results: list[Value] = field(default_factory=list)
    operands: list[Use] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    regions: list[list[Block]] = field(default_factory=list)
    attributes: dict[str, str] = field(default_factory=dict)
    location: str = ""
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    parent: Op | None = field(default=None, repr=False)

    def attribute(self, name: str) -> str | None:
        """A property or attribute as text."""
        return self.properties.get(name, self.attributes.get(name))

    def walk(self) -> Iterator[Op]:
        """This op and all ops inside it, in order."""
        yield self
        for region in self.regions:
            for block in region:
                for op in block.ops:
                    yield from op.walk()

    def parents(self) -> Iterator[Op]:
        """The ops around this one, from the nearest."""
        op = self.parent
        while op is not None:
            yield op
            op = op.parent

    def source_line(self) -> int:
        """The line of the file that ``--mlir-print-debuginfo`` says this op was read from; 0 if it says none."""
        numbers = self.location.rpartition('"')[2].strip(")").split(":")
        return int(numbers[1]) if len(numbers) == 3 else 0


def parse(text: str) -> Op:
    """The module that ``text`` holds. Raises MlirError with the line where it stops being generic MLIR."""
    return _Parser(text).module()


def split(text: str, separator: str = ",") -> list[str]:
    """``text`` cut at each separator that is not inside brackets or quotes."""
    return [text[start:end] for start, end in _pieces(text, separator)]


def _pieces(text: str, separator: str) -> list[tuple[int, int]]:
    """The stretches between separators, without the space around them."""
    pieces: list[tuple[int, int]] = []
    depth, first, last = 0, -1, -1
    for token in _tokens(text):
        if token.text == separator and depth == 0:
            pieces.append((first, last))
            first = -1
            continue
        depth += (token.text in _CLOSING) - (token.text in _CLOSING.values())
        first, last = token.start if first < 0 else first, token.end
    return [*pieces, (first, last)] if first >= 0 else pieces


def _tokens(text: str) -> Iterator[Token]:
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match.group(), match.start(), match.end())


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [*_tokens(text), Token("end", "", len(text), len(text))]
        self.at = 0
        self.newlines = [match.start() for match in re.finditer("\n", text)]
        self.scopes: list[dict[str, Value]] = [{}]
        self.aliases: dict[str, str] = {}

    def module(self) -> Op:
        while self.peek().kind == "word" and self.tokens[self.at + 1].text == "=":
            self.skip_alias()
        module = self.op()
        while self.peek().kind == "word" and self.tokens[self.at + 1].text == "=":
            self.skip_alias()
        if self.peek().kind != "end":
            raise self.error("the end of the module")
        for op in module.walk():
            op.location = self.aliases.get(op.location, op.location)
        return module

    def skip_alias(self) -> None:
        """``#map = affine_map<...>``: an alias ends with its line."""
        name = self.next()
        newline = self.text.find("\n", name.start)
        end = len(self.text) if newline < 0 else newline
        self.aliases[name.text] = self.text[self.next().end : end].strip()
        while self.peek().kind != "end" and self.peek().start < end:
            self.next()

    def op(self) -> Op:
        start = self.peek().start
        results = self.results()
        op = Op(self.expect_kind("string").text[1:-1], self.line_of(start), start)
        op.operands = self.operands()
        if self.peek().text == "[":
            op.successors = split(self.balanced())
        if self.peek().text == "<" and self.tokens[self.at + 1].text == "{":
            self.next()
            op.properties = self.dictionary(op)
            self.expect(">")
        if self.peek().text == "(":
            op.regions = self.regions(op)
        here = self.tokens[self.at - 1].end
        op.spans["<attributes>"] = (here, here)
        if self.peek().text == "{":
            begin = self.peek().start
            op.attributes = self.dictionary(op)
            op.spans["<attributes>"] = (begin, self.tokens[self.at - 1].end)
        self.expect(":")
        self.type_list()
        self.expect("->")
        types = self.type_list() if self.peek().text == "(" else [self.type()]
        if self.peek().text == "loc":
            self.next()
            op.location = self.balanced()
        op.end = self.tokens[self.at - 1].end
        if len(types) != len(results):
            raise MlirError(f"line {op.line}: {op.name} has {len(results)} results of {len(types)} types")
        op.results = [Value(name, kind, op) for name, kind in zip(results, types)]
        self.scopes[-1].update((value.name, value) for value in op.results)
        return op

    def results(self) -> list[str]:
        names: list[str] = []
        while self.peek().kind == "ssa":
            name = self.next().text
            if self.peek().text == ":":
                self.next()
                names += [f"{name}#{i}" for i in range(int(self.next().text))]
            else:
                names.append(name)
            self.expect("," if self.peek().text == "," else "=")
        return names

    def operands(self) -> list[Use]:
        self.expect("(")
        uses: list[Use] = []
        while self.peek().text != ")":
            token = self.expect_kind("ssa")
            value = next((scope[token.text] for scope in reversed(self.scopes) if token.text in scope), None)
            if value is None:
                raise MlirError(f"line {self.line_of(token.start)}: {token.text} is used before it is made")
            uses.append(Use(value, token.start, token.end))
            if self.peek().text == ",":
                self.next()
        self.expect(")")
        return uses

    def dictionary(self, op: Op) -> dict[str, str]:
        begin = self.peek().end
        inside = self.balanced()
        entries: dict[str, str] = {}
        for start, end in _pieces(inside, ","):
            name, _, value = inside[start:end].partition("=")
            key, value = name.strip().strip('"'), value.strip()
            entries[key] = value
            op.spans[key] = (begin + end - len(value), begin + end)
        return entries

    def regions(self, op: Op) -> list[list[Block]]:
        self.expect("(")
        regions: list[list[Block]] = []
        while self.peek().text != ")":
            self.expect("{")
            self.scopes.append({})
            blocks: list[Block] = [Block()]
            while self.peek().text != "}":
                if self.peek().kind == "caret":
                    block = self.block_header()
                    blocks = [block] if len(blocks) == 1 and not blocks[0].ops else [*blocks, block]
                else:
                    child = self.op()
                    child.parent = op
                    blocks[-1].ops.append(child)
            self.expect("}")
            self.scopes.pop()
            regions.append(blocks)
            if self.peek().text == ",":
                self.next()
        self.expect(")")
        return regions

    def block_header(self) -> Block:
        block = Block(self.next().text)
        if self.peek().text == "(":
            begin = self.next().end
            while self.peek().text != ")":
                name = self.expect_kind("ssa").text
                self.expect(":")
                block.args.append(Value(name, self.type()))
                if self.peek().text == "loc":
                    self.next()
                    self.balanced()
                if self.peek().text == ",":
                    self.next()
            block.args_span = (begin, self.expect(")").start)
        self.expect(":")
        self.scopes[-1].update((value.name, value) for value in block.args)
        return block

    def type_list(self) -> list[str]:
        self.expect("(")
        types: list[str] = []
        while self.peek().text != ")":
            types.append(self.type())
            if self.peek().text == ",":
                self.next()
        self.expect(")")
        return types

    def type(self) -> str:
        start = self.peek().start
        self.expect_kind("word")
        if self.peek().text == "<":
            self.balanced()
        return self.text[start : self.tokens[self.at - 1].end]

    def balanced(self) -> str:
        """Step over a bracket and its partner; the text between them."""
        opening = self.next()
        stack = [_CLOSING[opening.text]]
        while stack:
            token = self.next()
            if token.text in _CLOSING:
                stack.append(_CLOSING[token.text])
            elif token.text in _CLOSING.values():
                if token.text != stack.pop():
                    self.at -= 1
                    raise self.error("matching brackets")
            elif token.kind == "end":
                raise self.error("a closing bracket")
        return self.text[opening.end : self.tokens[self.at - 1].start]

    def peek(self) -> Token:
        return self.tokens[self.at]

    def next(self) -> Token:
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def expect(self, text: str) -> Token:
        if self.peek().text != text:
            raise self.error(f"'{text}'")
        return self.next()

    def expect_kind(self, kind: str) -> Token:
        if self.peek().kind != kind:
            raise self.error(f"a {kind}")
        return self.next()

    def line_of(self, position: int) -> int:
        return bisect.bisect_left(self.newlines, position) + 1

    def error(self, wanted: str) -> MlirError:
        token = self.peek()
        return MlirError(f"line {self.line_of(token.start)}: expected {wanted}, found '{token.text or 'the end'}'")
