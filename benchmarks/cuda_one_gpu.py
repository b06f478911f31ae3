"""The CUDA kernel's speed on one GPU, with a modelled link.

    PYTHONPATH=. python benchmarks/cuda_one_gpu.py          rank 0 of two on the whole GPU, beside cuBLAS, at ten shapes
    ... --shapes 0,1 --configs "block_n=128;stages=3"       several configurations of ``CudaConfig``

The peer is a model: its shard lies in the slots already, and a one-warp kernel raises the arrival flags as a link of
``--link`` GB/s after ``--latency`` us would; the own shard is pushed into other memory of the same GPU. So the loads,
stores, flags and products are real and the link is not: this says how fast the kernel is, not how fast two GPUs are.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from cuda_common import SHAPES, Config, Shape, captured_alone, cuda, geomean, parse_config, relative_error

from agcli.backends.cuda_engine import CudaEngine, local_memory, symmetric_bytes
from agcli.backends.cuda_tuning import choose
from agcli.problem import Problem

HOLD_CYCLES = 1_500_000  # of the device clock: far longer than the host needs to queue one call
WAIT_LIMIT_S = 2.5
READY = 1 << 30  # a count of arrivals that no call of a measurement reaches


@triton.jit
def raise_flags(flags, chunks, units, chunk_ns, latency_ns):  # type: ignore[no-untyped-def]
    """Add ``units`` to each of ``chunks`` flags, the i-th ``latency_ns + (i + 1) * chunk_ns`` after the start."""
    start = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    for i in range(chunks):
        due = start + latency_ns + (i + 1) * chunk_ns
        now = start
        while now < due:
            now = tl.inline_asm_elementwise(
                "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
            )
        tl.atomic_add(flags + i, units, sem="release", scope="sys")


class Modelled:
    """Rank 0 of two on the whole GPU, with a modelled peer."""

    def __init__(
        self,
        problem: Problem,
        overrides: Config,
        a: torch.Tensor,
        peer_a: torch.Tensor,
        args: argparse.Namespace,
        programs: int | None,
    ) -> None:
        self.config = choose(problem, **overrides)
        own, self.peer = local_memory(problem, self.config)  # kept: the kernel writes to both
        self.engine = CudaEngine(problem, self.config, own, WAIT_LIMIT_S, programs)
        offset, size = symmetric_bytes(problem, self.config)
        shard = problem.m * problem.k
        data = own.local[: 4 * shard * 2].view(torch.float16).view(2, 2, problem.m, problem.k)
        data[:, 1] = peer_a
        chunks_m, chunks_k = self.config.chunks(problem)
        self.chunks = chunks_m * chunks_k
        self.flags = own.local[offset:size].view(torch.int32)[self.chunks :]
        self.chunk_ns = int(shard * 2 / args.link / self.chunks)
        self.latency_ns = int(args.latency * 1000)
        self.side = cuda.Stream()

    def ready(self) -> None:
        """Let all data have arrived, of all calls to come."""
        self.flags.fill_(READY)

    def arrive(self) -> None:
        """Queue the arrival of one call's data from now on, on a stream of its own."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            raise_flags[(1,)](
                self.flags, self.chunks, self.config.units_per_chunk, self.chunk_ns, self.latency_ns, num_warps=1
            )


def device_ms(
    calls: dict[str, tuple[Callable[[], object], Callable[[], object] | None]], repeats: int
) -> dict[str, float]:
    """Median milliseconds of each call; the second function of a pair is queued just before the first, elsewhere."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, (call, before) in calls.items():
            start, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            cuda._sleep(HOLD_CYCLES)
            if before is not None:
                before()
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times[name].append(start.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def host_us(call: Callable[[], object], count: int = 100) -> float:
    """Host time to queue one call in microseconds, the device held back."""
    torch.cuda.synchronize()
    cuda._sleep(60_000_000)
    begin = time.perf_counter()
    for _ in range(count):
        call()
    elapsed = time.perf_counter() - begin
    torch.cuda.synchronize()
    return elapsed / count * 1e6


def measure(shape: Shape, configs: list[Config], args: argparse.Namespace) -> tuple[float, float]:
    """Print a line for each configuration; the first's ratios to cuBLAS, with all data there and with the link."""
    m, n, k = shape
    problem = Problem(m, n, k, 2)
    a, peer_a = (torch.randn(m, k, device="cuda").div(8).half() for _ in range(2))
    b = torch.randn(k, n, device="cuda").div(8).half()
    gathered = torch.cat([a, peer_a])
    c, out = (torch.empty(2 * m, n, dtype=torch.float16, device="cuda") for _ in range(2))
    calls: dict[str, Any] = {"gemm": (lambda: torch.mm(gathered, b, out=out), None)}
    errors, hosts, models = [], [], []
    for i, overrides in enumerate(configs):
        # The kernel that raises the flags needs a multiprocessor, for the fused one leaves no registers beside itself.
        model = Modelled(
            problem, overrides, a, peer_a, args, torch.cuda.get_device_properties(0).multi_processor_count - 1
        )
        there = Modelled(problem, overrides, a, peer_a, args, None)
        there.ready()
        models += [model, there]
        run = partial(model.engine.run, a, b, c)
        run_there = partial(there.engine.run, a, b, c)
        c.fill_(float("nan"))
        run_there()
        errors.append(relative_error(c, gathered, b))
        model.arrive()
        run()
        torch.cuda.synchronize()
        hosts.append(host_us(run_there))
        calls[f"there {i}"] = (run_there, None)
        calls[f"link {i}"] = (run, model.arrive)
        if i == 0 and args.graph:
            calls["graph"] = (captured_alone(run_there), None)
    torch.mm(gathered, b, out=out)
    ms = device_ms(calls, args.repeats)
    for model in models:
        model.engine.check()
    floor = ms["gemm"]
    print(f"{shape}: gemm {floor:.4f} ms" + (f", graph {ms['graph'] / floor:.3f}" if "graph" in ms else ""))
    for i, overrides in enumerate(configs):
        there_ms, link_ms = ms[f"there {i}"], ms[f"link {i}"]
        ratios = f"all there {there_ms:.4f} {there_ms / floor:.3f} | link {link_ms:.4f} {link_ms / floor:.3f}"
        print(f"    {ratios} | host {hosts[i]:.1f} us | error {errors[i]:.1e} {overrides}", flush=True)
    return ms["there 0"] / floor, ms["link 0"] / floor


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--shapes", default=",".join(str(i) for i in range(len(SHAPES))))
    parser.add_argument("--configs", default="")
    parser.add_argument("--link", type=float, default=360.0, help="GB/s of the modelled link")
    parser.add_argument("--latency", type=float, default=5.0, help="us until the first byte")
    parser.add_argument("--graph", action="store_true", help="also time a CUDA graph's replay")
    args = parser.parse_args()
    configs = [parse_config(text) for text in args.configs.split(";")]
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}")
    print(f"link {args.link} GB/s, {args.latency} us")
    ratios = [measure(SHAPES[int(i)], configs, args) for i in args.shapes.split(",")]
    there, link = (geomean([pair[i] for pair in ratios]) for i in (0, 1))
    print(f"geometric means over cuBLAS: all there {there:.3f}, link {link:.3f}")


if __name__ == "__main__":
    main()
