"""The real kernel, and faulty ones, through the real compilers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agcli.chips import chip_by_name
from agcli.compiler.compile import CompileReport, CompileRequest, KernelSource, compile_kernel
from agcli.compiler.sweep import nearest_fits
from agcli.errors import EnvironmentFault, UsageError
from agcli.problem import KernelConfig, default_config
from agcli.toolchain import Toolchain

B3 = chip_by_name("Ascend910B3")
PR = chip_by_name("Ascend950PR_9579")
Changed = Callable[[str, str], KernelSource]
SMALL = KernelConfig(block_m=64, block_n=64, block_k=64)


def used(report: CompileReport) -> dict[str, tuple[int, int, bool]]:
    """KiB used and available, and whether the buffers are double, of the planned memories."""
    assert report.module is not None, report.faults
    return {m.memory: (m.used // 1024, m.available // 1024, m.doubled) for m in report.module.memories if m.planned}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("transport", ["store", "putmem"])
@pytest.mark.parametrize("soc", [
    "Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910_9392", "Ascend910_9362",
])  # fmt: skip
def test_the_kernel_fits_every_chip_with_its_defaults(
    soc: str, transport: str, dtype: str, toolchain: Toolchain
) -> None:
    chip = chip_by_name(soc)
    config = default_config(chip).with_options(transport=transport)
    report = compile_kernel(CompileRequest(chip, config, dtype), toolchain)
    assert report.faults == []
    assert used(report) == {"L1": (384, 512, True), "L0C": (128, 128, False), "UB": (10, 192, False)}
    assert report.module is not None
    assert report.module.cores == {"cube": chip.cube_cores, "vector": chip.vector_cores}
    assert (report.module.waits, report.module.shared, report.stand_ins) == ([], "", [])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("transport", ["store", "putmem"])
def test_on_ascend_950_it_fits_and_says_what_stands_in(transport: str, dtype: str, toolchain: Toolchain) -> None:
    report = compile_kernel(CompileRequest(PR, default_config(PR).with_options(transport=transport), dtype), toolchain)
    assert report.faults == []
    assert used(report) == {"L1": (256, 512, True), "L0C": (128, 256, True), "UB": (10, 248, False)}
    assert report.stand_ins[0].startswith("barrier_all: a barrier of the core's own pipes stood in")
    assert len(report.stand_ins) == (2 if transport == "store" else 1)


def test_each_kind_of_core_does_its_part(toolchain: Toolchain) -> None:
    report = compile_kernel(CompileRequest(B3, KernelConfig(transport="putmem")), toolchain)
    assert report.module is not None
    cube, vector = report.module.functions
    assert (cube.core, vector.core) == ("cube", "vector")
    assert cube.operations == {"loads": 2, "products": 1, "stores": 1, "barriers": 1, "fills": 2}
    assert vector.operations == {"loads": 1, "stores": 1, "putmem": 1, "barriers": 1, "fills": 1}


def test_the_compilers_own_waits_end_the_overlap(toolchain: Toolchain, tmp_path: Path) -> None:
    request = CompileRequest(B3, KernelConfig(transport="putmem"), auto_block_sync=True)
    report = compile_kernel(request, toolchain, tmp_path)
    (fault,) = report.faults
    assert fault.kind == "overlap"
    assert "sync_block_wait[<VECTOR>" in fault.message
    line = int(fault.where.removeprefix("hivm.mlir:"))
    assert "sync_block_wait[<VECTOR>" in (tmp_path / "hivm.mlir").read_text().splitlines()[line - 1]


def test_without_its_flag_ascend_950_converts_on_vector_cores_unordered(toolchain: Toolchain) -> None:
    report = compile_kernel(
        CompileRequest(PR, default_config(PR), flags=("--disable-hfusion-vectorize=false",)), toolchain
    )
    assert [fault.kind for fault in report.faults] == ["race"]
    assert report.module is not None
    assert report.module.shared == "UB"


@pytest.mark.parametrize(
    ("config", "memory", "needed", "available"),
    [
        (KernelConfig(block_m=256, block_n=256, block_k=256), "L0C", 256, 128),
        (KernelConfig(block_k=1024), "L1", 768, 512),
        (KernelConfig(comm_block_m=400, comm_block_k=512), "UB", 400, 192),
    ],
)
def test_an_overflow_names_the_memory_and_what_fits_instead(
    config: KernelConfig, memory: str, needed: int, available: int, toolchain: Toolchain
) -> None:
    request = CompileRequest(B3, config)
    report = compile_kernel(request, toolchain)
    assert [(o.memory, o.needed, o.available) for o in report.overflows] == [(memory, needed * 1024, available * 1024)]
    assert [fault.kind for fault in report.faults] == ["memory"]
    suggestions = nearest_fits(request, report, toolchain)
    assert suggestions
    for suggestion in suggestions:
        assert compile_kernel(CompileRequest(B3, suggestion), toolchain).fits


def test_blocks_that_fit_once_only_are_single_buffered(toolchain: Toolchain) -> None:
    request = CompileRequest(B3, KernelConfig(block_k=512))
    assert "--enable-auto-multi-buffer=False" in request.options()
    assert used(compile_kernel(request, toolchain))["L1"] == (384, 512, False)
    asked = compile_kernel(CompileRequest(B3, KernelConfig(block_k=512), multibuffer=True), toolchain)
    assert asked.notes[0].startswith("L1 overflowed at first; the compiler retried")


@pytest.mark.parametrize(
    ("old", "new", "message", "line"),
    [
        ("primitives.barrier_all()", "primitives.barrier_every()", "primitives.barrier_every does not exist", True),
        ("accumulator += tl.dot(a, b)", "accumulator += tl.dot(a, oops)", "oops is not defined", True),
        ("symm_at(peer_mem_ptr, ", "symm_at(peer_mem_ptr + tl.arange(0, 16), ", "symm_at takes scalars", True),
        ('    TRANSPORT: tl.constexpr,  # "putmem" or "store"\n', "    TRANSPORT: tl.constexpr, MORE: tl.constexpr,\n",
         "meta-parameter MORE has no value: give it a default", False),
    ],
)  # fmt: skip
def test_a_faulty_kernel_is_explained_with_its_line(
    old: str, new: str, message: str, line: bool, changed_kernel: Changed, toolchain: Toolchain
) -> None:
    kernel = changed_kernel(old, new)
    report = compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain)
    (fault,) = report.faults
    assert fault.kind == "kernel"
    assert message in fault.message
    if line:
        file, _, number = fault.where.rpartition(":")
        assert file == kernel.file
        assert new.splitlines()[-1].strip() in Path(file).read_text().splitlines()[int(number) - 1]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("row = tile_m * COMM_BLOCK_SIZE_M", "row = = tile_m", "syntax error: invalid syntax"),
        ("import triton\n", "import triton\nimport no_such_module\n", "No module named 'no_such_module'"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_refused_with_its_line(
    old: str, new: str, message: str, changed_kernel: Changed, toolchain: Toolchain
) -> None:
    kernel = changed_kernel(old, new)
    lines = Path(kernel.file).read_text().splitlines()
    line = next(i for i, text in enumerate(lines, 1) if new.splitlines()[-1].strip() in text)
    with pytest.raises(UsageError) as error:
        compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain)
    assert str(error.value).startswith(f"cannot load {kernel.file}: ")
    assert message in str(error.value)
    assert str(error.value).endswith(f"({kernel.file}:{line})")


DIST_KERNEL = Path(__file__).parents[1] / "check" / "kernels" / "seed_gemm.py"


def test_a_kernel_with_the_imports_of_triton_distributed_compiles(toolchain: Toolchain, tmp_path: Path) -> None:
    """The kernel of the defining document, in a file that has its host code too."""
    host = "import torch\nimport shmem as ash\nfrom triton.backends.ascend.driver import NPUUtils\n"
    host += "@torch.no_grad()\ndef host(dtype=torch.float16):\n    return NPUUtils().get_aicore_num()\n\n"
    file = tmp_path / "seed_gemm.py"
    file.write_text(host + DIST_KERNEL.read_text().replace(
        "            c = accumulator.to(",
        '            tl.extra.cann.extension.compile_hint(accumulator, "matmul_at_least_once")\n'
        "            c = accumulator.to(",
    ))  # fmt: skip
    assert "compile_hint" in file.read_text()
    kernel = KernelSource(str(file), "kernel_allgather_gemm")
    report = compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain)
    assert report.faults == []
    assert used(report) == {"L1": (384, 512, True), "L0C": (128, 128, False), "UB": (10, 192, False)}
    assert report.module is not None
    cube, vector = report.module.functions
    assert (cube.operations["products"], vector.operations["putmem"]) == (1, 1)


CALLS = ["libshmem_device.quiet()", "dl.wait(peer_mem_ptr, 1)", "dl.rank()", "libother.barrier_all()"]


@pytest.mark.parametrize("call", CALLS)
def test_a_primitive_of_triton_distributed_that_cannot_be_lowered_is_named(
    call: str, toolchain: Toolchain, tmp_path: Path
) -> None:
    file = tmp_path / "seed_gemm.py"
    text = DIST_KERNEL.read_text().replace("import libshmem_device", "import libother, libshmem_device")
    file.write_text(text.replace("    pid = tl.program_id", f"    {call}\n    pid = tl.program_id", 1))
    kernel = KernelSource(str(file), "kernel_allgather_gemm")
    (fault,) = compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain).faults
    name = call.partition("(")[0].replace("dl.", "language.")
    assert f"{name} cannot be compiled without an NPU; the primitives that can be are" in fault.message
    assert fault.where.startswith(f"{file}:")
    assert call in file.read_text().splitlines()[int(fault.where.rpartition(":")[2]) - 1]


def test_a_crash_of_the_adapter_is_explained(toolchain: Toolchain, tmp_path: Path) -> None:
    file = tmp_path / "seed_gemm.py"
    own = "remote_ptr = dl.symm_at(peer_mem_ptr, rank)\n"
    text = DIST_KERNEL.read_text()
    indent = " " * (text.index(own) - text.rindex("\n", 0, text.index(own)) - 1)
    other = f"{indent}if block_id_m > 3:\n{indent}    remote_ptr = dl.symm_at(peer_mem_ptr, rank + 1)\n"
    file.write_text(text.replace(own, own + other))
    kernel = KernelSource(str(file), "kernel_allgather_gemm")
    (fault,) = compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain).faults
    assert "its adapter crashed (SIGSEGV)" in fault.message
    assert "choose the rank first, then take symm_at of it once" in fault.message


def test_a_file_without_the_kernel(toolchain: Toolchain) -> None:
    kernel = KernelSource(name="nothing")
    with pytest.raises(UsageError, match=r"allgather_gemm.py: it has no @triton.jit function called 'nothing'"):
        compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain)


def test_symm_at_of_an_offset_pointer_compiles(changed_kernel: Changed, toolchain: Toolchain) -> None:
    kernel = changed_kernel("symm_at(peer_mem_ptr, ", "symm_at(peer_mem_ptr + slot_row, ")
    assert compile_kernel(CompileRequest(B3, KernelConfig(), kernel=kernel), toolchain).fits


def test_arithmetic_on_the_product_moves_it_to_vector_cores(changed_kernel: Changed, toolchain: Toolchain) -> None:
    kernel = changed_kernel("c = accumulator.to(", "c = tl.maximum(accumulator, 0.0).to(")
    racing = compile_kernel(CompileRequest(B3, SMALL, kernel=kernel), toolchain)
    assert [fault.kind for fault in racing.faults] == ["race"]
    waiting = compile_kernel(CompileRequest(B3, SMALL, kernel=kernel, auto_block_sync=True), toolchain)
    assert {fault.kind for fault in waiting.faults} == {"overlap"}


def test_the_stages_are_kept_and_old_ones_are_not(toolchain: Toolchain, tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    compile_kernel(CompileRequest(B3, KernelConfig()), toolchain, folder)
    assert {path.name for path in folder.iterdir()} == {
        "ttir.mlir", "linalg.mlir", "lowered.mlir", "hivm.mlir", "compiler.log",
    }  # fmt: skip
    assert "tt.dot" in (folder / "ttir.mlir").read_text()
    assert "linalg.matmul" in (folder / "linalg.mlir").read_text()
    compile_kernel(CompileRequest(B3, KernelConfig(block_m=256)), toolchain, folder)
    assert not (folder / "hivm.mlir").exists()


def test_a_chip_that_the_compiler_does_not_know_is_named(toolchain: Toolchain) -> None:
    report = compile_kernel(CompileRequest(chip_by_name("Ascend910_9363"), KernelConfig()), toolchain)
    assert "Cannot find option named 'Ascend910_9363'" in report.faults[0].message


def test_with_hivmc_an_object_file_is_made(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's last compiler is not to be had here: a script stands in that only writes its output file."""
    hivmc = tmp_path / "bin" / "hivmc"
    hivmc.parent.mkdir()
    hivmc.write_text('#!/bin/sh\nwhile [ $# -gt 0 ]; do if [ "$1" = -o ]; then printf object > "$2"; fi; shift; done\n')
    hivmc.chmod(0o755)
    with_hivmc = Toolchain(**{**toolchain.__dict__, "hivmc": str(hivmc)})
    assert compile_kernel(CompileRequest(B3, KernelConfig()), with_hivmc).object_bytes == 6
    hivmc.write_text('#!/bin/sh\ncase "$1" in --version) ;; *) echo no licence >&2; exit 9;; esac\n')
    (fault,) = compile_kernel(CompileRequest(B3, KernelConfig()), with_hivmc).faults
    assert "hivmc failed" in fault.message


def test_compilers_that_do_not_start_are_the_environments_fault(tmp_path: Path) -> None:
    gone = Toolchain("private", str(tmp_path / "python"), str(tmp_path), "3.2.0", "1.2.0")
    with pytest.raises(EnvironmentFault, match="cannot be started"):
        compile_kernel(CompileRequest(B3, KernelConfig()), gone)


def test_a_driver_that_breaks_is_the_environments_fault(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 'undefined symbol: x' >&2\nexit 1\n")
    python.chmod(0o755)
    broken = Toolchain("private", str(python), str(tmp_path), "3.2.0", "1.2.0")
    with pytest.raises(EnvironmentFault, match="undefined symbol: x"):
        compile_kernel(CompileRequest(B3, KernelConfig()), broken)


@pytest.mark.parametrize(
    "text", ["kernel.py", "kernel.py:not a name", "/no/such/file.py:kernel", "pyproject.toml:kernel"]
)
def test_a_kernel_is_given_as_file_and_name(text: str) -> None:
    with pytest.raises(UsageError, match="--kernel"):
        KernelSource.from_option(text)
