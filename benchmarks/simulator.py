"""What the simulator costs, as ratios from one run: against bare arithmetic and against Triton's own interpreter.

    python benchmarks/simulator.py           tile steps: simulator, addmm_, interpreter (half a minute)
    python benchmarks/simulator.py --verify  also `verify --world 4 --m 4096` against fp32 matmul (minutes)

A tile step is one product of a 128 x 256 tile of A with a 256 x 256 tile of B, fp16, added to an fp32 accumulator. All
three run on one thread and are interleaved; a figure is the median of the rounds. The interpreter runs the same
``multiply_slot`` in a process of its own, where triton is imported with TRITON_INTERPRET=1.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, whose cuda.py would pass for the package of that name

import torch  # noqa: E402

M, N, K = 128, 256, 256  # of one tile step
STEPS = 32  # tile steps of a round
ROUNDS = 9


def _operands(steps: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a = torch.randn(M, K * steps).half()
    return a, torch.randn(K * steps, N).half(), torch.empty(M, N, dtype=torch.float16)


def _arguments(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> dict[str, object]:
    """Arguments of ``multiply_slot`` for one tile of C in a world of one rank."""
    depth = a.shape[1]
    pointers = {"b_ptr": b, "c_ptr": c, "slot_ptr": a}
    sizes = {"rank_size": 1, "first_row": 0, "rows": M, "M": M, "N": N, "K": depth}
    strides = {"stride_bk": N, "stride_bn": 1, "stride_cm": N, "stride_cn": 1}
    return {
        **pointers, **sizes, **strides, "pvalue": 1, "BLOCK_SIZE_M": M, "BLOCK_SIZE_N": N, "BLOCK_SIZE_K": K,
    }  # fmt: skip


def simulator() -> Callable[[], float]:
    """Seconds of one round on a simulated core."""
    from agcli.backends.cpu import KERNEL_FILE
    from agcli.simulator.binding import load_kernel
    from agcli.simulator.launch import bind, run
    from agcli.simulator.machine import Machine
    from agcli.simulator.split import SplitKernel
    from agcli.simulator.world import SharedWorld

    world = SharedWorld(0, 1, lambda value: [value])
    kernel = SplitKernel(load_kernel(KERNEL_FILE, "multiply_slot"))
    a, b, c = _operands(STEPS)
    bound = bind(kernel, (), _arguments(a, b, c), 0, {})

    def measure() -> float:
        start = time.perf_counter()
        run(kernel, Machine(0, 1, world, world.begin()), bound)
        world.end(failed=False)
        return time.perf_counter() - start

    measure()
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=1e-3, atol=1e-2)
    return measure


def bare() -> Callable[[], float]:
    """Seconds of one round of ``addmm_`` on fp32 tiles: the arithmetic alone."""
    a, b, _ = _operands(STEPS)
    pairs = [(x.float().contiguous(), y.float()) for x, y in zip(a.chunk(STEPS, dim=1), b.chunk(STEPS), strict=True)]
    accumulator = torch.zeros(M, N)

    def measure() -> float:
        start = time.perf_counter()
        for x, y in pairs:
            accumulator.addmm_(x, y)
        return time.perf_counter() - start

    return measure


def interpreter(steps: int) -> float:
    """Seconds of a tile step in Triton's interpreter; triton must be imported with TRITON_INTERPRET=1."""
    from agcli.kernels.allgather_gemm import multiply_slot

    a, b, c = _operands(steps)
    multiply_slot[(1,)](**_arguments(a, b, c))  # warm up
    start = time.perf_counter()
    multiply_slot[(1,)](**_arguments(a, b, c))
    return (time.perf_counter() - start) / steps


def tile_steps() -> None:
    """Print milliseconds of a tile step and the two ratios."""
    torch.set_num_threads(1)
    measures = {"simulator": simulator(), "addmm_": bare()}
    seconds: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(ROUNDS):
        for name, measure in measures.items():
            seconds[name].append(measure() / STEPS)
    figures = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    command = [sys.executable, __file__, "--interpreter"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    figures["interpreter"] = float(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
    for name, value in figures.items():
        print(f"{name:12} {value:8.3f} ms a tile step")
    print(f"simulator / addmm_       {figures['simulator'] / figures['addmm_']:6.2f}  (to reach: at most 1.5)")
    print(f"interpreter / simulator  {figures['interpreter'] / figures['simulator']:6.2f}  (to reach: at least 15)")


def verify() -> None:
    """Print the time of a whole verification as a multiple of one set of products by torch in fp32."""
    size, world = 4096, 4
    torch.set_num_threads(os.cpu_count() or 1)
    a, b = torch.randn(world * size, size), torch.randn(size, size)
    start = time.perf_counter()
    for _ in range(world):
        torch.matmul(a, b)
    products = time.perf_counter() - start
    del a, b
    command = [sys.executable, "-m", "agcli", "verify", "--world", str(world), "--m", str(size), "--backend", "cpu"]
    start = time.perf_counter()
    subprocess.run(command, check=True)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    print(f"products by torch.matmul in fp32   {products:7.1f} s")
    print(f"verify --world {world} --m {size}          {seconds:7.1f} s, largest process {peak:.2f} GiB")
    print(f"ratio                              {seconds / products:7.2f}  (to reach: at most 3)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="what the simulator costs")
    parser.add_argument("--verify", action="store_true", help="also time a whole verification")
    parser.add_argument("--interpreter", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.interpreter:
        print(interpreter(2) * 1e3)
    else:
        tile_steps()
        if options.verify:
            verify()
