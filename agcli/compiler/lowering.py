"""The primitives of symmetric memory between the compiler's stages, by rewriting MLIR text in generic form.

triton-ascend knows none of the primitives. The driver leaves each call as a ``tt.extern_elementwise`` op with one of
the symbols below; :func:`resolve_symm_at` prepares Triton IR for the adapter, which wants every block of pointers to
start from a kernel argument, and :func:`lower` puts into the adapter's Linalg what AscendNPU-IR has for them:

========================  =======================================================================================
``sub_vec_id()``          ``hivm.hir.get_sub_block_idx``
``barrier_all()``         custom op ``aclshmem_barrier_all``, on cube and vector cores
``putmem(...)``           custom op ``aclshmem_<type>_putmem``, on vector cores only
``symm_at(ptr, rank)``    custom op ``aclshmem_ptr_<type>``, whose memref takes the place of an extra kernel argument
========================  =======================================================================================

Sources: AscendNPU-IR, test/Dialect/HIVM/split-mix-kernel-distributed.mlir and
test/bishengir-compile/hivm/compile-shmem-rma-customop.mlir; Triton-distributed, lib/Conversion/TritonDistributedToHIVM.
"""

from __future__ import annotations

from agcli.compiler.mlir import MlirError, Op, Value, parse, split

SUB_VEC_ID, BARRIER_ALL, PUTMEM, SYMM_AT = "ag_sub_vec_id", "ag_barrier_all", "ag_putmem", "ag_symm_at"
EXTERN = "tt.extern_elementwise"
_SHMEM_TYPES = {"f16": "half", "bf16": "bfloat16", "f32": "float", **{f"i{n}": f"int{n}" for n in (8, 16, 32, 64)}}
# bishengir-compile-a5 1.2.0 aborts on a custom op for both core types; this one it lowers (docs/compile.md).
BARRIER_STAND_IN = "hivm.hir.pipe_barrier[<PIPE_ALL>]"


