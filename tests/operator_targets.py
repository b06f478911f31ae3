"""What ranks do in the tests of the operator and the reference. Imported by name; each returns JSON data."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from agcli import AllGatherGemm, KernelConfig, reference
from agcli.errors import UsageError
from agcli.rank import RankContext

SMALL = KernelConfig(block_m=16, block_n=32, block_k=32, comm_block_m=8, comm_block_k=32, pvalue=2)
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def inputs(m: int, n: int, k: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B of small integers: every sum is exact, so results must be equal to the last bit."""
    generator = torch.Generator().manual_seed(seed * 100 + dist.get_rank())
    a = torch.randint(-3, 4, (m, k), generator=generator).to(dtype)
    return a, torch.randint(-3, 4, (k, n), generator=generator).to(dtype)


def strided(ctx: RankContext, payload: dict[str, Any]) -> dict[str, bool]:
    """Case 7: the result of every layout of A, B and out against that of contiguous ones."""
    ctx.init_process_group("gloo")
    m, n, k = 48, 96, 80
    a, b = inputs(m, n, k, torch.float16, 1)
    config = SMALL.with_options(transport=payload["transport"])
    right = {}
    with AllGatherGemm(m, n, k, backend=payload["backend"], config=config) as gemm:
        want = reference.all_gather_matmul(a, b)
        wide = torch.full((m, 2 * k), float("nan"), dtype=a.dtype)
        wide[:, :k] = a
        layouts = {
            "contiguous": (a, b),
            "B transposed": (a, b.t().contiguous().t()),
            "A a column slice": (wide[:, :k], b),
            "A transposed": (a.t().contiguous().t(), b),
            "B expanded": (a, b[:, :1].expand(k, n)),
        }
        for name, (x, y) in layouts.items():
            right[name] = torch.equal(gemm(x, y), want if y is b else reference.all_gather_matmul(x, y))
        whole = torch.full((ctx.world * m, n + 7), 5.0, dtype=a.dtype)
        c = gemm(a, b, out=whole[:, 3 : 3 + n])
        right["out a column slice"] = torch.equal(c, want) and bool(
            (whole[:, :3] == 5).all() and (whole[:, -4:] == 5).all()
        )
        transposed = torch.empty((n, ctx.world * m), dtype=a.dtype).t()
        right["out transposed"] = torch.equal(gemm(a, b, out=transposed), want)
        right["buffer without A's strides"] = gemm.plan.symmetric_bytes == 2 * ctx.world * 32 * k * 2
    return right


