"""Kernels without cores or peers, which Triton's own interpreter can run too, with their cases.

``cases()`` gives, for each, the arguments as tensors and numbers; outputs are the tensors named ``*out*``.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def add_vectors(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        mask = offs < n
        tl.store(out_ptr + offs, tl.load(x_ptr + offs, mask=mask) + tl.load(y_ptr + offs, mask=mask), mask=mask)


@triton.jit
def multiply(
    a_ptr, b_ptr, out_ptr, M, N, K, stride_am, stride_ak, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    offs_m = tl.arange(0, BM)
    offs_n = tl.arange(0, BN)
    accumulator = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        offs_k = k * BK + tl.arange(0, BK)
        a_mask = (offs_m[:, None] < M) & (offs_k[None, :] < K)
        a = tl.load(a_ptr + offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak, mask=a_mask, other=0.0)
        b_mask = (offs_k[:, None] < K) & (offs_n[None, :] < N)
        b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :], mask=b_mask, other=0.0)
        accumulator = tl.dot(a, b, accumulator)
    result = accumulator.to(out_ptr.dtype.element_ty)
    mask = (offs_m[:, None] < M) & (offs_n[None, :] < N)
    tl.store(out_ptr + offs_m[:, None] * N + offs_n[None, :], result, mask=mask)


@triton.jit
def permute_rows(x_ptr, order_ptr, out_ptr, rows, cols, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    for row in range(0, rows):
        source = tl.load(order_ptr + row)
        values = tl.load(x_ptr + source * cols + offs, mask=offs < cols, other=-1.0)
        tl.store(out_ptr + row * cols + offs, values, mask=offs < cols)


@triton.jit
def scatter(x_ptr, index_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    mask = offs < n
    index = tl.load(index_ptr + offs, mask=mask, other=0)
    values = tl.load(x_ptr + offs, mask=mask, other=0.0)
    tl.store(out_ptr + index, tl.where(values > 0, values, values * 0.5), mask=mask & (offs % 3 != 1))


@triton.jit
def softmax(x_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=float("-inf")).to(tl.float32)
    shifted = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * cols + offs, shifted / tl.sum(shifted, axis=0), mask=offs < cols)


@triton.jit
def count(x_ptr, out_ptr, n, bins, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0)
    tl.atomic_add(out_ptr + x % bins, tl.zeros((BLOCK,), tl.int32) + 1, mask=offs < n)


@triton.jit
def divide(x_ptr, out_ptr, quotient, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    number = tl.load(x_ptr)
    tl.store(out_ptr + offs, x // quotient + x % quotient * 1000 + number // quotient)


def cases():
    """``name -> (kernel, programs, arguments)``."""
    torch.manual_seed(7)
    half, single = torch.float16, torch.float32
    order = torch.randperm(9, dtype=torch.int32)
    wide = torch.randn(48, 200).to(half)
    return {
        "add": (
            add_vectors,
            3,
            {
                "x_ptr": torch.randn(1000),
                "y_ptr": torch.randn(1000),
                "out_ptr": torch.empty(1000),
                "n": 1000,
                "BLOCK": 64,
            },
        ),
        "multiply": (
            multiply,
            1,
            {
                "a_ptr": torch.randn(30, 70).to(half),
                "b_ptr": torch.randn(70, 20).to(half),
                "out_ptr": torch.zeros(30, 20, dtype=half),
                "M": 30,
                "N": 20,
                "K": 70,
                "stride_am": 70,
                "stride_ak": 1,
                "BM": 32,
                "BN": 32,
                "BK": 16,
            },
        ),
        "multiply_strided": (
            multiply,
            1,
            {
                "a_ptr": wide[:30, 10:80],
                "b_ptr": torch.randn(70, 20).to(half),
                "out_ptr": torch.zeros(30, 20),
                "M": 30,
                "N": 20,
                "K": 70,
                "stride_am": 200,
                "stride_ak": 1,
                "BM": 32,
                "BN": 32,
                "BK": 16,
            },
        ),
        "permute_rows": (
            permute_rows,
            1,
            {
                "x_ptr": torch.randn(9, 13),
                "order_ptr": order,
                "out_ptr": torch.zeros(9, 13),
                "rows": 9,
                "cols": 13,
                "BLOCK": 16,
            },
        ),
        "scatter": (
            scatter,
            1,
            {
                "x_ptr": torch.randn(30),
                "index_ptr": torch.randperm(30, dtype=torch.int32),
                "out_ptr": torch.zeros(30),
                "n": 30,
                "BLOCK": 32,
            },
        ),
        "softmax": (
            softmax,
            5,
            {
                "x_ptr": torch.randn(5, 27).to(half),
                "out_ptr": torch.zeros(5, 27, dtype=single),
                "cols": 27,
                "BLOCK": 32,
            },
        ),
        "count": (
            count,
            4,
            {
                "x_ptr": torch.randint(0, 100, (60,), dtype=torch.int32),
                "out_ptr": torch.zeros(7, dtype=torch.int32),
                "n": 60,
                "bins": 7,
                "BLOCK": 16,
            },
        ),
        "divide": (
            divide,
            1,
            {
                "x_ptr": torch.randint(-99, 99, (16,), dtype=torch.int32),
                "out_ptr": torch.zeros(16, dtype=torch.int32),
                "quotient": 7,
                "BLOCK": 16,
            },
        ),
    }


def outputs(arguments):
    """The tensors that a kernel wrote."""
    return {name: value for name, value in arguments.items() if "out" in name}


def main(path):
    """Run every case in the interpreter (TRITON_INTERPRET=1) and save what came out."""
    results = {}
    for name, (kernel, programs, arguments) in cases().items():
        kernel[(programs,)](**arguments)
        results[name] = outputs(arguments)
    torch.save(results, path)


if __name__ == "__main__":
    import sys

    main(sys.argv[1])
