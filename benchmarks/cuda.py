"""Measure the fused operator against its floor and its peers on the GPUs of one host.

    PYTHONPATH=. python benchmarks/cuda.py            the ten shapes, all implementations interleaved, figures of merit
    ... --check                                       correctness instead: random data, ranks delayed at random
    ... --shapes 0,1 --configs "block_n=128;stages=3" several configurations of ``CudaConfig`` beside the floor

Device time: every rank's stream is held back while its host queues one call of one implementation; then a barrier on
the devices, an event, the call, an event. The median over repetitions, the slowest rank. Implementations alternate
within each repetition, so that a drift of clocks meets all of them alike. Host time: the Python time to queue a call,
the device held back.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import torch.multiprocessing
from cuda_common import DTYPES, SHAPES, Config, Shape, captured_alone, cuda, geomean, parse_config, relative_error

from agcli.backends.cuda_engine import CudaEngine, symmetric_bytes, symmetric_memory
from agcli.backends.cuda_tuning import choose
from agcli.problem import Problem

CHECKS = [
    (128, 4096, 4096, "fp16"),
    (512, 4096, 4096, "bf16"),
    (1024, 5504, 4096, "fp16"),
    (1000, 999, 1001, "bf16"),
    (1000, 1000, 1000, "fp16"),
    (1, 8, 8, "fp16"),
    (3, 5, 7, "bf16"),
    (130, 264, 72, "fp16"),
    (2048, 4096, 512, "bf16"),
]
PEERS = ["nccl", "nccl graph", "torch fused", "torch fused graph"]
HOLD_CYCLES = 2_500_000  # of the device clock: longer than any implementation's host time
WAIT_LIMIT_S = 20.0


def make_engine(problem: Problem, rank: int, overrides: Config) -> CudaEngine:
    """The fused operator. Collective."""
    config = choose(problem, **overrides)
    memory = symmetric_memory(symmetric_bytes(problem, config)[1], dist.group.WORLD, torch.device("cuda", rank))
    return CudaEngine(problem, config, memory, WAIT_LIMIT_S)


class Bench:
    """One rank's tensors and implementations for one shape."""

    def __init__(self, shape: Shape, rank: int, world: int, configs: list[Config]) -> None:
        m, n, k = shape
        device = torch.device("cuda", rank)
        group: Any = dist.group.WORLD
        generator = torch.Generator(device).manual_seed(1000 + rank)
        self.shape, self.rank, self.world = shape, rank, world
        # Symmetric, because torch's fused operator wants its input so; for all others it is memory like any other.
        self.a = symm_mem.empty(m, k, dtype=torch.float16, device=device)
        self.a.copy_(torch.randn(m, k, device=device, generator=generator) / 8)
        self.handle = symm_mem.rendezvous(self.a, group=group.group_name)
        self.b = (torch.randn(k, n, device=device, generator=generator) / 8).half()
        self.c = torch.empty(world * m, n, dtype=torch.float16, device=device)
        self.gathered = torch.empty(world * m, k, dtype=torch.float16, device=device)
        self.out = torch.empty_like(self.c)
        problem = Problem(m, n, k, world)
        self.engines = [make_engine(problem, rank, config) for config in configs]

    def eager(self) -> dict[str, Callable[[], object]]:
        """Implementations by name."""
        group: Any = dist.group.WORLD
        found: dict[str, Callable[[], object]] = {}
        for i, engine in enumerate(self.engines):
            found["fused" if i == 0 else f"fused {i}"] = partial(engine.run, self.a, self.b, self.c)
        found["gemm"] = lambda: torch.mm(self.gathered, self.b, out=self.out)
        found["allgather"] = lambda: dist.all_gather_into_tensor(self.gathered, self.a)
        found["nccl"] = lambda: (
            dist.all_gather_into_tensor(self.gathered, self.a),
            torch.mm(self.gathered, self.b, out=self.out),
        )
        found["torch fused"] = lambda: torch.ops.symm_mem.fused_all_gather_matmul(self.a, [self.b], 0, group.group_name)
        return found

    def close(self) -> None:
        """Free what the engines hold. Collective."""
        for engine in self.engines:
            engine.close()


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """``captured_alone`` on all ranks. Collective."""
    replay = captured_alone(call)
    dist.barrier()
    return replay


def device_ms(calls: dict[str, Callable[[], object]], handle: Any, repeats: int) -> dict[str, float]:
    """Median device time of each call in milliseconds, of the slowest rank."""
    for call in calls.values():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        dist.barrier()
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for repeat in range(repeats):
        for name in order[repeat % len(order) :] + order[: repeat % len(order)]:
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(HOLD_CYCLES)
            handle.barrier(channel=0)
            start.record()
            calls[name]()
            end.record()
            end.synchronize()
            times[name].append(start.elapsed_time(end))
    medians = torch.tensor([statistics.median(times[name]) for name in order], device="cuda")
    dist.all_reduce(medians, dist.ReduceOp.MAX)
    return dict(zip(order, medians.tolist(), strict=True))


