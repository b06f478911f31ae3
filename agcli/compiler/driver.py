"""Kernel to Triton IR to Linalg, run as a script by the toolchain's Python: no torch, no typer.

Reads a JSON request on stdin and answers with one line of JSON on stdout. It imports ``agcli`` alone from the caller's
installation, since the rest of that environment may hold another triton::

    {"agcli": "<folder of the package>", "kernel": {"file": ..., "name": ...}, "soc": "Ascend910B3", "dtype": "fp16",
     "constants": {"BLOCK_SIZE_M": 128, ...}, "out": "<folder>"}
        ->  {"ok": true}, with ttir.mlir, linalg.mlir and linalg.generic.mlir in that folder
    {"probe": true}
        ->  {"ok": true, "triton": "3.2.0"}

A failure is ``{"ok": false, "kind": "import" | "kernel" | "adapter", "message": ..., "where": "file:line" or ""}``;
"import" is of a file that cannot be loaded or has no such kernel.
Steps: triton-ascend 3.2.0, backends/ascend/compiler.py (``make_ttir``, ``ttir_to_linalg``).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import traceback
from typing import Any

UNIT_STRIDES = ("stride_ak", "stride_bn", "stride_cn")  # constants, as a launcher's specialization makes them


class DriverError(Exception):
    """A failure that the caller reports: its kind, message and place."""

    def __init__(self, kind: str, message: str, where: str = "") -> None:
        super().__init__(message)
        self.kind, self.where = kind, where


class _OnlyAgcli:
    """Finds the package agcli in one folder, and nothing else there."""

    def __init__(self, package: str) -> None:
        self.parent = os.path.dirname(os.path.abspath(package))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.machinery.PathFinder.find_spec(name, [self.parent]) if name == "agcli" else None


def make_binding() -> dict[str, Any]:
    """The primitives as externs that keep their operands; agcli.compiler.lowering replaces them later.

    Scalars only: the adapter crashes on an extern with a pointer operand that is also computed on, so pointers of
    ``putmem`` travel as integers, and ``symm_at`` is resolved before the adapter runs.
    """
    from triton.language import core, semantic

    from agcli.compiler import lowering

    def call(builder: Any, symbol: str, handles: list[Any], kind: Any) -> Any:
        handle = builder.create_extern_elementwise("", "", symbol, handles, kind.to_ir(builder), False)
        return core.tensor(handle, kind)

    def scalar(value: Any, name: str, builder: Any) -> Any:
        value = semantic.to_tensor(value, builder)
        if value.type.is_block():
            raise ValueError(f"{name} takes scalars, got a block of shape {[int(n) for n in value.type.shape]}")
        return value

    def sub_vec_id(_builder: Any = None) -> Any:
        return call(_builder, lowering.SUB_VEC_ID, [], core.int64)

    def barrier_all(_builder: Any = None) -> Any:
        return call(_builder, lowering.BARRIER_ALL, [], core.int32)

    def putmem(dest: Any, source: Any, nbytes: Any, pe: Any, _builder: Any = None) -> Any:
        pointers = [scalar(p, "putmem", _builder) for p in (dest, source)]
        if not all(p.type.is_ptr() for p in pointers):
            raise ValueError("putmem(dest, source, nbytes, pe) takes pointers first")
        handles = [p.to(core.int64, _builder=_builder).handle for p in pointers]
        handles += [scalar(n, "putmem", _builder).to(core.int32, _builder=_builder).handle for n in (nbytes, pe)]
        return call(_builder, lowering.PUTMEM, handles, core.int32)

    def symm_at(ptr: Any, rank: Any, _builder: Any = None) -> Any:
        ptr, rank = scalar(ptr, "symm_at", _builder), scalar(rank, "symm_at", _builder)
        if not ptr.type.is_ptr():
            raise ValueError("symm_at(ptr, rank) takes a pointer first")
        return call(_builder, lowering.SYMM_AT, [ptr.handle, rank.to(core.int32, _builder=_builder).handle], ptr.type)

    return {function.__name__: core.extern(function) for function in (sub_vec_id, barrier_all, putmem, symm_at)}


def make_stand_ins(binding: dict[str, Any]) -> dict[str, Any]:
    """What stand-ins of triton_dist and cann.extension offer: the primitives, and what means nothing to this compiler.

    ``compile_hint`` is none that AscendNPU-IR 1.2.0 knows; every chip has two vector cores beside a cube core.
    """
    from triton.language import core

    def compile_hint(tensor: Any, name: Any, value: Any = None, _builder: Any = None) -> None:
        return None

    def sub_vec_num(_builder: Any = None) -> Any:
        return core.constexpr(2)

    return {**binding, "compile_hint": core.extern(compile_hint), "sub_vec_num": core.extern(sub_vec_num)}


def load_kernel(file: str, name: str) -> Any:
    """The JIT function ``name`` of ``file``, with the primitives bound."""
    from agcli.compiler import stand_ins
    from agcli.kernels import primitives

    binding = make_binding()
    primitives.bind(binding)
    package = os.path.dirname(os.path.abspath(primitives.__file__))
    if os.path.dirname(os.path.abspath(file)) == package:
        module = importlib.import_module("agcli.kernels." + os.path.splitext(os.path.basename(file))[0])
    else:
        stand_ins.provide(make_stand_ins(binding))
        sys.path.append(os.path.dirname(os.path.abspath(file)))
        spec = importlib.util.spec_from_file_location("agcli_user_kernel", file)
        if spec is None or spec.loader is None:
            raise DriverError("import", "it is no Python file, whose name ends in .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except SyntaxError as error:
            raise DriverError("import", f"syntax error: {error.msg}", f"{error.filename}:{error.lineno}") from error
        except SystemExit as error:
            raise DriverError("import", f"it ends the program while it is loaded (SystemExit: {error.code})") from error
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{place.filename}:{place.lineno}"
            missing = isinstance(error, ModuleNotFoundError)
            hint = " (the compilers' environment has triton and agcli.kernels only: keep host code elsewhere)" * missing
            raise DriverError("import", f"{type(error).__name__}: {error}{hint}", where) from error
    kernel = getattr(module, name, None)
    if not hasattr(kernel, "arg_names"):
        raise DriverError("import", f"it has no @triton.jit function called '{name}'")
    return kernel


def signature(kernel: Any, dtype: str, constants: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of the run-time arguments and values of the constants, by the kernel's parameter names."""
    types: dict[str, str] = {}
    values: dict[str, Any] = {}
    for parameter in kernel.params:
        if parameter.is_constexpr and parameter.name in constants:
            values[parameter.name] = constants[parameter.name]
        elif parameter.is_constexpr and parameter.has_default:
            values[parameter.name] = parameter.default
        elif parameter.is_constexpr:
            known = ", ".join(constants)
            raise DriverError(
                "kernel", f"meta-parameter {parameter.name} has no value: give it a default; known are {known}"
            )
        elif parameter.name in UNIT_STRIDES:
            values[parameter.name] = 1
        else:
            types[parameter.name] = f"*{dtype}" if parameter.name.endswith("_ptr") else "i32"
    return types, values


