"""Primitives between the stages: what each becomes, and what is refused."""

from __future__ import annotations

import re

import pytest

from agcli.compiler.lowering import lower, resolve_symm_at
from agcli.compiler.mlir import MlirError, parse

PTR = "!tt.ptr<f16>"


def ttir(body: str) -> str:
    return f""""builtin.module"() ({{
  "tt.func"() <{{arg_attrs = [{{}}, {{}}], function_type = ({PTR}, i32) -> (), sym_name = "k"}}> ({{
  ^bb0(%arg0: {PTR}, %arg1: i32):
{body}
    "tt.return"() : () -> ()
  }}) : () -> ()
}}) : () -> ()
"""


def extern(symbol: str, operands: str = "", types: str = "", result: str = "i32") -> str:
    properties = f'<{{libname = "", libpath = "", pure = false, symbol = "{symbol}"}}>'
    return f'"tt.extern_elementwise"({operands}) {properties} : ({types}) -> {result}'


def linalg(body: str, extra: str = "") -> str:
    """A function as the adapter makes it; ``extra`` is the type of an argument for a symm_at."""
    types = ["memref<?xi8>", "memref<?xi8>", "memref<?xf16>", "i32", *([extra] if extra else []), "i32"]
    args = ", ".join(f"%arg{i}: {kind}" for i, kind in enumerate(types))
    empty = ", ".join(["{}"] * len(types))
    return f""""builtin.module"() ({{
  "func.func"() <{{arg_attrs = [{empty}], function_type = ({", ".join(types)}) -> (), sym_name = "k"}}> ({{
  ^bb0({args}):
{body}
    "func.return"() : () -> ()
  }}) {{SyncBlockLockArgIdx = 0 : i64, WorkspaceArgIdx = 1 : i64, mix_mode = "mix"}} : () -> ()
}}) : () -> ()
"""


ADDRESS = """\
    %c = "arith.constant"() <{value = 5 : index}> : () -> index
    %m = "memref.reinterpret_cast"(%arg2, %c) : (memref<?xf16>, index) -> memref<1xf16, strided<[1], offset: ?>>
    %i = "memref.extract_aligned_pointer_as_index"(%m) : (memref<1xf16, strided<[1], offset: ?>>) -> index
    %a = "arith.index_cast"(%i) : (index) -> i64
    %j = "memref.extract_aligned_pointer_as_index"(%arg2) : (memref<?xf16>) -> index
    %b = "arith.index_cast"(%j) : (index) -> i64
"""


def test_the_module_gets_its_target_and_the_function_loses_the_mix_mode() -> None:
    text = lower(linalg(""), "Ascend910B3")
    assert '{hacc.target = #hacc.target<"Ascend910B3">, hivm.disable_auto_tile_and_bind_subblock}' in text
    (function,) = [op for op in parse(text).walk() if op.name == "func.func"]
    assert set(function.attributes) == {"SyncBlockLockArgIdx", "WorkspaceArgIdx"}


def test_sub_vec_id_becomes_the_sub_block_index() -> None:
    text = lower(linalg("    %0 = " + extern("ag_sub_vec_id", result="i64")), "Ascend910B3")
    assert "%0 = hivm.hir.get_sub_block_idx -> i64" in text


def test_the_barrier_is_for_both_core_types() -> None:
    text = lower(linalg("    %0 = " + extern("ag_barrier_all")), "Ascend910B3")
    assert "\n    hivm.hir.custom {hivm.is_distributed, hivm.pipe = #hivm.pipe<PIPE_S>, " in text
    assert "CUBE_AND_VECTOR" in text
    assert 'symbol = "aclshmem_barrier_all"} "dist.aclshmem_barrier_all"\n' in text


def test_the_barrier_of_a_chip_that_cannot_have_it_is_stood_in_for() -> None:
    text = lower(linalg("    %0 = " + extern("ag_barrier_all")), "Ascend950PR_9579", stand_in=True)
    assert "hivm.hir.pipe_barrier[<PIPE_ALL>]" in text
    assert "aclshmem" not in text


def test_putmem_takes_memrefs_and_is_for_vector_cores() -> None:
    call = "    %0 = " + extern("ag_putmem", "%a, %b, %arg3, %arg4", "i64, i64, i32, i32")
    text = lower(linalg(ADDRESS + call), "Ascend910B3")
    assert "#hivm.tcore_type<VECTOR>" in text
    assert (
        '"dist.aclshmem_half_putmem" ins(%m, %arg2, %arg3, %arg4 : '
        "memref<1xf16, strided<[1], offset: ?>>, memref<?xf16>, i32, i32)"
    ) in text


def test_putmem_of_bf16() -> None:
    call = "    %0 = " + extern("ag_putmem", "%a, %b, %arg3, %arg4", "i64, i64, i32, i32")
    assert "aclshmem_bfloat16_putmem" in lower(linalg(ADDRESS + call).replace("f16", "bf16"), "Ascend910B3")