class _Edits:
    """Replacements of stretches of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.edits: list[tuple[int, int, str]] = []

    def replace(self, start: int, end: int, text: str) -> None:
        self.edits.append((start, end, text))

    def insert(self, at: int, text: str) -> None:
        self.edits.append((at, at, text))

    def result(self) -> str:
        text = self.text
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text


def externs(module: Op, symbol: str | None = None) -> list[Op]:
    """The calls of primitives, or of one of them."""
    calls = [op for op in module.walk() if op.name == EXTERN]
    return [op for op in calls if symbol is None or symbol_of(op) == symbol]


def symbol_of(op: Op) -> str:
    """The symbol of a ``tt.extern_elementwise`` or custom op."""
    return (op.attribute("symbol") or "").strip('"')


def resolve_symm_at(ttir: str) -> str:
    """Triton IR in which each ``symm_at`` is a kernel argument of its own, beside a marker that keeps the rank.

    ``symm_at(p + offset, rank)`` becomes ``q + offset`` with the new argument q. The marker's symbol is
    ``ag_symm_at/<argument number of p>/<argument number of q>``.
    """
    module = parse(ttir)
    calls = externs(module, SYMM_AT)
    if not calls:
        return ttir
    function = _function(module, "tt.func")
    entry = function.regions[0][0]
    edits = _Edits(ttir)
    for extra, op in enumerate(calls, len(entry.args)):
        base, offsets = op.operands[0].value, []
        while base.maker is not None and base.maker.name == "tt.addptr":
            offsets.append(base.maker.operands[1].value)
            base = base.maker.operands[0].value
        if base not in entry.args:
            raise MlirError("symm_at(ptr, rank) takes a pointer argument of the kernel, or one plus a scalar offset")
        edits.replace(op.start, op.end, _symm_at_in_ttir(op, entry.args.index(base), extra, offsets[::-1]))
    types = [op.results[0].type for op in calls]
    edits.insert(entry.args_span[1], "".join(f", %symm{n}: {t}" for n, t in enumerate(types, len(entry.args))))
    start, end = function.spans["function_type"]
    inputs, results = _function_type(ttir[start:end])
    edits.replace(start, end, f"({', '.join(inputs + types)}) -> {results}")
    if "arg_attrs" in function.properties:
        start, end = function.spans["arg_attrs"]
        edits.replace(start, end, f"[{', '.join(split(ttir[start + 1 : end - 1]) + ['{}'] * len(types))}]")
    return edits.result()


def _symm_at_in_ttir(op: Op, base: int, extra: int, offsets: list[Value]) -> str:
    """The marker, and the new argument plus the old pointer's offsets under the op's old name."""
    kind = op.results[0].type
    lines = [
        f'%symm{extra}_marker = "{EXTERN}"({op.operands[1].value.name}) <{{libname = "", libpath = "", pure = false, '
        f'symbol = "{SYMM_AT}/{base}/{extra}"}}> : (i32) -> i32',
        f'%symm{extra}_zero = "arith.constant"() <{{value = 0 : i32}}> : () -> i32',
    ]
    pointer = f"%symm{extra}"
    steps = [Value(f"%symm{extra}_zero", "i32"), *offsets]
    for index, offset in enumerate(steps, 1):
        result = op.results[0].name if index == len(steps) else f"%symm{extra}_{index}"
        lines.append(f'{result} = "tt.addptr"({pointer}, {offset.name}) : ({kind}, {offset.type}) -> {kind}')
        pointer = result
    return "\n".join(lines)


def lower(linalg: str, soc: str, stand_in: bool = False) -> str:
    """Linalg that AscendNPU-IR's compiler accepts. Raises MlirError for a call that it does not recognise.

    With ``stand_in`` the barrier and ``symm_at`` are replaced by what the compiler for Ascend 950 can take: a barrier
    of the core's own pipes, and the local address. The plan of the memories and the split into cores stay real.
    """
    module = parse(linalg)
    function = _function(module, "func.func")
    edits = _Edits(linalg)
    used = {use.value for op in module.walk() for use in op.operands}
    symm_calls: list[Op] = []
    for op in externs(module):
        symbol = symbol_of(op)
        if symbol.startswith(SYMM_AT + "/"):
            symm_calls.append(op)
        elif symbol == SUB_VEC_ID:
            edits.replace(op.start, op.end, f"{op.results[0].name} = hivm.hir.get_sub_block_idx -> i64")
        elif symbol == BARRIER_ALL:
            barrier = BARRIER_STAND_IN if stand_in else _custom("aclshmem_barrier_all", "CUBE_AND_VECTOR")
            edits.replace(op.start, op.end, barrier)
        elif symbol == PUTMEM:
            edits.replace(op.start, op.end, _putmem(op))
        else:
            raise MlirError(f"the extern '{symbol}' is no primitive that this compiler knows")
        if symbol in (BARRIER_ALL, PUTMEM) and used.intersection(op.results):
            raise MlirError(f"{symbol.replace('ag_', '')} has no result, but the kernel uses one")
    dropped = [_lower_symm_at(module, function, op, stand_in, edits) for op in symm_calls]
    _rewrite_signature(function, dropped, edits)
    _set_module_attributes(module, soc, edits)
    return edits.result()


def _putmem(op: Op) -> str:
    values = [_memref_of(use.value) for use in op.operands[:2]] + [use.value for use in op.operands[2:]]
    types = [value.type for value in values]
    element = _element(types[0])
    if types[2:] != ["i32", "i32"] or _element(types[1]) != element:
        raise MlirError(f"putmem(dest, source, nbytes, pe) takes two pointers of one type and two i32, got {types}")
    custom = _custom(f"aclshmem_{element}_putmem", "VECTOR")
    return f"{custom} ins({', '.join(value.name for value in values)} : {', '.join(types)})"


def _memref_of(address: Value) -> Value:
    """The memref whose address a number is: back through ``index_cast`` and ``extract_aligned_pointer_as_index``."""
    for name in ("arith.index_cast", "memref.extract_aligned_pointer_as_index"):
        if address.maker is None or address.maker.name != name:
            raise MlirError("a pointer given to putmem is not a kernel argument plus a scalar offset")
        address = address.maker.operands[0].value
    return address


def _lower_symm_at(module: Op, function: Op, op: Op, stand_in: bool, edits: _Edits) -> int:
    """Put the custom op in the marker's place and its memref in the extra argument's, whose number is returned."""
    base, extra = (int(number) + _leading_arguments(function) for number in symbol_of(op).split("/")[1:])
    argument = function.regions[0][0].args[extra]
    uses = [(user, use) for user in module.walk() for use in user.operands if use.value is argument]
    inside = set(_after(op))
    if len(externs(module, symbol_of(op))) != 1 or any(user not in inside for user, _ in uses):
        raise MlirError("the adapter separated a symm_at call from the accesses that use its pointer")
    local = function.regions[0][0].args[base]
    custom = _custom(f"aclshmem_ptr_{_element(argument.type)}", "CUBE_AND_VECTOR", "no_side_effect, ")
    operands = f"ins({local.name}, {op.operands[0].value.name} : {local.type}, i32)"
    call = f"%symm{extra} = {custom} {operands} -> {argument.type}"
    edits.replace(op.start, op.end, "" if stand_in else call)
    for _, use in uses:
        edits.replace(use.start, use.end, local.name if stand_in else f"%symm{extra}")
    return extra


def _custom(symbol: str, core_type: str, extra: str = "") -> str:
    """A distributed custom op as Triton-distributed lowers it, up to its operands."""
    return (
        f"hivm.hir.custom {{hivm.is_distributed, {extra}hivm.pipe = #hivm.pipe<PIPE_S>, "
        f"hivm.tcore_type = #hivm.tcore_type<{core_type}>, hivm.vf_mode = #hivm.vf_mode<SIMD>, "
        f'libname = "libshmem_device", libpath = "", pure = false, symbol = "{symbol}"}} "dist.{symbol}"'
    )


def _element(memref: str) -> str:
    """The ``half`` of ``memref<?xf16, ...>``, as the names of shmem functions have it."""
    shape = split(memref[memref.index("<") + 1 : -1])[0]
    element = shape.rsplit("x", 1)[-1]
    if element not in _SHMEM_TYPES:
        raise MlirError(f"shmem has no functions for {element}; it has {', '.join(_SHMEM_TYPES)}")
    return _SHMEM_TYPES[element]


def _rewrite_signature(function: Op, dropped: list[int], edits: _Edits) -> None:
    """Take the extra arguments out again, and the attribute ``mix_mode``, which the vendor's driver takes out too."""
    entry = function.regions[0][0]
    kept = [i for i in range(len(entry.args)) if i not in dropped]
    if dropped:
        start, end = entry.args_span
        edits.replace(start, end, ", ".join(f"{entry.args[i].name}: {entry.args[i].type}" for i in kept))
        start, end = function.spans["function_type"]
        inputs, results = _function_type(edits.text[start:end])
        edits.replace(start, end, f"({', '.join(inputs[i] for i in kept)}) -> {results}")
        start, end = function.spans["arg_attrs"]
        entries = split(edits.text[start + 1 : end - 1])
        edits.replace(start, end, f"[{', '.join(entries[i] for i in kept)}]")
    attributes = {k: v for k, v in function.attributes.items() if k != "mix_mode"}
    start, end = function.spans["<attributes>"]
    edits.replace(start, end, "{" + ", ".join(f"{k} = {v}" if v else k for k, v in attributes.items()) + "}")


