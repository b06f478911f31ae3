"""What a HIVM module says: its memory plan, its cube and vector functions, and whether they wait for each other.

The module is AscendNPU-IR's ``module.hivm.opt.mlir``, in generic form with locations of that file. Ascend 910 keeps
loops as ``scf.for``, Ascend 950 has branches between blocks; both are read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass

from agcli.compiler.mlir import Block, MlirError, Op, Value, parse, split

# Address space of a memref, and the entry of the target's specification that has its size in bits.
SPACES = {"L1": ("cbuf", "L1_SIZE"), "L0A": ("ca", "L0A_SIZE"), "L0B": ("cb", "L0B_SIZE"),
          "L0C": ("cc", "L0C_SIZE"), "UB": ("ub", "UB_SIZE")}  # fmt: skip
_BITS = {"f16": 16, "bf16": 16, "f32": 32, "i1": 8, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "f64": 64}
_CORES = {"AIC": "cube", "AIV": "vector"}
# Library functions by the beginning of their names (AscendNPU-IR, bishengir/lib/Template), in a kernel author's words.
_OPERATIONS = (
    ("nd2nz_", "loads"),
    ("load_gm_to_", "loads"),
    ("mma_tile_", "products"),
    ("fixpipe_", "stores"),
    ("store_ubuf_to_gm_", "stores"),
    ("set_l1_2d_", "fills"),
    ("broadcast_scalar_", "fills"),
    ("aclshmem_barrier_all", "barriers"),
    ("aclshmem_ptr_", "peer addresses"),
)
OPERATIONS = ("loads", "products", "stores", "putmem", "barriers", "peer addresses", "fills", "waits", "other calls")


@dataclass(frozen=True)
class MemoryUse:
    """Peak use of one memory, in bytes. ``planned`` is False where library functions manage the memory themselves."""

    memory: str
    used: int
    available: int
    planned: bool
    doubled: bool


@dataclass(frozen=True)
class CoreFunction:
    """A function of the kernel after the split, and how often each kind of operation stands in it."""

    name: str
    core: str
    operations: dict[str, int]


@dataclass(frozen=True)
class Wait:
    """A wait for the other kind of core. ``line`` is that of module.hivm.opt.mlir."""

    core: str
    line: int
    text: str
    in_loop: bool


@dataclass(frozen=True)
class Module:
    """All that the report takes from a HIVM module. ``shared`` says through what cube results reach vector cores."""

    cores: dict[str, int]
    memories: list[MemoryUse]
    functions: list[CoreFunction]
    waits: list[Wait]
    shared: str


def read_module(generic: str, text: str, stand_in_barrier: bool = False) -> Module:
    """Read the module from its generic form; ``text`` is the file that its locations point into."""
    module = parse(generic)
    specification = _specification(module)
    functions = [op for op in module.regions[0][0].ops if op.name == "func.func" and "hacc.entry" in op.attributes]
    cores = {_core(function): function for function in functions}
    if set(cores) != {"cube", "vector"}:
        raise MlirError(
            f"the compiler made functions for {', '.join(cores) or 'no'} cores; a kernel with a barrier needs cube and "
            "vector work (tl.dot, and a load or store that does not feed it)"
        )
    memories = [_memory(name, functions, specification) for name in SPACES]
    lines = text.splitlines()
    waits = [wait for core, function in cores.items() for wait in _waits(core, function, lines)]
    counted = [
        CoreFunction(_symbol(function), core, _count(function, stand_in_barrier)) for core, function in cores.items()
    ]
    counts = {"cube": specification["CUBE_CORE_COUNT"], "vector": specification["VECTOR_CORE_COUNT"]}
    return Module(counts, memories, counted, waits, _shared(module, cores["cube"]))


def _specification(module: Op) -> dict[str, int]:
    """The numbers of ``dlti.target_system_spec``, such as ``UB_SIZE`` in bits."""
    text = module.attribute("dlti.target_system_spec") or ""
    entries = re.findall(r'dl_entry<"(\w+)",\s*(\d+)\s*:\s*i\d+>', text)
    if not entries:
        raise MlirError("the module does not say which target it is for")
    return {name: int(value) for name, value in entries}


def _core(function: Op) -> str:
    kind = (function.attribute("hivm.func_core_type") or "").rpartition("<")[2].rstrip(">")
    if kind not in _CORES:
        raise MlirError(f"function {_symbol(function)} is for core type '{kind}', not for cube or vector cores")
    return _CORES[kind]


def _symbol(function: Op) -> str:
    return (function.attribute("sym_name") or "").strip('"')


def _memory(name: str, functions: list[Op], specification: dict[str, int]) -> MemoryUse:
    """Peak of one memory over both functions, from the offsets that the compiler planned."""
    space, entry = SPACES[name]
    peak, planned, doubled = 0, False, False
    for function in functions:
        users = _users(function)
        for op in function.walk():
            if op.name != "hivm.hir.pointer_cast" or _space(op.results[0].type) != space:
                continue
            offset = constant(op.operands[0].value)
            if offset is None:
                raise MlirError(f"line {op.source_line()}: a buffer in {name} whose place is not a constant")
            peak = max(peak, offset + _bytes(op.results[0].type))
            planned = True
            doubled = doubled or _rotates(op.results[0], users)
    return MemoryUse(name, peak, specification[entry] // 8, planned, doubled)


def constant(value: Value) -> int | None:
    """The number that an ``arith.constant`` or ``llvm.mlir.constant`` makes."""
    if value.maker is None or value.maker.name not in ("arith.constant", "llvm.mlir.constant"):
        return None
    number = (value.maker.attribute("value") or "").split(":")[0].strip()
    return int(number) if re.fullmatch(r"-?\d+", number) else None


def _users(function: Op) -> dict[Value, list[Op]]:
    users: dict[Value, list[Op]] = {}
    for op in function.walk():
        for use in op.operands:
            users.setdefault(use.value, []).append(op)
    return users


def _rotates(buffer: Value, users: dict[Value, list[Op]]) -> bool:
    """Whether a select chooses between this buffer and another: that is how double buffers are used in turn."""
    for user in users.get(buffer, []):
        if user.name in ("arith.select", "llvm.select"):
            return True
        if user.name == "builtin.unrealized_conversion_cast" and any(_rotates(v, users) for v in user.results):
            return True
    return False


def _space(kind: str) -> str:
    """``cbuf`` of ``memref<..., #hivm.address_space<cbuf>>``; empty for other types."""
    return kind.rpartition("#hivm.address_space<")[2].rstrip(">") if kind.startswith("memref<") else ""


