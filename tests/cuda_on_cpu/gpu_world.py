"""All ranks of a problem on ``gpu_machine``: launches of the kernel, back to back, and what they computed."""

from functools import partial

import torch
from gpu_language import load_kernel
from gpu_machine import Descriptor, Dtype, Memory, Pointer, Scheduler, Word

from agcli.backends.cuda_engine import symmetric_bytes
from agcli.backends.cuda_tuning import choose, push_every_ns
from agcli.problem import Problem

LIMIT_NS = 500_000  # of the machine's clock: far longer than any wait that ends


class Rank:
    """Memory of one rank, and its operands for every call: elements -1, 0 and 1, so that products are exact."""

    def __init__(self, world, rank, calls):
        problem, config = world.problem, world.config
        m, n, k, w = problem.m, problem.n, problem.k, problem.world
        element = world.element
        self.rank = rank
        self.flags_offset, size = symmetric_bytes(problem, config)
        self.symmetric = torch.zeros((size + 7) // 8 * 8, dtype=torch.uint8)
        self.base = world.memory.allocate(self.symmetric, rank)
        self.gathered = self.symmetric[: 2 * w * m * k * 2].view(element.torch).view(2 * w * m, k)
        self.gathered.fill_(torch.nan)
        draw = torch.Generator().manual_seed(world.seed * 100 + rank)
        self.a, self.b, self.c = (
            [world.matrix(*shape) for _ in range(calls)] for shape in ((m, k), (k, n), (w * m, n))
        )
        for operand in (*self.a, *self.b):
            operand.copy_(torch.randint(-1, 2, operand.shape, generator=draw))
        self.epochs = torch.zeros(2 * world.programs, dtype=torch.int32)
        tiles_m, tiles_n = config.tiles(problem)
        tiles = w * tiles_m * tiles_n
        self.halves = torch.full((tiles * 2 * config.block_m * config.block_n,), torch.nan)
        self.turns = torch.zeros(tiles, dtype=torch.int32)
        self.error = torch.zeros(1, dtype=torch.int32)


class World:
    """Ranks that call the operator ``calls`` times, with no wait in between but that of their own streams."""

    def __init__(self, problem: Problem, programs: int, seed: int, calls=3, layout="plain", **overrides: int):
        self.layout = layout  # of the operands: plain, padded rows, or stored by columns
        self.problem, self.programs, self.seed, self.calls = problem, programs, seed, calls
        self.config = choose(problem, programs, **overrides)
        self.element = Dtype(torch.bfloat16 if problem.dtype == "bf16" else torch.float16)
        self.scheduler, self.memory = Scheduler(seed), Memory()
        self.described = load_kernel("allgather_gemm_cuda", self.scheduler, self.memory)
        self.addressed = load_kernel("allgather_gemm_cuda_any", self.scheduler, self.memory)
        self.ranks = [Rank(self, rank, calls) for rank in range(problem.world)]
        bases = torch.tensor([rank.base for rank in self.ranks])
        self.bases = Pointer(self.memory.allocate(bases, None), Dtype(torch.int64))
        self.absent: set[int] = set()  # ranks that never call
        self.without_tma: set[int] = set()  # ranks that launch the kernel with addresses

    def matrix(self, rows, cols):
        """A matrix full of NaN, stored as ``layout`` says."""
        stored = (cols, rows) if self.layout == "columns" else (rows, cols + 8 * (self.layout == "padded"))
        whole = torch.full(stored, torch.nan, dtype=self.element.torch)
        return whole.t() if self.layout == "columns" else whole[:, :cols]

    def _pointer(self, rank, tensor):
        whole = tensor if tensor._base is None else tensor._base
        return Pointer(self.memory.allocate(whole, rank.rank), Dtype(tensor.dtype))

    def _numbers(self, rank, *strides):
        p = self.problem
        numbers = (p.m, p.n, p.k, *strides, rank.rank, p.m * p.k * 2, rank.flags_offset, LIMIT_NS)
        return map(Word, numbers)

    def _described(self, rank, a, b, c):
        """A launch of the kernel with tensor descriptors."""
        p, g, element = self.problem, self.config, self.element
        return partial(
            self.described.allgather_gemm_kernel,
            Descriptor(a, g.block_m, g.block_k, element),
            # Without a peer there are launches that wait for nothing, and results that are none.
            Descriptor(rank.gathered, g.block_m, g.block_k, element, shared=not self.absent),
            Descriptor(b, g.block_k, g.block_n, element),
            Descriptor(c, g.block_m, g.block_n // g.epilogue_parts, element),
            *(self._pointer(rank, a), self._pointer(rank, c), self.bases),
            *(self._pointer(rank, t) for t in (rank.epochs, rank.halves, rank.turns, rank.error)),
            *self._numbers(rank, a.stride(0), c.stride(0)),
            Word(push_every_ns(p, g, self.programs)),
            *(g, p.world, p.m % g.block_m == 0),
        )

    def _addressed(self, rank, a, b, c):
        """A launch of the kernel with pointers."""
        return partial(
            self.addressed.allgather_gemm_any_kernel,
            *(self._pointer(rank, t) for t in (a, b, c)),
            self.bases,
            *(self._pointer(rank, t) for t in (rank.epochs, rank.error)),
            *self._numbers(rank, *a.stride(), *b.stride(), *c.stride()),
            *(self.config, self.problem.world, 64, 128, 32),
        )

    def _stream(self, rank):
        """The calls of one rank, one after another."""
        make = self._addressed if rank.rank in self.without_tma else self._described
        for operands in zip(rank.a, rank.b, rank.c):
            launch = make(rank, *operands)
            programs = [(i, self.programs, rank.rank) for i in range(self.programs)]
            self.scheduler.finish([self.scheduler.spawn(launch, program) for program in programs])

    def run(self):
        """All calls of all ranks. Raises what the kernel or the machine raises."""
        for rank in self.ranks:
            if rank.rank not in self.absent:
                self.scheduler.spawn(lambda rank=rank: self._stream(rank))
        self.scheduler.run()

    def wrong(self):
        """``(rank, call)`` of the results that differ from the fp32 product."""
        found = []
        for call in range(self.calls):
            gathered = torch.cat([rank.a[call] for rank in self.ranks]).float()
            for rank in self.ranks:
                if not torch.equal(rank.c[call].float(), gathered @ rank.b[call].float()):
                    found.append((rank.rank, call))
        return found
