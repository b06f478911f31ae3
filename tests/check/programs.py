"""The correct kernels that the tests start from, each with its arguments and the result it must leave.

A faulty kernel is one of these with one edit, so that it carries exactly the fault that it is named for.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agcli.backends.cpu import KERNEL_FILE, KERNEL_NAME
from agcli.problem import KernelConfig, Problem, make_plan
from agcli.simulator import run
from agcli.slotted import kernel_arguments

KERNELS = Path(__file__).parent / "kernels"
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = Path(__file__).parents[2] / "examples"


def numbers(*shape, seed):
    """Small integers: sums of their products are exact."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).half()


def empty(*shape):
    return torch.full(shape, float("nan"), dtype=torch.float16)


@dataclass
class Program:
    """A kernel and how to run it. ``options`` change the arguments; ``expected(world)`` is rank 0's result if known."""

    file: str
    arguments: Callable
    kernel: str = "kernel"
    world: int = 2
    cores: int = 2
    options: dict = field(default_factory=dict)
    expected: Callable | None = None

    def check(self, tmp_path, edits=(), schedules=8, **options):
        """Check it after ``edits``, pairs of old and new text; each old text must occur exactly once."""
        source = Path(self.file)
        if edits:
            text = source.read_text()
            for old, new in edits:
                assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
                text = text.replace(old, new)
            source = tmp_path / source.name
            source.write_text(text)
        chosen = {"world": self.world, "cores": self.cores, **self.options, **options}
        world, cores = chosen.pop("world"), chosen.pop("cores")
        results = {}

        def arguments(rank):
            return self.arguments(rank, results, **chosen)

        return run(f"{source}:{self.kernel}", arguments, world=world, cores=cores, schedules=schedules), results


def barrier_gemm(rank, results, m=43, slots=2, restart=False):
    """M, N, K = m, 24, 32 with 16-row iterations."""
    plan = make_plan(
        Problem(m, 24, 32, rank.world),
        KernelConfig(16, 16, 16, 8, 16, 1, max(slots, 2), "store"),
        None,
    )
    a, b = numbers(m, 32, seed=rank.rank), numbers(32, 24, seed=7)
    c = results[rank.launch, rank.rank] = empty(rank.world * m, 24)
    memory = rank.symmetric("peer_mem", (slots, *plan.peer_shape[1:]), torch.float16)
    named = kernel_arguments(plan, rank.rank, a, b, c, memory, 0 if restart else rank.launch * plan.iterations % slots)
    return {**without(named, "TRANSPORT"), "buffer_num": slots}


def without(named, *names):
    return {name: value for name, value in named.items() if name not in names}


def gathered_product(m=43, world=2):
    whole = torch.cat([numbers(m, 32, seed=rank) for rank in range(world)]).float()
    return (whole @ numbers(32, 24, seed=7).float()).half()


def fused(rank, results, transport="store", m=75, slots=2, strided=False):
    """The project's own kernel."""
    config = KernelConfig(16, 16, 16, 8, 16, 2, slots, transport)
    plan = make_plan(Problem(m, 24, 32, rank.world), config, None)
    a, b = numbers(m, 32, seed=rank.rank), numbers(32, 24, seed=7)
    if strided:
        a = torch.zeros(m, 48, dtype=torch.float16)[:, :32].copy_(a)
    c = results[rank.launch, rank.rank] = empty(rank.world * m, 24)
    memory = rank.symmetric("peer_mem", plan.peer_shape, torch.float16)
    return kernel_arguments(plan, rank.rank, a, b, c, memory, rank.launch * plan.iterations % slots)


def signal_gemm(rank, results, m=27):
    c = results[rank.launch, rank.rank] = empty(rank.world * m, 24)
    return {
        "a_ptr": numbers(m, 32, seed=rank.rank), "b_ptr": numbers(32, 24, seed=7), "c_ptr": c,
        "peer_mem_ptr": rank.symmetric("peer_mem", (2 * rank.world * 16, 32), torch.float16),
        "sig_ptr": rank.symmetric("signals", (2 * rank.world,), torch.int32),
        "rank": rank.rank, "rank_size": rank.world, "launch": rank.launch, "M": m, "N": 24, "K": 32,
        "ROWS": 16, "BLOCK_N": 16, "BLOCK_K": 16,
    }  # fmt: skip


