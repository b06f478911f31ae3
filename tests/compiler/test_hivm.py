"""What is read from a HIVM module, on small modules written by hand."""

from __future__ import annotations

import pytest

from agcli.compiler.compile import audit
from agcli.compiler.hivm import MemoryUse, Module, Wait, read_module
from agcli.compiler.mlir import MlirError

SPEC = ", ".join(
    f'#dlti.dl_entry<"{name}", {value} : i32>'
    for name, value in {
        "CUBE_CORE_COUNT": 20, "VECTOR_CORE_COUNT": 40, "UB_SIZE": 1572864, "L1_SIZE": 4194304,
        "L0A_SIZE": 524288, "L0B_SIZE": 524288, "L0C_SIZE": 1048576,
    }.items()
)  # fmt: skip


def function(name: str, core: str, body: str) -> str:
    return f"""  "func.func"() <{{function_type = (i32, i1) -> (), sym_name = "{name}"}}> ({{
  ^bb0(%arg0: i32, %arg1: i1):
{body}
    "func.return"() : () -> ()
  }}) {{hacc.entry, hivm.func_core_type = #hivm.func_core_type<{core}>}} : () -> ()
"""


def module(cube: str = "", vector: str = "", more: str = "") -> str:
    functions = function("k_mix_aic", "AIC", cube) + function("k_mix_aiv", "AIV", vector) + more
    target = f'dlti.target_system_spec = #dlti.target_system_spec<"NPU" : #hacc.target_device_spec<{SPEC}>>'
    return f'"builtin.module"() ({{\n{functions}}}) {{{target}}} : () -> ()\n'


def number(name: str, value: int) -> str:
    return f'    {name} = "arith.constant"() <{{value = {value} : i64}}> : () -> i64\n'


def buffer(name: str, place: str, shape: str, space: str) -> str:
    kind = f"memref<{shape}, #hivm.address_space<{space}>>"
    return f'    {name} = "hivm.hir.pointer_cast"({place}) : (i64) -> {kind}\n'


def use(found: Module, memory: str) -> MemoryUse:
    return next(item for item in found.memories if item.memory == memory)


WAIT = '"hivm.hir.sync_block_wait"() : () -> () loc("hivm.mlir":{line}:7)'
LOOP = """    "scf.for"(%arg0, %arg0, %arg0) ({{
    ^bb0(%i: i32):
      {body}
      "scf.yield"() : () -> ()
    }}) : (i32, i32, i32) -> ()
"""


def test_peak_use_is_the_highest_end_of_a_buffer_over_both_functions() -> None:
    cube = number("%a", 0) + number("%b", 65536) + buffer("%x", "%b", "16x8x16x16xf16", "cbuf")
    found = read_module(module(cube + buffer("%y", "%a", "16x8x16x16xf32", "cc")), "")
    assert use(found, "L1") == MemoryUse("L1", 65536 + 65536, 524288, planned=True, doubled=False)
    assert use(found, "L0C").used == 131072
    assert use(found, "L0A") == MemoryUse("L0A", 0, 65536, planned=False, doubled=False)
    assert found.cores == {"cube": 20, "vector": 40}


def test_buffers_that_a_select_chooses_from_are_double() -> None:
    kind = "memref<20x256xbf16, #hivm.address_space<ub>>"
    buffers = number("%a", 0) + number("%b", 10240)
    buffers += buffer("%x", "%a", "20x256xbf16", "ub") + buffer("%y", "%b", "20x256xbf16", "ub")
    select = f'    %s = "arith.select"(%arg1, %x, %y) : (i1, {kind}, {kind}) -> {kind}\n'
    assert not use(read_module(module(vector=buffers), ""), "UB").doubled
    assert use(read_module(module(vector=buffers + select), ""), "UB") == MemoryUse("UB", 20480, 196608, True, True)


def test_a_select_after_a_cast_counts_as_on_ascend_950() -> None:
    cast = '    %c = "builtin.unrealized_conversion_cast"(%x) : (memref<8xf16, #hivm.address_space<ub>>) -> i64\n'
    select = '    %s = "llvm.select"(%arg1, %c, %a) : (i1, i64, i64) -> i64\n'
    found = read_module(module(vector=number("%a", 0) + buffer("%x", "%a", "8xf16", "ub") + cast + select), "")
    assert use(found, "UB").doubled


