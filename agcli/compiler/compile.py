"""One compilation: kernel, configuration and chip in, a report out."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agcli import children
from agcli.chips import Chip, has_udma
from agcli.compiler import hivm, lowering
from agcli.compiler.mlir import MlirError
from agcli.errors import EnvironmentFault, UsageError
from agcli.problem import ITEMSIZE, KernelConfig, decide_transport, single_buffered
from agcli.toolchain import DRIVER, Toolchain

KERNELS = Path(__file__).parent.parent / "kernels"
STEP_TIMEOUT_S = 300
STAGES = ("ttir.mlir", "linalg.mlir", "lowered.mlir", "hivm.mlir", "compiler.log", "kernel.o", "kernel_reloc.o")
# The compiler's names of the memories in its overflow messages.
_MEMORY_NAMES = {"cbuf": "L1", "cc": "L0C", "ub": "UB", "ca": "L0A", "cb": "L0B"}
_OVERFLOW = re.compile(r"error: (\w+) overflow, requires (\d+) bits while (\d+) bits available")
_BAD_FLAG = re.compile(r"(?:Unknown command line argument '|for the )(-[^\s=']+)[^\n]*")
_RETRIED = re.compile(r"\[NOTE\] Due to (\w+) overflow, automatically set (.*); compilation then succeeded")


@dataclass(frozen=True)
class KernelSource:
    """A JIT function in a file."""

    file: str = str(KERNELS / "allgather_gemm.py")
    name: str = "kernel_allgather_gemm"

    @classmethod
    def from_option(cls, text: str) -> KernelSource:
        """Parse ``FILE:NAME``. Raises UsageError."""
        file, colon, name = text.rpartition(":")
        if not colon or not name.isidentifier():
            raise UsageError(f"a kernel is given as FILE:NAME, got '{text}' (--kernel)")
        if not Path(file).is_file():
            raise UsageError(f"there is no file {file} (--kernel)")
        if Path(file).suffix != ".py":
            raise UsageError(f"cannot load {file}: it is no Python file, whose name ends in .py (--kernel)")
        return cls(str(Path(file).resolve()), name)


@dataclass(frozen=True)
class CompileRequest:
    """What to compile.

    ``multibuffer`` None is what a launch says (``Plan.multibuffer``), ``auto_block_sync`` leaves the compiler's own
    cross-core waits in, and ``flags`` are options of bishengir-compile that are added or take the place of its own.
    """

    chip: Chip
    config: KernelConfig
    dtype: str = "fp16"
    kernel: KernelSource = KernelSource()
    multibuffer: bool | None = None
    auto_block_sync: bool = False
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for flag in self.flags:
            if not re.match("--?[A-Za-z]", flag):
                raise UsageError(f"an option of bishengir-compile starts with '-', got '{flag}' (--flag)")

    def double_buffers(self) -> bool:
        """Whether multi-buffering is asked for."""
        if self.multibuffer is not None:
            return self.multibuffer
        return single_buffered(self.config, ITEMSIZE[self.dtype], self.chip) is None

    def decided(self) -> KernelConfig:
        """The configuration with its transport decided."""
        return decide_transport(self.config, self.chip)

    def constants(self) -> dict[str, Any]:
        """The kernel's meta-parameters by name."""
        config = self.decided()
        return {
            "pvalue": config.pvalue,
            "BLOCK_SIZE_M": config.block_m,
            "BLOCK_SIZE_N": config.block_n,
            "BLOCK_SIZE_K": config.block_k,
            "COMM_BLOCK_SIZE_M": config.comm_block_m,
            "COMM_BLOCK_SIZE_K": config.comm_block_k,
            "TRANSPORT": config.transport,
        }

    def options(self) -> list[str]:
        """The options of bishengir-compile that a launch comes to with ``disable_auto_inject_block_sync=True`` and
        ``enable_auto_bind_sub_block=False`` (triton-ascend 3.2.0, backends/ascend/compiler.py).

        ``--disable-hfusion-vectorize`` on Ascend 950 keeps the conversion and the store of C on the cube cores. Without
        it they go to the vector cores, which then wait for the cube in every tile: no overlap (docs/compile.md).
        """
        options = [
            "--enable-hfusion-compile=true",
            "--enable-hivm-compile=true",
            "--enable-triton-kernel-compile=true",
            f"--enable-auto-multi-buffer={self.double_buffers()}",
            "--enable-auto-bind-sub-block=False",
            f"--target={self.chip.name}",
        ]
        if not self.auto_block_sync:
            options.append("--disable-auto-inject-block-sync")
        if has_udma(self.chip):
            options.append("--disable-hfusion-vectorize")
        given = {flag.partition("=")[0] for flag in self.flags}
        return [option for option in options if option.partition("=")[0] not in given] + list(self.flags)


@dataclass(frozen=True)
class Fault:
    """Why the kernel is not right.

    ``kind`` is ``kernel``, ``memory``, ``overlap``, ``race`` or ``compiler``; ``where`` is ``file:line`` or empty.
    """

    kind: str
    message: str
    where: str = ""