SYMM = extern("ag_symm_at", "%arg0, %arg1", f"{PTR}, i32", PTR)


def test_symm_at_becomes_an_argument_of_its_own_beside_a_marker() -> None:
    text = resolve_symm_at(ttir(f"    %0 = {SYMM}"))
    function = next(op for op in parse(text).walk() if op.name == "tt.func")
    assert function.attribute("function_type") == f"({PTR}, i32, {PTR}) -> ()"
    assert function.attribute("arg_attrs") == "[{}, {}, {}]"
    assert [arg.name for arg in function.regions[0][0].args] == ["%arg0", "%arg1", "%symm2"]
    assert '"tt.extern_elementwise"(%arg1)' in text
    assert '"ag_symm_at/0/2"' in text
    addptr = next(op for op in parse(text).walk() if op.name == "tt.addptr")
    assert (addptr.results[0].name, addptr.operands[0].value.name) == ("%0", "%symm2")


def test_symm_at_of_an_offset_pointer_keeps_the_offset() -> None:
    body = f"""    %p = "tt.addptr"(%arg0, %arg1) : ({PTR}, i32) -> {PTR}
    %0 = {SYMM.replace("%arg0", "%p")}"""
    adds = [op for op in parse(resolve_symm_at(ttir(body))).walk() if op.name == "tt.addptr"]
    assert [use.value.name for op in adds[1:] for use in op.operands[:1]] == ["%symm2", "%symm2_1"]
    assert adds[-1].operands[1].value.name == "%arg1"


def test_symm_at_of_a_pointer_that_was_loaded_is_refused() -> None:
    body = f"""    %p = "tt.int_to_ptr"(%arg1) : (i32) -> {PTR}
    %0 = {SYMM.replace("%arg0", "%p")}"""
    with pytest.raises(MlirError, match="takes a pointer argument of the kernel"):
        resolve_symm_at(ttir(body))


def test_triton_ir_without_symm_at_is_left_alone() -> None:
    assert resolve_symm_at(ttir("")) == ttir("")


MARKER = "    %0 = " + extern("ag_symm_at/0/2", "%arg3", "i32")
CAST = '    %1 = "memref.reinterpret_cast"(%arg4) : (memref<?xf16>) -> memref<4xf16>'


def test_the_marker_becomes_the_peer_address_and_the_extra_argument_goes() -> None:
    text = lower(linalg(f"{MARKER}\n{CAST}", "memref<?xf16>"), "Ascend910B3")
    assert re.search(r"%symm4 = hivm.hir.custom .*aclshmem_ptr_half.* ins\(%arg2, %arg3 : memref<\?xf16>, i32\)", text)
    assert '"memref.reinterpret_cast"(%symm4)' in text
    assert "^bb0(%arg0: memref<?xi8>, %arg1: memref<?xi8>, %arg2: memref<?xf16>, %arg3: i32, %arg5: i32)" in text
    assert "function_type = (memref<?xi8>, memref<?xi8>, memref<?xf16>, i32, i32) -> ()" in text


def test_the_local_address_stands_in_for_the_peers() -> None:
    text = lower(linalg(f"{MARKER}\n{CAST}", "memref<?xf16>"), "Ascend950PR_9579", stand_in=True)
    assert '"memref.reinterpret_cast"(%arg2)' in text
    assert "custom" not in text


def test_an_access_before_its_symm_at_is_refused() -> None:
    with pytest.raises(MlirError, match="separated a symm_at call"):
        lower(linalg(f"{CAST}\n{MARKER}", "memref<?xf16>"), "Ascend910B3")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("    %0 = " + extern("mystery"), "extern 'mystery' is no primitive"),
        (
            "    %0 = " + extern("ag_barrier_all") + '\n    "test.use"(%0) : (i32) -> ()',
            "barrier_all has no result, but the kernel uses one",
        ),
        (
            '    %x = "test.address"() : () -> i64\n    %0 = '
            + extern("ag_putmem", "%x, %x, %arg3, %arg4", "i64, i64, i32, i32"),
            "a pointer given to putmem is not a kernel argument",
        ),
        (
            ADDRESS + "    %0 = " + extern("ag_putmem", "%a, %b, %a, %arg4", "i64, i64, i64, i32"),
            "putmem.* takes two pointers of one type and two i32",
        ),
    ],
)
def test_what_is_not_recognised_is_refused(body: str, message: str) -> None:
    with pytest.raises(MlirError, match=message):
        lower(linalg(body), "Ascend910B3")


def test_a_module_with_attributes_of_its_own_is_refused() -> None:
    module = linalg("").removesuffix("}) : () -> ()\n") + "}) {mine} : () -> ()\n"
    with pytest.raises(MlirError, match="attributes of its own"):
        lower(module, "Ascend910B3")
