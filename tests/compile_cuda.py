"""Compile the CUDA kernels for Hopper without a GPU: one line of JSON, ``{"described": bytes of shared memory, ...}``.

Run as a program: it needs the real Triton, and other tests of this suite put a stand-in in its place.
"""

from __future__ import annotations

import json
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from agcli.backends.cuda_tuning import CudaConfig, choose
from agcli.kernels.allgather_gemm_cuda import allgather_gemm_kernel
from agcli.kernels.allgather_gemm_cuda_any import allgather_gemm_any_kernel
from agcli.problem import Problem

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "bases_ptr": "*i64",
    "epochs_ptr": "*i32",
    "turns_ptr": "*i32",
    "error_ptr": "*i32",
    "partial_ptr": "*fp32",
    "a_ptr": "*fp16",
    "b_ptr": "*fp16",
    "c_ptr": "*fp16",
}
WIDE = ("shard_bytes", "flags_offset", "limit_ns")


def signature(names: list[str], constants: dict[str, Any], descriptors: dict[str, str]) -> dict[str, str]:
    """Triton's type of every argument."""
    return {
        name: "constexpr"
        if name in constants
        else descriptors.get(name) or POINTERS.get(name) or ("i64" if name in WIDE else "i32")
        for name in names
    }


def described(config: CudaConfig, even_m: bool) -> int:
    """Compile the kernel with tensor descriptors; bytes of shared memory."""

    def descriptor(rows: int, cols: int) -> str:
        return f"tensordesc<fp16[{rows}, {cols}],{gl.NVMMASharedLayout.get_default_for([rows, cols], gl.float16)!r}>"

    descriptors = {
        "a_desc": descriptor(config.block_m, config.block_k),
        "gathered_desc": descriptor(config.block_m, config.block_k),
        "b_desc": descriptor(config.block_k, config.block_n),
        "c_desc": descriptor(config.block_m, config.block_n // config.epilogue_parts),
    }
    constants = {"C": config, "WORLD": 2, "EVEN_M": even_m}
    names = allgather_gemm_kernel.arg_names
    source = GluonASTSource(allgather_gemm_kernel, signature(names, constants, descriptors), constants)
    options = {"num_warps": config.warps, "maxnreg": config.max_registers}
    return int(triton.compile(source, target=HOPPER, options=options).metadata.shared)


def addressed() -> int:
    """Compile the kernel with pointers; bytes of shared memory."""
    constants = {"C": choose(Problem(1000, 999, 1001, 2)), "WORLD": 2, "BLOCK_M": 64, "BLOCK_N": 128, "BLOCK_K": 32}
    names = allgather_gemm_any_kernel.arg_names
    source = ASTSource(allgather_gemm_any_kernel, signature(names, constants, {}), constants)
    return int(triton.compile(source, target=HOPPER, options={"num_warps": 8}).metadata.shared)


def main() -> None:
    """Every path of both kernels once."""
    small, large = choose(Problem(128, 4096, 4096, 2)), choose(Problem(4096, 4096, 4096, 2))
    split = choose(Problem(128, 4096, 4096, 2), block_n=128, split_k=2)
    used = {
        "large": described(large, even_m=True),
        "ragged": described(small, even_m=False),
        "split": described(split, even_m=True),
        "addressed": addressed(),
    }
    print(json.dumps(used))


if __name__ == "__main__":
    main()