@dataclass(frozen=True)
class Overflow:
    """A memory that is too small, in bytes."""

    memory: str
    needed: int
    available: int


@dataclass
class CompileReport:
    """What one compilation found. It fits if there is no fault."""

    soc: str
    dtype: str
    config: KernelConfig
    kernel: str
    options: list[str]
    module: hivm.Module | None = None
    faults: list[Fault] = field(default_factory=list)
    overflows: list[Overflow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    stand_ins: list[str] = field(default_factory=list)
    suggestions: list[KernelConfig] = field(default_factory=list)
    object_bytes: int | None = None
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the kernel compiles, fits the memories and keeps communication beside computation."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """The report as JSON data."""
        return {"fits": self.fits, **asdict(self)}


def compile_kernel(request: CompileRequest, toolchain: Toolchain, save: Path | None = None) -> CompileReport:
    """Compile and report. Raises EnvironmentFault when the compilers themselves do not run, and UsageError for a file
    that cannot be loaded or lacks the kernel, and for a flag that the compiler does not take.

    With ``save`` the stages stay in that folder, under the names of ``STAGES``.
    """
    start = time.monotonic()
    source = request.kernel
    report = CompileReport(
        request.chip.name, request.dtype, request.decided(), f"{source.file}:{source.name}", request.options()
    )
    with _folder(save) as folder:
        try:
            _front_end(request, toolchain, folder)
            _back_end(request, toolchain, folder, report)
        except _StoppedError as stopped:
            report.faults.append(stopped.fault)
    report.seconds = time.monotonic() - start
    return report


class _StoppedError(Exception):
    """The compilation ends here."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@contextlib.contextmanager
def _folder(save: Path | None) -> Iterator[Path]:
    if save is None:
        with tempfile.TemporaryDirectory(prefix="ag-gemm-compile-") as folder:
            yield Path(folder)
        return
    try:
        save.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {save}: {error} (--save)") from error
    for name in STAGES:
        (save / name).unlink(missing_ok=True)
    yield save.absolute()  # the compilers run in it


def _front_end(request: CompileRequest, toolchain: Toolchain, folder: Path) -> None:
    """Kernel to Linalg, by the driver in the toolchain's Python."""
    order = {
        "agcli": str(KERNELS.parent),
        "kernel": {"file": request.kernel.file, "name": request.kernel.name},
        "soc": request.chip.name,
        "dtype": request.dtype,
        "constants": request.constants(),
        "out": str(folder),
    }
    run = _run([toolchain.python, "-I", str(DRIVER)], toolchain, folder, json.dumps(order))
    try:
        answer = json.loads(run.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        lines = "\n".join(run.stderr.splitlines()[-6:])
        raise EnvironmentFault(
            f"triton-ascend's compiler ended with status {run.returncode} and no answer:\n{lines}\n"
            "('ag-gemm toolchain install --force' makes the toolchain anew)"
        ) from None
    if answer["ok"]:
        return
    if answer["kind"] == "import":
        where = f" ({answer['where']})" if answer["where"] else ""
        raise UsageError(f"cannot load {request.kernel.file}: {answer['message']}{where}")
    if answer["kind"] == "adapter":
        message = f"triton-ascend cannot lower the kernel to Linalg: {answer['message']}"
        raise _StoppedError(Fault("compiler", message, answer["where"]))
    raise _StoppedError(Fault("kernel", answer["message"], answer["where"]))


def _back_end(request: CompileRequest, toolchain: Toolchain, folder: Path, report: CompileReport) -> None:
    """Linalg to HIVM, and what the HIVM says."""
    is_950 = has_udma(request.chip)
    generic = folder / "linalg.generic.mlir"
    try:
        report.stand_ins = _stand_ins(request.decided().transport) if is_950 else []
        lowered = lowering.lower(generic.read_text(encoding="utf-8"), request.chip.name, is_950)
    except MlirError as error:
        raise _StoppedError(Fault("kernel", str(error))) from error
    finally:
        generic.unlink()
    (folder / "lowered.mlir").write_text(lowered, encoding="utf-8")
    temporaries = folder / "temporaries"
    temporaries.mkdir(exist_ok=True)
    output = folder / "kernel.o"
    command = [toolchain.bishengir(is_950), str(folder / "lowered.mlir"), *request.options()]
    run = _run([*command, f"--save-temps={temporaries}", "-o", str(output)], toolchain, folder)
    (folder / "compiler.log").write_text(run.stdout + run.stderr, encoding="utf-8")
    made = temporaries / "module.hivm.opt.mlir"
    text = made.read_text(encoding="utf-8") if made.is_file() else ""
    shutil.rmtree(temporaries)
    if not text:
        _refuse_flag(request.flags, run.stdout + run.stderr)
        _explain_failure(run.stdout + run.stderr, run.returncode, report)
        return
    (folder / "hivm.mlir").write_text(text, encoding="utf-8")
    printer = [toolchain.printer(is_950), "--mlir-print-op-generic", "--mlir-print-debuginfo"]
    printed = _run([*printer, str(folder / "hivm.mlir")], toolchain, folder)
    try:
        report.module = hivm.read_module(printed.stdout, text, bool(report.stand_ins))
    except MlirError as error:
        raise _StoppedError(Fault("compiler", f"the compiled module is not as expected: {error}")) from error
    report.notes += _notes(run.stdout + run.stderr)
    report.faults += audit(report.module)
    _object_file(toolchain, run, output, report)


def _stand_ins(transport: str) -> list[str]:
    """What the published compiler for Ascend 950 cannot lower, and what took its place."""
    texts = ["barrier_all: a barrier of the core's own pipes stood in, since bishengir-compile-a5 cannot lower it"]
    if transport == "store":
        texts.append("symm_at: the local address stood in, since bishengir-compile-a5 cannot lower it")
    return texts


def _notes(log: str) -> list[str]:
    """What the compiler changed by itself to make the kernel fit."""
    return [
        f"{_MEMORY_NAMES.get(match.group(1).lower(), match.group(1))} overflowed at first; the compiler retried with "
        f"{match.group(2).replace('set ', '')}, which is slower"
        for match in _RETRIED.finditer(log)
    ]


def _refuse_flag(flags: tuple[str, ...], log: str) -> None:
    """Raise UsageError if what stopped the compiler is one of the options that the user has added."""
    for match in _BAD_FLAG.finditer(log):
        name = match.group(1).lstrip("-")
        for flag in flags:
            if flag.partition("=")[0].lstrip("-") == name:
                raise UsageError(
                    f"bishengir-compile does not take {flag}: {match.group(0).partition('  Try')[0]} (--flag)"
                )


def _explain_failure(log: str, status: int, report: CompileReport) -> None:
    """Overflows by memory, or the compiler's first error."""
    seen: dict[str, Overflow] = {}
    for name, needed, available in _OVERFLOW.findall(log):
        memory = _MEMORY_NAMES.get(name.lower(), name)
        seen[memory] = Overflow(memory, int(needed) // 8, int(available) // 8)
    report.overflows = list(seen.values())
    for overflow in report.overflows:
        message = (
            f"{overflow.memory} of {report.soc} is too small: {overflow.needed} bytes needed, {overflow.available} "
            f"available, {overflow.needed - overflow.available} too many"
        )
        report.faults.append(Fault("memory", message))
    if not report.overflows:
        errors = [line for line in log.splitlines() if "error:" in line]
        said = [line for line in log.splitlines() if line.strip()]
        message = errors[0].partition("error:")[2].strip() if errors else (said or [f"status {status}"])[0].strip()
        report.faults.append(Fault("compiler", f"AscendNPU-IR cannot compile the kernel: {message}"))


def audit(module: hivm.Module) -> list[Fault]:
    """Whether communication can go on beside computation, and whether cores hand data over without a wait."""
    faults = [
        Fault(
            "overlap",
            "the vector cores wait for the cube cores inside a loop, so they cannot send the next part while this one "
            f"is multiplied: {wait.text}",
            f"hivm.mlir:{wait.line}",
        )
        for wait in module.waits
        if wait.core == "vector" and wait.in_loop
    ]
    if module.shared and not any(wait.core == "vector" for wait in module.waits):
        faults.append(
            Fault(
                "race",
                f"the vector cores use what the cube cores computed, through {module.shared}, and no wait orders the "
                "two: keep what follows tl.dot to a conversion and a store, which the cube does itself",
            )
        )
    return faults


def _object_file(
    toolchain: Toolchain, run: subprocess.CompletedProcess[str], output: Path, report: CompileReport
) -> None:
    """Without hivmc the module is the end; with it, an object file is expected (``kernel_reloc.o`` in some CANNs)."""
    objects = list(output.parent.glob("kernel*.o"))
    if toolchain.hivmc is None or "Cannot find hivmc" in run.stdout + run.stderr:
        report.notes.append("compiled to HIVM; the object file needs hivmc of a CANN installation")
    elif run.returncode == 0 and objects:
        report.object_bytes = objects[0].stat().st_size
    else:
        lines = "\n".join((run.stdout + run.stderr).splitlines()[-4:])
        report.faults.append(Fault("compiler", f"{toolchain.hivmc} failed:\n{lines}"))


def _run(command: list[str], toolchain: Toolchain, folder: Path, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of the compilers. Raises EnvironmentFault if it does not start or end."""
    try:
        return children.run(command, timeout_s=STEP_TIMEOUT_S, stdin=stdin, cwd=folder, env=toolchain.environment())
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{Path(command[0]).name} took more than {STEP_TIMEOUT_S} s") from error
    except OSError as error:
        raise EnvironmentFault(f"{command[0]} cannot be started: {error}; 'ag-gemm toolchain status' looks") from error