def _set_module_attributes(module: Op, soc: str, edits: _Edits) -> None:
    """The target, and that vector tiles are not split over the two vector cores: ``sub_vec_id`` does that."""
    attributes = f'hacc.target = #hacc.target<"{soc}">, hivm.disable_auto_tile_and_bind_subblock'
    if module.attributes:
        raise MlirError(f"the adapter gave the module attributes of its own: {', '.join(module.attributes)}")
    edits.replace(*module.spans["<attributes>"], f" {{{attributes}}}")


def _function(module: Op, name: str) -> Op:
    functions = [op for op in module.regions[0][0].ops if op.name == name]
    if len(functions) != 1:
        raise MlirError(f"expected one {name} in the module, found {len(functions)}")
    return functions[0]


def _function_type(text: str) -> tuple[list[str], str]:
    """Inputs and results of ``(a, b) -> c``."""
    inputs, arrow, results = text.strip().rpartition(" -> ")
    if not arrow or not inputs.startswith("("):
        raise MlirError(f"'{text}' is no function type")
    return split(inputs[1:-1]), results


def _leading_arguments(function: Op) -> int:
    """Arguments that the adapter puts before the kernel's own: lock and workspace."""
    return sum(name in function.attributes for name in ("SyncBlockLockArgIdx", "WorkspaceArgIdx"))


def _after(op: Op) -> list[Op]:
    """The ops that follow ``op`` in its block, with all inside them: where its results may be used."""
    for region in op.parent.regions if op.parent else []:
        for block in region:
            if any(other is op for other in block.ops):
                at = [other is op for other in block.ops].index(True)
                return [inner for later in block.ops[at + 1 :] for inner in later.walk()]
    return []