def compile_kernel(request: dict[str, Any]) -> None:
    """Write ``ttir.mlir`` and ``linalg.mlir`` to the request's folder."""
    from triton._C.libtriton import ir
    from triton.backends.ascend import compiler as ascend
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    from agcli.compiler.lowering import resolve_symm_at
    from agcli.compiler.mlir import MlirError

    kernel = load_kernel(request["kernel"]["file"], request["kernel"]["name"])
    types, values = signature(kernel, request["dtype"], request["constants"])
    target = GPUTarget("npu", request["soc"], 0)
    backend = make_backend(target)
    options = backend.parse_options({})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    source = ASTSource(kernel, types, values)
    try:
        module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    except Exception as error:
        raise DriverError("kernel", _innermost(error), _place(error)) from error
    metadata = {**options.__dict__, "target": target}
    module = ascend.make_ttir(module, metadata, options)
    out = request["out"]
    _write(out, "ttir.mlir", str(module))
    adapter = ascend._get_triton_adapter_opt_path()
    try:
        ttir = resolve_symm_at(_generic(adapter, os.path.join(out, "ttir.mlir")))
        _write(out, "linalg.mlir", ascend.ttir_to_linalg(ttir, metadata, options, named_ops=True))
    except MlirError as error:
        raise DriverError("kernel", str(error)) from error
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or b"").decode(errors="replace").splitlines()
        message = next((line for line in lines if "error:" in line), _ended(error.returncode))
        raise DriverError("adapter", message) from error
    _write(out, "linalg.generic.mlir", _generic(adapter, os.path.join(out, "linalg.mlir")))