def wait_gemm(rank, results, m=13):
    c = results[rank.launch, rank.rank] = empty(rank.world * m, 24)
    return {
        "a_ptr": numbers(m, 32, seed=rank.rank), "b_ptr": numbers(32, 24, seed=7), "c_ptr": c,
        "peer_mem_ptr": rank.symmetric("peer_mem", (rank.world * m, 32), torch.float16),
        "sig_ptr": rank.symmetric("signals", (16 * rank.world,), torch.int32),
        "launch": rank.launch, "M": m, "N": 24, "K": 32, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16,
    }  # fmt: skip


def vectors(rank, results, n=24, block=32, memory=None, words=None, out=None):
    """A vector of each rank to all."""
    memory = memory or (2, rank.world * n)
    named = {
        "src_ptr": numbers(n, seed=10 * rank.launch + rank.rank),
        "mem_ptr": rank.symmetric("mem", memory, torch.float16),
        "rank": rank.rank, "rank_size": rank.world, "launch": rank.launch, "n": n, "BLOCK": block,
    }  # fmt: skip
    named["dst_ptr"] = results[rank.launch, rank.rank] = empty(out or rank.world * n)
    if words:
        named["sig_ptr"] = rank.symmetric("signals", (words * rank.world,), torch.int32)
    return named


def ring(rank, results):
    named = vectors(rank, results, block=16, words=2)
    return {**without(named, "mem_ptr"), "ring_ptr": named["mem_ptr"]}


def put_signal(rank, results):
    return vectors(rank, results, words=1)


def pull(rank, results):
    return vectors(rank, results, memory=(2, 24))


def counter(rank, results):
    return vectors(rank, results, words=1, out=24)


def stream(rank, results, chunks=3):
    n = 24
    named = vectors(rank, results, memory=(n,), words=16, out=chunks * n)
    named |= {"src_ptr": numbers(chunks * n, seed=rank.launch), "chunks": chunks}
    return without(named, "rank_size")


def handshake(rank, results, chunks=3):
    return without(stream(rank, results, chunks), "launch")


def reduce_scatter(rank, results):
    m, N, K = 13, 24, 32
    c = results[rank.launch, rank.rank] = torch.zeros(m, N)
    return {
        "a_ptr": numbers(rank.world * m, K, seed=rank.rank), "b_ptr": numbers(K, N, seed=50 + rank.rank), "c_ptr": c,
        "mem_ptr": rank.symmetric("partial", (2, rank.world * m, N), torch.float32),
        "rank": rank.rank, "rank_size": rank.world, "launch": rank.launch, "m_per_rank": m, "N": N, "K": K,
        "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16,
    }  # fmt: skip


def reduced(world):
    parts = [numbers(world * 13, 32, seed=r).float() @ numbers(32, 24, seed=50 + r).float() for r in range(world)]
    return sum(parts)[:13]


def sent(world, launch=2):
    return torch.cat([numbers(24, seed=10 * launch + rank) for rank in range(world)])


BARRIER_GEMM = Program(
    KERNELS / "barrier_gemm.py", barrier_gemm, "kernel_allgather_gemm", cores=3, expected=lambda w: gathered_product()
)
FUSED = Program(KERNEL_FILE, fused, KERNEL_NAME, expected=lambda w: gathered_product(75, w))
SIGNAL_GEMM = Program(KERNELS / "signal_gemm.py", signal_gemm, expected=lambda w: gathered_product(27, w))
WAIT_GEMM = Program(KERNELS / "wait_gemm.py", wait_gemm, expected=lambda w: gathered_product(13, w))
RING = Program(KERNELS / "ring.py", ring, world=3, expected=sent)
PUT_SIGNAL = Program(KERNELS / "put_signal.py", put_signal, world=3, expected=sent)
PULL = Program(KERNELS / "pull.py", pull, world=3, expected=lambda w: sent(w) + 1)
COUNTER = Program(
    KERNELS / "counter.py", counter, world=3, expected=lambda w: sent(w).reshape(w, 24).float().sum(0).half()
)
STREAM = Program(KERNELS / "stream.py", stream)
HANDSHAKE = Program(KERNELS / "handshake.py", handshake)
REDUCE_SCATTER = Program(EXAMPLES / "gemm_reduce_scatter.py", reduce_scatter, expected=reduced)
