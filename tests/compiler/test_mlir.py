"""The reader of generic MLIR: structure, scopes, places in the text, and what it refuses."""

from __future__ import annotations

import re

import pytest

from agcli.compiler.mlir import MlirError, parse, split

NESTED = """\
#map = affine_map<(d0, d1) -> (d1)>
#loc3 = loc("file.mlir":7:9)
"builtin.module"() ({
  "func.func"() <{function_type = (i32, memref<?xf16>) -> (), sym_name = "a \\"b\\" {"}> ({
  ^bb0(%arg0: i32, %arg1: memref<?xf16>):
    %0:2 = "test.pair"(%arg0) <{unit, map = #map}> : (i32) -> (i32, index)
    "scf.if"(%0#1) ({
      %1 = "test.one"() : () -> i32
      "test.use"(%1) : (i32) -> ()
    }, {
      %1 = "test.two"() : () -> tensor<4x!tt.ptr<f16>>
      "test.use"(%1) {note = dense<[1, 2]> : tensor<2xi32>} : (tensor<4x!tt.ptr<f16>>) -> () loc(#loc3)
    }) : (index) -> ()
  }) {hacc.entry} : () -> ()
}) {a = 1 : i32, b} : () -> () loc("x.py":3:1)
"""


def ops(name: str, text: str = NESTED) -> list:
    return [op for op in parse(text).walk() if op.name == name]


def test_an_op_has_its_results_operands_and_types() -> None:
    (pair,) = ops("test.pair")
    assert [(value.name, value.type) for value in pair.results] == [("%0#0", "i32"), ("%0#1", "index")]
    assert pair.operands[0].value.type == "i32"
    assert pair.operands[0].value.maker is None


def test_a_name_in_two_sibling_regions_is_two_values() -> None:
    first, second = ops("test.use")
    assert first.operands[0].value.maker.name == "test.one"
    assert second.operands[0].value.maker.name == "test.two"
    assert second.operands[0].value.type == "tensor<4x!tt.ptr<f16>>"


def test_properties_attributes_and_their_places() -> None:
    module = parse(NESTED)
    assert module.attributes == {"a": "1 : i32", "b": ""}
    (pair,) = ops("test.pair")
    assert pair.properties == {"unit": "", "map": "#map"}
    (function,) = ops("func.func")
    start, end = function.spans["function_type"]
    assert NESTED[start:end] == "(i32, memref<?xf16>) -> ()"
    start, end = function.spans["<attributes>"]
    assert NESTED[start:end] == "{hacc.entry}"
    start, end = function.regions[0][0].args_span
    assert NESTED[start:end] == "%arg0: i32, %arg1: memref<?xf16>"


def test_quotes_and_braces_in_strings_are_text() -> None:
    (function,) = ops("func.func")
    assert function.attribute("sym_name") == '"a \\"b\\" {"'


def test_lines_are_those_of_the_text_and_locations_those_of_its_source() -> None:
    assert [op.line for op in ops("test.use")] == [9, 12]
    assert [op.source_line() for op in ops("test.use")] == [0, 7]
    assert parse(NESTED).source_line() == 3


def test_parents_go_from_the_nearest() -> None:
    assert [op.name for op in ops("test.one")[0].parents()] == ["scf.if", "func.func", "builtin.module"]


def test_blocks_with_branches() -> None:
    text = """"m"() ({
    "cf.br"()[^bb1] : () -> ()
  ^bb1:
    "cf.cond_br"()[^bb1, ^bb2] : () -> ()
  ^bb2:
    "r"() : () -> ()
}) : () -> ()"""
    blocks = parse(text).regions[0]
    assert [block.label for block in blocks] == ["", "^bb1", "^bb2"]
    assert blocks[1].ops[0].successors == ["^bb1", "^bb2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('"m"() ({\n  "a"(%x) : (i32) -> ()\n}) : () -> ()', "line 2: %x is used before it is made"),
        ('"m"() ({\n  %0 = arith.addi %a, %b : i32\n}) : () -> ()', "line 2: expected a string, found 'arith.addi'"),
        ('"m"() ({\n  %0 = "a"() : () -> ()\n}) : () -> ()', "line 2: a has 1 results of 0 types"),
        ('"m"() {a = [1} : () -> ()', "line 1: expected matching brackets"),
        ('"m"() {a = 1', "line 1: expected a closing bracket, found 'the end'"),
        ('"m"() : () -> ()\n"n"() : () -> ()', "line 2: expected the end of the module"),
        ("", "line 1: expected a string, found 'the end'"),
    ],
)  # fmt: skip
def test_what_is_not_generic_mlir_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(MlirError, match="^" + re.escape(message)):
        parse(text)


def test_split_keeps_what_is_in_brackets_together() -> None:
    assert split("a, b<1, 2>, (c, [d, e]) -> f,g") == ["a", "b<1, 2>", "(c, [d, e]) -> f", "g"]
    assert split("") == []