def host_us(calls: dict[str, Callable[[], object]], count: int = 40) -> dict[str, float]:
    """Host time to queue one call, in microseconds, of the slowest rank; the device is held back meanwhile."""
    result = []
    for call in calls.values():
        torch.cuda.synchronize()
        dist.barrier()
        cuda._sleep(60_000_000)
        begin = time.perf_counter()
        for _ in range(count):
            call()
        result.append((time.perf_counter() - begin) / count * 1e6)
    torch.cuda.synchronize()
    slowest = torch.tensor(result, device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return dict(zip(calls, slowest.tolist(), strict=True))


def check(rank: int, world: int, repeats: int, overrides: Config) -> bool:
    """Compare with the fp32 product at every shape of CHECKS, with fresh data, poisoned slots and random delays."""
    passed = True
    device = torch.device("cuda", rank)
    for m, n, k, dtype in CHECKS:
        problem = Problem(m, n, k, world, dtype)
        engine = make_engine(problem, rank, overrides)
        worst = 0.0
        chance = random.Random(rank)
        for repeat in range(repeats):
            a = (torch.randn(m, k, device=device) / 8).to(DTYPES[dtype])
            b = (torch.randn(k, n, device=device) / 8).to(DTYPES[dtype])
            c = torch.full((world * m, n), float("nan"), device=device, dtype=DTYPES[dtype])
            gathered = torch.empty(world * m, k, device=device, dtype=DTYPES[dtype])
            dist.all_gather_into_tensor(gathered, a)
            if repeat % 3 == 0:
                torch.cuda.synchronize()
                engine.poison()
            if chance.random() < 0.5:
                cuda._sleep(chance.randrange(3_000_000))
            engine.run(a, b, c)
            worst = max(worst, relative_error(c, gathered, b))
        # A burst without any wait in between, the same data: slots and flags must keep up.
        burst = [torch.full_like(c, float("nan")) for _ in range(6)]
        for out in burst:
            if chance.random() < 0.5:
                cuda._sleep(chance.randrange(300_000))
            engine.run(a, b, out)
        torch.cuda.synchronize()
        engine.check()
        same = all(torch.equal(out, c) for out in burst)
        verdict = torch.tensor([worst, 0.0 if same else 1.0], device=device)
        dist.all_reduce(verdict, dist.ReduceOp.MAX)
        good = verdict[0].item() < (2e-2 if dtype == "bf16" else 2e-3) and verdict[1].item() == 0
        passed = passed and good
        if rank == 0:
            figures = f"error {verdict[0].item():.2e}, repeatable {verdict[1].item() == 0}"
            print(f"check {m}x{n}x{k} {dtype}: {figures}: {'ok' if good else 'WRONG'}", flush=True)
        engine.close()
    return passed


def table(rank: int, world: int, shapes: list[Shape], repeats: int) -> None:
    """All implementations at all shapes; figures of merit at the end."""
    floors, peers = [], []
    if rank == 0:
        print(f"{torch.cuda.get_device_name()} x {world}, torch {torch.__version__}, CUDA {torch.version.cuda}; ms")
        head = [
            "M",
            "N",
            "K",
            "gemm",
            "allgather",
            "fused",
            "fused graph",
            *PEERS,
            "fused/gemm",
            "best peer/fused",
            "host us",
        ]
        print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for shape in shapes:
        bench = Bench(shape, rank, world, [{}])
        eager = bench.eager()
        calls = eager | {f"{name} graph": captured(eager[name]) for name in ("fused", "nccl", "torch fused")}
        ms = device_ms(calls, bench.handle, repeats)
        us = host_us({"fused": eager["fused"]})["fused"]
        error = relative_error(bench.c, bench.gathered, bench.b)
        bench.close()
        best = min(ms[name] for name in PEERS)
        floors.append(ms["fused"] / ms["gemm"])
        peers.append(best / ms["fused"])
        if rank == 0:
            cells = [f"{ms[name]:.4f}" for name in ("gemm", "allgather", "fused", "fused graph", *PEERS)]
            cells += [f"{floors[-1]:.3f}", f"{peers[-1]:.3f}", f"{us:.1f}"]
            print(
                "| " + " | ".join([*map(str, shape), *cells]) + " |" + ("" if error < 2e-3 else f" WRONG {error:.1e}"),
                flush=True,
            )
    if rank == 0:
        print(f"geometric means: fused/gemm {geomean(floors):.3f}, best peer/fused {geomean(peers):.3f}")


def compare(rank: int, world: int, shapes: list[Shape], configs: list[Config], repeats: int) -> None:
    """Several configurations of the fused kernel beside the floor."""
    for shape in shapes:
        bench = Bench(shape, rank, world, configs)
        dist.all_gather_into_tensor(bench.gathered, bench.a)
        calls = {name: call for name, call in bench.eager().items() if name.startswith("fused") or name == "gemm"}
        errors = []
        for name, call in calls.items():
            bench.c.fill_(float("nan"))
            call()
            if name != "gemm":
                errors.append(relative_error(bench.c, bench.gathered, bench.b))
        ms = device_ms(calls, bench.handle, repeats)
        bench.close()
        if rank == 0:
            print(f"{shape}: gemm {ms['gemm']:.4f}", flush=True)
            for i, config in enumerate(configs):
                name = "fused" if i == 0 else f"fused {i}"
                print(f"    {ms[name]:.4f} {ms[name] / ms['gemm']:.3f} error {errors[i]:.1e} {config}", flush=True)


def rank_main(rank: int, world: int, port: int, args: argparse.Namespace) -> None:
    """One rank."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world, device_id=torch.device("cuda", rank))
    shapes = [SHAPES[int(i)] for i in args.shapes.split(",")] if args.shapes else SHAPES
    configs = [parse_config(text) for text in args.configs.split(";")]
    good = True
    if args.check:
        results = [check(rank, world, args.repeats, config) for config in configs]
        good = all(results)
    elif args.configs:
        compare(rank, world, shapes, configs, args.repeats)
    else:
        table(rank, world, shapes, args.repeats)
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(0 if good else 1)


def main() -> None:
    """Start one process a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--shapes", default="", help="indices into the ten shapes, with commas")
    parser.add_argument(
        "--configs", default="", help="fields of CudaConfig, key=value with commas; several with semicolons"
    )
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    processes: Any = torch.multiprocessing
    processes.spawn(rank_main, (args.world, port, args), args.world)


if __name__ == "__main__":
    main()