def test_operations_are_counted_by_what_they_do() -> None:
    def call(name: str) -> str:
        return f'    "func.call"() <{{callee = @{name}}}> : () -> ()\n'

    cube = [
        "nd2nz_half", "nd2nz_half", "mma_tile_half_to_float", "fixpipe_nz2nd_float_to_half_4d_to_2d",
        "_mlir_ciface_aclshmem_barrier_all.cube",
    ]  # fmt: skip
    vector = ["load_gm_to_ubuf_2d_half", "store_ubuf_to_gm_2d_half", "aclshmem_half_putmem.vector", "mystery"]
    found = read_module(module("".join(map(call, cube)), "".join(map(call, vector))), "")
    assert found.functions[0].operations == {"loads": 2, "products": 1, "stores": 1, "barriers": 1}
    assert found.functions[1].operations == {"loads": 1, "stores": 1, "putmem": 1, "other calls": 1}


def test_a_wait_of_vector_cores_in_a_loop_is_a_fault_with_its_line() -> None:
    text = "\n" * 338 + "  hivm.hir.sync_block_wait[<VECTOR>] flag = 0"
    found = read_module(module(vector=LOOP.format(body=WAIT.format(line=339))), text)
    (fault,) = audit(found)
    assert (fault.kind, fault.where) == ("overlap", "hivm.mlir:339")
    assert "hivm.hir.sync_block_wait[<VECTOR>] flag = 0" in fault.message


def test_a_wait_after_the_loop_or_of_the_cube_is_none() -> None:
    found = read_module(module(LOOP.format(body=WAIT.format(line=1)), "    " + WAIT.format(line=2) + "\n"), "a\nb")
    assert [(wait.core, wait.in_loop) for wait in found.waits] == [("cube", True), ("vector", False)]
    assert audit(found) == []


def test_a_cycle_of_blocks_is_a_loop() -> None:
    branches = f"""    "cf.br"()[^bb1] : () -> ()
  ^bb1:
    {WAIT.format(line=1)}
    "cf.cond_br"(%arg1)[^bb1, ^bb2] : (i1) -> ()
  ^bb2:
    {WAIT.format(line=2)}
"""
    found = read_module(module(vector=branches), "a\nb")
    assert [wait.in_loop for wait in found.waits] == [True, False]


def test_results_that_reach_vector_cores_without_a_wait_are_a_race() -> None:
    host = '  "func.func"() <{sym_name = "k_infer"}> ({\n    "func.return"() : () -> ()\n  }) '
    host += "{hacc.host_func_type = #hacc.host_func_type<infer_workspace_shape_function>} : () -> ()\n"
    found = read_module(module(more=host), "")
    assert found.shared == "workspace"
    (fault,) = audit(found)
    assert fault.kind == "race"


def test_a_cube_that_writes_ub_shares_it() -> None:
    cube = number("%a", 0) + buffer("%x", "%a", "8xf32", "ub")
    assert read_module(module(cube), "").shared == "UB"


def test_with_a_wait_the_hand_over_is_no_race() -> None:
    found = Module({}, [], [], [Wait("vector", 1, "wait", in_loop=False)], "workspace")
    assert audit(found) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (module(vector=buffer("%x", "%p", "8xf16", "ub").replace("%p", "%q")).replace(
            "^bb0(%arg0: i32, %arg1: i1):", "^bb0(%arg0: i32, %arg1: i1, %q: i64):"), "whose place is not a constant"),
        (module(vector=number("%a", 0) + buffer("%x", "%a", "?xf16", "ub")), "has no size that is known"),
        (module().replace("func_core_type<AIV>", "func_core_type<AIC>"), "made functions for cube cores"),
        (module().replace("func_core_type<AIV>", "func_core_type<MIX>"), "core type 'MIX'"),
        ('"builtin.module"() ({\n}) : () -> ()', "does not say which target"),
    ],
)  # fmt: skip
def test_a_module_that_is_not_understood_is_refused(text: str, message: str) -> None:
    with pytest.raises(MlirError, match=message):
        read_module(text, "")