def _ended(status: int) -> str:
    """What to say of an adapter that ended without a word."""
    if status >= 0:
        return f"its adapter ended with status {status}"
    return (
        f"its adapter crashed ({signal.Signals(-status).name}), as it does on blocks of pointers whose base depends "
        "on a condition: choose the rank first, then take symm_at of it once"
    )


def _generic(adapter: str, path: str) -> str:
    """A file of MLIR in generic form."""
    command = [adapter, path, "--mlir-print-op-generic"]
    return subprocess.run(command, capture_output=True, check=True).stdout.decode()


def _chain(error: BaseException | None) -> list[BaseException]:
    """The error and what it came from: Triton wraps an error once for every function on the way up."""
    chain: list[BaseException] = []
    while error is not None:
        chain.append(error)
        error = error.__cause__ or error.__context__
    return chain


def _innermost(error: BaseException) -> str:
    """What went wrong at the bottom."""
    bottom = _chain(error)[-1]
    text = str(getattr(bottom, "error_message", None) or bottom)
    if isinstance(bottom, AttributeError) and "agcli.kernels.primitives" in text:
        from agcli.kernels import primitives

        wanted = text.rsplit("'", 2)[1]
        return f"primitives.{wanted} does not exist; the primitives are {', '.join(primitives.NAMES)}"
    return text if hasattr(bottom, "error_message") else f"{type(bottom).__name__}: {text}"


def _place(error: BaseException) -> str:
    """File and line of the innermost function in which Triton's code generator stopped."""
    for link in reversed(_chain(error)):
        line, source = getattr(getattr(link, "node", None), "lineno", None), getattr(link, "src", None)
        place = _line_in_files(source, line) if source and line else ""
        if place:
            return place
    return ""


def _line_in_files(source: str, line: int) -> str:
    """Where line ``line`` of a JIT function's source is, among the functions that the loaded modules hold."""
    from triton.runtime.jit import JITFunction

    for module in list(sys.modules.values()):
        for function in list(getattr(module, "__dict__", {}).values()):
            if isinstance(function, JITFunction) and function.src == source:
                lines, first = inspect.getsourcelines(function.fn)
                decorators = next(i for i, text in enumerate(lines) if text.lstrip().startswith("def "))
                return f"{function.fn.__code__.co_filename}:{first + decorators + line - 1}"
    return ""


def _write(folder: str, name: str, text: str) -> None:
    with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
        file.write(text)


def main() -> None:
    """Answer the request on stdin; whatever a kernel prints goes to stderr."""
    request = json.load(sys.stdin)
    answer: dict[str, Any] = {"ok": True}
    try:
        with contextlib.redirect_stdout(io.TextIOWrapper(sys.stderr.buffer, write_through=True)):
            import triton

            answer["triton"] = triton.__version__
            if not request.get("probe"):
                sys.meta_path.insert(0, _OnlyAgcli(request["agcli"]))
                compile_kernel(request)
    except DriverError as error:
        answer = {"ok": False, "kind": error.kind, "message": str(error), "where": error.where}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
