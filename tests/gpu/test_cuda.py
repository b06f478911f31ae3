"""The cuda backend on real GPUs. One GPU: several ranks in one process, each on its share of the multiprocessors, over
the very protocol that GPUs of a host use between them. Two GPUs: the command line."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from agcli.backends.cuda_engine import CudaEngine, local_memory, symmetric_bytes
from agcli.backends.cuda_tuning import choose
from agcli.bench_parts import complaint
from agcli.errors import EnvironmentFault
from agcli.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two NVIDIA GPUs")

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"fp16": 2e-3, "bf16": 1.5e-2}  # of the largest element: one rounding, and another order of sums
WAIT_LIMIT_S = 5.0
ROOT = Path(__file__).resolve().parents[2]
cuda: Any = torch.cuda


class Ranks:
    """All ranks of a problem on this GPU."""

    def __init__(self, problem: Problem, wait_limit_s: float = WAIT_LIMIT_S, **overrides: int) -> None:
        self.problem = problem
        programs = torch.cuda.get_device_properties(0).multi_processor_count // problem.world
        config = choose(problem, programs, **overrides)
        memories = local_memory(problem, config)
        self.engines = [CudaEngine(problem, config, memory, wait_limit_s, programs) for memory in memories]
        self.streams = [cuda.Stream() for _ in self.engines]

    def operands(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """A and B of every rank, random."""
        p, dtype = self.problem, DTYPES[self.problem.dtype]
        a = [(torch.randn(p.a_shape, device="cuda") / 8).to(dtype) for _ in self.engines]
        b = [(torch.randn(p.b_shape, device="cuda") / 8).to(dtype) for _ in self.engines]
        return a, b

    def results(self, calls: int) -> list[list[torch.Tensor]]:
        """For each rank and call a C full of NaN."""
        shape, dtype = self.problem.c_shape, DTYPES[self.problem.dtype]
        return [[torch.full(shape, torch.nan, device="cuda", dtype=dtype) for _ in range(calls)] for _ in self.engines]

    def run(self, a: list[torch.Tensor], b: list[torch.Tensor], c: list[list[torch.Tensor]]) -> None:
        """All calls on all ranks, no wait in between, ranks in random order and delayed at random."""
        world = self.problem.world
        for rank, engine in enumerate(self.engines):
            # Loading a kernel may wait for all those that run, and here one waits for the launch of another.
            for out in c[rank]:
                engine.prepare(a[rank], b[rank], out)
        cuda._sleep(1)
        torch.cuda.synchronize()
        for call in range(len(c[0])):
            for rank in random.sample(range(world), world):
                with torch.cuda.stream(self.streams[rank]):
                    if random.random() < 0.5:
                        cuda._sleep(random.randrange(400_000))
                    self.engines[rank].run(a[rank], b[rank], c[rank][call])
        torch.cuda.synchronize()
        for engine in self.engines:
            engine.check()

    def assert_right(self, a: list[torch.Tensor], b: list[torch.Tensor], c: list[list[torch.Tensor]]) -> None:
        """Every result of every rank against the fp32 product, and all calls alike bit by bit."""
        gathered = torch.cat([t.float() for t in a])
        for rank, outs in enumerate(c):
            want = gathered @ b[rank].float()
            error = (outs[0].float() - want).abs().max() / want.abs().max()
            assert error.item() < TOLERANCE[self.problem.dtype]
            assert all(torch.equal(outs[0], out) for out in outs)


SMALL = [
    (1, 1, 1, "fp16", 2),
    (1, 8, 8, "fp16", 2),
    (3, 5, 7, "bf16", 2),
    (130, 264, 72, "fp16", 2),
    (130, 264, 72, "bf16", 3),
    (70, 100, 520, "fp16", 4),
    (256, 512, 1024, "fp16", 2),
]
LARGE = [
    (128, 4096, 4096, "fp16", 2),
    (512, 4096, 4096, "bf16", 2),
    (1024, 5504, 4096, "fp16", 2),
    (1000, 999, 1001, "bf16", 2),
    (1000, 1000, 1000, "fp16", 2),
    (2048, 4096, 512, "bf16", 4),
    (640, 768, 9000, "fp16", 3),
]


def shape_id(case: tuple[int, int, int, str, int]) -> str:
    """``MxNxK-dtype-world``, with the size class, for ``-k small``."""
    m, n, k, dtype, world = case
    return f"{'small' if case in SMALL else 'large'}-{m}x{n}x{k}-{dtype}-w{world}"


@pytest.mark.parametrize("case", SMALL + LARGE, ids=shape_id)
def test_ranks_of_one_gpu_agree_with_the_reference(case: tuple[int, int, int, str, int]) -> None:
    m, n, k, dtype, world = case
    ranks = Ranks(Problem(m, n, k, world, dtype))
    for _ in range(3):
        for engine in ranks.engines:
            engine.poison()
        a, b = ranks.operands()
        c = ranks.results(4)
        ranks.run(a, b, c)
        ranks.assert_right(a, b, c)


def far_apart(matrix: torch.Tensor) -> torch.Tensor:
    """The same matrix, its rows so far apart that 32 bits count no 64 of them, in steps of 16 bytes."""
    rows, cols = matrix.shape
    wide = torch.empty((rows, 2**26 + 8), device="cuda", dtype=matrix.dtype)[:, :cols]
    return wide.copy_(matrix)


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_rows_may_be_further_apart_than_32_bits_count(operand: str) -> None:
    ranks = Ranks(Problem(100, 96, 128, 2))
    a, b = ranks.operands()
    c = ranks.results(1)
    if operand == "a":
        a[0] = far_apart(a[0])
    elif operand == "b":
        b[0] = far_apart(b[0])
    else:
        c[0][0] = far_apart(c[0][0])
    ranks.run(a, b, c)
    ranks.assert_right(a, b, c)


@pytest.mark.parametrize(
    "case", [(130, 264, 72, "fp16"), (33, 19, 45, "bf16")], ids=["alone-described", "alone-addressed"]
)
def test_a_rank_pushes_its_shard_and_counts_it(case: tuple[int, int, int, str]) -> None:
    """One rank alone, its peer's shard there already: what it leaves in the peer's memory, and its product."""
    m, n, k, dtype = case
    problem = Problem(m, n, k, 2, dtype)
    config = choose(problem)
    own, peer = local_memory(problem, config)
    engine = CudaEngine(problem, config, own, WAIT_LIMIT_S)
    offset, size = symmetric_bytes(problem, config)
    chunks = config.chunks(problem)[0] * config.chunks(problem)[1]
    own.local[offset:size].view(torch.int32).fill_(1 << 30)
    a, peer_a = ((torch.randn(m, k, device="cuda") / 8).to(DTYPES[dtype]) for _ in range(2))
    b = (torch.randn(k, n, device="cuda") / 8).to(DTYPES[dtype])
    c = torch.full(problem.c_shape, torch.nan, device="cuda", dtype=DTYPES[dtype])
    shards = 2 * 2 * m * k * 2
    slots = own.local[:shards].view(DTYPES[dtype]).view(2, 2, m, k)
    slots[1, 1] = peer_a  # the first call uses slot 1
    engine.run(a, b, c)
    torch.cuda.synchronize()
    engine.check()
    want = torch.cat([a, peer_a]).float() @ b.float()
    assert ((c.float() - want).abs().max() / want.abs().max()).item() < TOLERANCE[dtype]
    pushed = peer.local[:shards].view(DTYPES[dtype]).view(2, 2, m, k)
    assert torch.equal(pushed[1, 0], a)
    assert not pushed[0].any()
    assert not pushed[1, 1].any()
    flags = peer.local[offset:size].view(torch.int32)
    assert flags.tolist() == [config.units_per_chunk] * chunks + [0] * chunks


@pytest.mark.parametrize(
    "overrides",
    [
        {"split_k": 2},
        {"block_m": 64, "block_n": 256},
        {"block_n": 64, "split_k": 2, "chunk_k": 256},
        {"push_m": 32, "push_k": 64, "group_m": 3},
        {"epilogue_parts": 4, "stages": 2},
        {"chunk_k": 256, "push_percent": 400},
        {"push_percent": 0, "push_warps": 1},
    ],
    ids=lambda o: ",".join(f"{k}={v}" for k, v in o.items()),
)
def test_every_configuration_gives_the_same_product_small(overrides: dict[str, int]) -> None:
    ranks = Ranks(Problem(300, 520, 1048, 2), **overrides)
    a, b = ranks.operands()
    c = ranks.results(5)
    ranks.run(a, b, c)
    ranks.assert_right(a, b, c)


def test_operands_may_have_any_strides_small() -> None:
    ranks = Ranks(Problem(96, 160, 224, 2))
    a, b = ranks.operands()
    a = [t.t().contiguous().t() for t in a]
    b = [torch.cat([t, t], 1)[:, :160] for t in b]
    c = [[torch.full((192, 321), torch.nan, device="cuda", dtype=torch.float16)[:, 1::2]] for _ in a]
    ranks.run(a, b, c)
    ranks.assert_right(a, b, c)


def test_ranks_may_differ_in_the_kernel_they_launch_small() -> None:
    ranks = Ranks(Problem(256, 256, 256, 2))
    a, b = ranks.operands()
    a[1] = a[1].t().contiguous().t()  # descriptors cannot address it
    c = ranks.results(3)
    ranks.run(a, b, c)
    ranks.assert_right(a, b, c)


def test_counts_may_pass_the_largest_int32_small() -> None:
    ranks = Ranks(Problem(256, 512, 1024, 2))
    a, b = ranks.operands()
    c = ranks.results(6)
    for engine in ranks.engines:
        calls = 2**31 // engine.config.units_per_chunk - 3
        calls += calls % 2  # so that the slots go on as they were
        engine._epochs[: len(engine._epochs) // 2] = calls
        engine._memory.local[engine._flags_offset :].view(torch.int32).fill_(calls * engine.config.units_per_chunk)
    ranks.run(a, b, c)
    ranks.assert_right(a, b, c)


def test_a_graph_of_calls_replays() -> None:
    ranks = Ranks(Problem(256, 512, 512, 1))
    a, b = ranks.operands()
    c = ranks.results(1)
    ranks.run(a, b, c)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            ranks.engines[0].run(a[0], b[0], c[0][0])
    for _ in range(3):
        a[0].copy_(torch.randn_like(a[0]) / 8)
        c[0][0].fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        ranks.assert_right(a, b, c)


def test_a_peer_that_never_calls_is_reported() -> None:
    ranks = Ranks(Problem(256, 256, 256, 2), wait_limit_s=0.3)
    a, b = ranks.operands()
    c = ranks.results(1)
    ranks.engines[1].run(a[1], b[1], c[1][0])
    torch.cuda.synchronize()
    with pytest.raises(EnvironmentFault, match=r"rank 1 waited 0\.3 s for data of rank 0"):
        ranks.engines[1].check()
    with pytest.raises(EnvironmentFault, match="cannot go on"):
        ranks.engines[1].run(a[1], b[1], c[1][0])
    ranks.engines[1].close()  # says nothing anew


def test_a_wait_in_vain_that_nobody_asked_about_is_told_at_the_end() -> None:
    ranks = Ranks(Problem(256, 256, 256, 2), wait_limit_s=0.3)
    a, b = ranks.operands()
    c = ranks.results(1)
    ranks.engines[1].run(a[1], b[1], c[1][0])
    with pytest.raises(EnvironmentFault, match=r"rank 1 waited 0\.3 s for data of rank 0"):
        ranks.engines[1].close()
    assert not ranks.engines[1].is_open
    ranks.engines[0].close()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("k", [8192, 65536])
def test_the_tolerance_lets_the_devices_own_product_pass(dtype: str, k: int) -> None:
    problem = Problem(4096, 4096, k, 1, dtype)
    random = cuda.default_generators[0].manual_seed(0)
    a, b = (torch.randn(s, device="cuda", dtype=DTYPES[dtype], generator=random) for s in ((4096, k), (k, 4096)))
    assert complaint(problem, a, b, a @ b) == ""


def ag_gemm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    command = [sys.executable, "-m", "agcli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


@two_gpus
@pytest.mark.parametrize(
    "arguments",
    [("--m", "4096"), ("--m", "1000", "--n", "999", "--k", "1001", "--dtype", "bf16", "--repeat", "50")],
    ids=["m4096", "odd-bf16"],
)
def test_verify_passes_on_two_gpus(arguments: tuple[str, ...]) -> None:
    result = ag_gemm("verify", "--backend", "cuda", "--world", "2", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr


@two_gpus
def test_bench_times_a_preset_on_two_gpus(tmp_path: Path) -> None:
    report = tmp_path / "r.json"
    sizes = ("--preset", "llama-3-70b/mlp", "--m", "512,2048")
    result = ag_gemm("bench", "--backend", "cuda", "--world", "2", *sizes, "--json", str(report))
    assert result.returncode == 0, result.stdout + result.stderr
    rows = json.loads(report.read_text())["rows"]
    assert {row["impl"] for row in rows} >= {"fused", "torch", "vendor", "gemm"}
    assert all(row["check"] == "PASS" and row["median_ms"] > 0 for row in rows)


@two_gpus
def test_ranks_delayed_at_random_agree_with_the_reference() -> None:
    command = [sys.executable, "benchmarks/cuda.py", "--check", "--repeats", "4"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, cwd=ROOT, env=environment
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_verify_passes_on_one_gpu() -> None:
    result = ag_gemm("verify", "--backend", "cuda", "--world", "1", "--m", "1024")
    assert result.returncode == 0, result.stdout + result.stderr


@two_gpus
def test_an_operator_in_a_torchrun_job() -> None:
    pytest.importorskip("platformdirs")  # the example asks for this user's tuned configurations
    example = ROOT / "examples" / "column_parallel_linear.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(example)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert result.returncode == 0, result.stdout + result.stderr