def wrong_calls(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Cases 3, 5 and 7: the message of each wrong call, and whether the operator still works after all of them."""
    ctx.init_process_group("gloo")
    m, n, k = 8, 32, 48
    a, b = inputs(m, n, k, torch.float16, 2)
    messages = {}
    with AllGatherGemm(m, n, k, backend="cpu", config=SMALL) as gemm:
        want = reference.all_gather_matmul(a, b)
        before = torch.equal(gemm(a, b), want)
        out = torch.empty_like(want)
        for name, operands in {
            "empty A": (a[:0], b),
            "short A": (a[:4], b),
            "B in bf16": (a, b.bfloat16()),
            "A on meta": (a.to("meta"), b),
            "A with a gradient": (a.clone().requires_grad_(), b),
            "out too small": (a, b, out[:1]),
            "out in fp32": (a, b, out.float()),
            "out expanded": (a, b, out[:, :1].expand_as(out)),
        }.items():
            try:
                gemm(*operands)
            except ValueError as error:
                messages[name] = f"{type(error).__name__}: {error}"
        after = torch.equal(gemm(a, b), want)
    try:
        gemm(a, b)
    except ValueError as error:
        messages["closed"] = str(error)
    return {"messages": messages, "before": before, "after": after}


def one_process(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Case 5: dtypes one after the other, and two operators at once; the job's group stays."""
    ctx.init_process_group("gloo")
    right = []
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        a, b = inputs(20, 24, 40, dtype, 3)
        with AllGatherGemm(20, 24, 40, dtype=dtype, backend=payload["backend"], config=SMALL) as gemm:
            c = gemm(a, b)
            right.append(c.dtype == dtype and torch.equal(c, reference.all_gather_matmul(a, b)))
    large = torch.full((1, 1), 300.0, dtype=torch.bfloat16)
    first = AllGatherGemm(1, 1, 1, dtype=torch.bfloat16, backend=payload["backend"])
    a, b = inputs(70, 24, 40, torch.float16, 4)
    second = AllGatherGemm(70, 24, 40, backend=payload["backend"], config=SMALL)
    products = [first(large, large).tolist(), first(large, large).tolist()]
    right.append(torch.equal(second(a, b), reference.all_gather_matmul(a, b)))
    third = AllGatherGemm(3000, 24, 400, backend=payload["backend"], config=SMALL.with_options(pvalue=100))
    right.append(torch.equal(second(a, b), reference.all_gather_matmul(a, b)))
    products.append(first(large, large).tolist())
    for operator in (second, third, first):
        operator.close()
        operator.close()
    total = torch.ones(1)
    dist.all_reduce(total)
    return {"right": right, "products": products, "group": total.item()}


def back_to_back(ctx: RankContext, payload: dict[str, Any]) -> list[bool]:
    """Case 11: new A for each call and no wait between them; equal inputs give equal bits."""
    ctx.init_process_group("gloo")
    m, n, k = payload["m"], 64, 64
    right = []
    with AllGatherGemm(m, n, k, backend="cpu", config=SMALL.with_options(buffer_num=payload["buffer_num"])) as gemm:
        operands = [inputs(m, n, k, torch.float16, seed % 5) for seed in range(payload["repeat"])]
        results = []
        for call, (a, b) in enumerate(operands):
            if ctx.rank == 1 and call % 4 == 0:
                time.sleep(0.01)
            results.append(gemm(a, b))
        for (a, b), c in zip(operands, results, strict=True):
            right.append(torch.equal(c, reference.all_gather_matmul(a, b)))
    return right


def cold_starts(ctx: RankContext, payload: dict[str, Any]) -> list[bool]:
    """Case 13: build and call at once, one rank late before or after the allocation."""
    ctx.init_process_group("gloo")
    right = []
    for n in range(payload["times"]):
        late = ctx.rank == n % ctx.world
        time.sleep(0.02 * (n % 3) if late and n % 2 else 0)
        gemm = AllGatherGemm(16, 16, 16, backend="cpu", config=SMALL)
        time.sleep(0.02 * (n % 3) if late and not n % 2 else 0)
        a, b = inputs(16, 16, 16, torch.float16, n)
        right.append(torch.equal(gemm(a, b), reference.all_gather_matmul(a, b)))
        gemm.close()
    return right


def disagreeing(ctx: RankContext, payload: dict[str, Any]) -> list[str]:
    """One rank's arguments differ, or cannot be right: the message, on every rank; then an operator that works."""
    ctx.init_process_group("gloo")
    odd = ctx.rank == 1
    messages = []
    for arguments in (
        {"m": 64 if odd else 32},
        {"m": 0 if odd else 32},
        {"m": 0},
        {"m": 32, "config": SMALL if odd else None},
        {"m": 32, "dtype": torch.float32},
        {"m": 32, "backend": "tpu"},
        {"m": 32, "soc": "Ascend310"},
        {"m": 32, "config": KernelConfig(block_m=256, block_n=256)},
    ):
        try:
            AllGatherGemm(n=16, k=16, **{"backend": "cpu", **arguments})  # type: ignore[arg-type]
        except UsageError as error:
            messages.append(str(error))
    a, b = inputs(16, 16, 16, torch.float16, 1)
    with AllGatherGemm(16, 16, 16, backend="cpu", config=SMALL) as gemm:
        messages.append(str(torch.equal(gemm(a, b), reference.all_gather_matmul(a, b))))
    return messages


def subgroup(ctx: RankContext, payload: dict[str, Any]) -> Any:
    """Ranks 0 and 2 of three; rank 1 takes no part."""
    ctx.init_process_group("gloo")
    group = dist.new_group([0, 2])
    if ctx.rank == 1:
        return None
    a, b = inputs(20, 24, 40, torch.float16, 5)
    with AllGatherGemm(20, 24, 40, group=group, backend="cpu", config=SMALL) as gemm:
        return [gemm.plan.problem.world, torch.equal(gemm(a, b), reference.all_gather_matmul(a, b, group))]


def gathered(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """The reference's gather and products, against torch's own on what every rank can compute alone."""
    ctx.init_process_group("gloo")
    found = {}
    for name, dtype in DTYPES.items():
        shards = [torch.full((3, 5), rank + 1.0, dtype=dtype) for rank in range(ctx.world)]
        whole = reference.gather(shards[ctx.rank].t().contiguous().t())
        b = torch.arange(10.0).reshape(5, 2).to(dtype)
        c = reference.all_gather_matmul(shards[ctx.rank], b)
        found[name] = [
            torch.equal(whole, torch.cat(shards)),
            torch.equal(c, (torch.cat(shards).double() @ b.double()).to(dtype)),
        ]
    return found