def _bytes(kind: str) -> int:
    """Size of a memref of constant shape."""
    *shape, element = split(kind[len("memref<") : -1])[0].split("x")
    if element not in _BITS or not all(size.isdigit() for size in shape):
        raise MlirError(f"a buffer of type {kind} has no size that is known")
    return math.prod(map(int, shape)) * _BITS[element] // 8


def _waits(core: str, function: Op, lines: list[str]) -> list[Wait]:
    waits = []
    for op in function.walk():
        if op.name == "hivm.hir.sync_block_wait":
            line = op.source_line()
            text = lines[line - 1].strip() if 0 < line <= len(lines) else op.name
            waits.append(Wait(core, line, text, in_loop(op)))
    return waits


def in_loop(op: Op) -> bool:
    """Whether ``op`` is inside a loop: of scf, or a cycle of blocks."""
    inner = op
    for outer in op.parents():
        if outer.name in ("scf.for", "scf.while") or _in_cycle(inner, outer):
            return True
        inner = outer
    return False


def _in_cycle(op: Op, parent: Op) -> bool:
    """Whether the block of ``parent`` that holds ``op`` can be reached from itself."""
    for region in parent.regions:
        blocks = {block.label: block for block in region}
        home = next((block for block in region if any(other is op for other in block.ops)), None)
        if home is not None:
            seen: set[str] = set()
            todo = _successors(home)
            while todo:
                label = todo.pop()
                if label not in seen and label in blocks:
                    seen.add(label)
                    todo += _successors(blocks[label])
            return home.label in seen
    return False


def _successors(block: Block) -> list[str]:
    return [label for op in block.ops[-1:] for label in op.successors]


def _count(function: Op, stand_in_barrier: bool) -> dict[str, int]:
    """How often each kind of operation stands in a function (not how often it runs)."""
    counts: Counter[str] = Counter()
    for op in function.walk():
        if op.name in ("func.call", "llvm.call"):
            counts[_operation((op.attribute("callee") or "").lstrip("@"))] += 1
        elif op.name == "hivm.hir.sync_block_wait":
            counts["waits"] += 1
        elif stand_in_barrier and op.name == "hivm.hir.pipe_barrier" and in_loop(op):
            counts["barriers"] += "PIPE_ALL" in (op.attribute("pipe") or "")
    return {name: counts[name] for name in OPERATIONS if counts[name]}


def _operation(callee: str) -> str:
    name = callee.replace("_mlir_ciface_", "", 1)
    if name.startswith("aclshmem_") and "_putmem" in name:
        return "putmem"
    return next((kind for prefix, kind in _OPERATIONS if name.startswith(prefix)), "other calls")


def _shared(module: Op, cube: Op) -> str:
    """Through what the cube's results reach vector cores: the workspace in GM, UB directly (Ascend 950), or nothing."""
    for op in module.regions[0][0].ops:
        if "infer_workspace_shape_function" in (op.attribute("hacc.host_func_type") or ""):
            return "workspace"
    types = (value.type for op in cube.walk() for value in op.results)
    return "UB" if any(_space(kind) == "ub" for kind in types) else ""
