"""How the CUDA kernel cuts a problem: tiles, split of K, push units. Pure integers: no torch, no Triton.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank. A *tile* is ``block_m x
block_n`` elements of C. A *chunk* is ``chunk_m x chunk_k`` elements of a shard of A: what one arrival flag covers. A
*unit* is ``push_m x push_k`` elements: what one program copies to the peers at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from agcli.errors import UsageError
from agcli.problem import Problem, cdiv

SMEM_LIMIT_BYTES = 227 * 1024  # shared memory of one program on Hopper

# PTX: $0 = 0 once the int32 at address $1 has reached $2 (compared as a difference, so that counts may wrap), 1 when $3
# nanoseconds passed first. Looks seldom and without an acquire, which empties L1, until there is something to acquire;
# that, at system scope, pairs with the peer's release.
WAIT_ASM = """{
    .reg .pred p;
    .reg .b32 v;
    .reg .b64 t0, t1;
    mov.u32 $0, 0;
    mov.u64 t0, %globaltimer;
again:
    ld.relaxed.sys.global.b32 v, [$1];
    sub.s32 v, v, $2;
    setp.ge.s32 p, v, 0;
    @p bra there;
    mov.u64 t1, %globaltimer;
    sub.u64 t1, t1, t0;
    setp.lt.u64 p, t1, $3;
    @!p bra late;
    nanosleep.u32 100;
    bra again;
late:
    mov.u32 $0, 1;
there:
    ld.acquire.sys.global.b32 v, [$1];
}"""

# PTX: return, with $0 = 0, when the device clock reads at least $1.
PACE_ASM = """{
    .reg .pred p;
    .reg .b64 t;
    mov.u32 $0, 0;
again:
    mov.u64 t, %globaltimer;
    setp.ge.u64 p, t, $1;
    @p bra due;
    nanosleep.u32 100;
    bra again;
due:
}"""


def smem_bytes(block_m: int, block_n: int, block_k: int, stages: int, epilogue_parts: int) -> int:
    """Shared memory of a program: the ring of A and B tiles, the epilogue's staging buffers, barriers and the like."""
    ring = stages * (block_m + block_n) * block_k * 2
    return ring + min(epilogue_parts, 2) * block_m * block_n // epilogue_parts * 2 + 1024


@dataclass(frozen=True)
class CudaConfig:
    """Compile-time choices of the kernel. Raises UsageError for what cannot run on any GPU."""

    block_m: int = 128
    block_n: int = 256
    block_k: int = 64
    stages: int = 4
    split_k: int = 1
    group_m: int = 16
    epilogue_parts: int = 4
    chunk_m: int = 128
    chunk_k: int = 4096
    push_m: int = 16
    push_k: int = 256
    push_warps: int = 2
    push_percent: int = 60

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k", "push_m", "push_k"):
            value = getattr(self, name)
            if value < 16 or value & (value - 1):
                raise UsageError(f"{name} must be a power of two of at least 16, got {value}")
        if self.block_m not in (64, 128) or self.block_n > 256:
            raise UsageError(f"block_m must be 64 or 128 and block_n at most 256, got {self.block_m} x {self.block_n}")
        for outer, inner in (
            ("chunk_m", "block_m"),
            ("chunk_m", "push_m"),
            ("chunk_k", "block_k"),
            ("chunk_k", "push_k"),
        ):
            if getattr(self, outer) < 1 or getattr(self, outer) % getattr(self, inner):
                raise UsageError(f"{outer} must be a multiple of {inner}, got {getattr(self, outer)}")
        for name, choices in (("split_k", (1, 2)), ("push_warps", (1, 2)), ("epilogue_parts", (1, 2, 4))):
            if getattr(self, name) not in choices:
                raise UsageError(f"{name} must be one of {', '.join(map(str, choices))}, got {getattr(self, name)}")
        if self.block_n // self.epilogue_parts < 16:
            raise UsageError(f"{self.epilogue_parts} epilogue parts of {self.block_n} columns: under 16 columns each")
        for name, least in (("stages", 2), ("group_m", 1), ("push_percent", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.smem_bytes > SMEM_LIMIT_BYTES:
            raise UsageError(
                f"tiles need {self.smem_bytes} bytes of shared memory, {SMEM_LIMIT_BYTES} available; lower --block-*"
            )

    @property
    def warps(self) -> int:
        """Warps that multiply: four for each 64 rows of a tile."""
        return self.block_m // 16

    @property
    def max_registers(self) -> int:
        """Registers a thread at launch; four more warps load and push, and the compiler moves theirs to the others."""
        return min(65536 // ((self.warps + 4) * 32) // 8 * 8, 240)

    @property
    def smem_bytes(self) -> int:
        """Bytes of shared memory: the ring of A and B tiles, the staging buffers of the epilogue, barriers."""
        return smem_bytes(self.block_m, self.block_n, self.block_k, self.stages, self.epilogue_parts)

    @property
    def units_per_chunk(self) -> int:
        """Push units of one chunk; the last chunks count units beyond M or K too, so that all chunks have as many."""
        return (self.chunk_m // self.push_m) * (self.chunk_k // self.push_k)

    def chunks(self, problem: Problem) -> tuple[int, int]:
        """Chunks of one shard, along M and along K."""
        return cdiv(problem.m, self.chunk_m), cdiv(problem.k, self.chunk_k)

    def tiles(self, problem: Problem) -> tuple[int, int]:
        """Tiles of one rank's rows of C, along M and along N."""
        return cdiv(problem.m, self.block_m), cdiv(problem.n, self.block_n)


def work_item(
    item: int, per_source: int, tiles_m: int, tiles_n: int, rank: int, world: int, split_k: int, group_m: int
) -> tuple[int, int, int, int]:
    """Work item ``item`` of ``world * per_source``: ``(source rank, tile row, tile column, part of K)``.

    The own shard comes first, then the peers' in the order in which they arrive (rank + 1, rank + 2, ...). Within a
    shard, rows go in groups of ``group_m``: all columns of a group, rows fastest, so that programs working at the same
    time share tiles of A and B in L2. The same source runs in Python and, compiled, in the kernel. Rank 0 of two,
    two rows, two columns, no split::

        item     0 1 2 3   4 5 6 7
        source   0 0 0 0   1 1 1 1
        row      0 1 0 1   0 1 0 1
        column   0 0 1 1   0 0 1 1
    """
    source = (rank + item // per_source) % world
    rest = item % per_source
    part = rest % split_k
    tile = rest // split_k
    group_tiles = group_m * tiles_n
    first_row = tile // group_tiles * group_m
    rows = min(tiles_m - first_row, group_m)
    in_group = tile % group_tiles
    return source, first_row + in_group % rows, in_group // rows, part


def push_unit(
    unit: int, chunks_k: int, units_per_chunk: int, chunk_m: int, chunk_k: int, push_m: int, push_k: int
) -> tuple[int, int, int]:
    """Push unit ``unit``: ``(chunk, first row, first column)`` in the shard. Chunks in the order of their flags.

    The same source runs in Python and, compiled, in the kernel. ``chunks_k`` 2, chunks of 4 x 8, units of 2 x 8::

        unit     0 1   2 3   4 5   6 7
        chunk    0 0   1 1   2 2   3 3
        row      0 2   0 2   4 6   4 6
        column   0 0   8 8   0 0   8 8
    """
    chunk = unit // units_per_chunk
    in_chunk = unit % units_per_chunk
    units_k = chunk_k // push_k
    row = chunk // chunks_k * chunk_m + in_chunk // units_k * push_m
    col = chunk % chunks_k * chunk_k + in_chunk % units_k * push_k
    return chunk, row, col


def k_step(i: int, first: int, last: int, down: int) -> int:
    """The ``i``-th step over K, ``first <= i < last``, of an item that goes up K (``down`` 0) or down it (1)."""
    return i + down * (first + last - 1 - 2 * i)


def enters_chunk(i: int, step: int, first: int, down: int, block_k: int, chunk_k: int) -> bool:
    """Whether ``step``, the ``i``-th, is an item's first one in its chunk of K."""
    return (i == first) | ((step + down) * block_k % chunk_k == 0)


# Tiles (block_m, block_n, block_k) in the order of preference: the wider, the fewer bytes a product reads.
TILES = ((128, 256, 64), (128, 128, 64), (128, 64, 64), (64, 64, 128))
TILES_OF_FEW_ROWS = ((64, 128, 64), (64, 64, 128))  # for up to 64 rows
MIN_WAVE = 0.9  # of the programs: as many tiles of the own shard a tile size must give, else the next is taken
MAX_STAGES = 8
CHUNK_ROWS, CHUNK_K = 128, 4096  # of a shard, under one flag: each costs the loads a look at it, some 0.1 us
# What one multiprocessor of an H200 reached in these products, two ranks. How long the pushes take goes by it: the
# faster, the more the link holds up the loads, the slower, the longer the peers wait.
FLOP_PER_NS = 6000
BYTES_PER_NS = 115


def choose(problem: Problem, programs: int = 132, **overrides: int) -> CudaConfig:
    """The configuration for a problem on ``programs`` multiprocessors; ``overrides`` are fields of ``CudaConfig``.

    The widest tile of which the own shard has about as many as there are programs: then all are busy with it while the
    peers' data is on its way. Measured on H200 (benchmarks/cuda-notes.md).
    """
    tiles = TILES if problem.m > 64 else TILES_OF_FEW_ROWS
    enough = (t for t in tiles if cdiv(problem.m, t[0]) * cdiv(problem.n, t[1]) >= MIN_WAVE * programs)
    names = ("block_m", "block_n", "block_k")
    blocks = {name: overrides.get(name, value) for name, value in zip(names, next(enough, tiles[-1]), strict=True)}
    stages, parts = _depth(**blocks)
    unit_m, unit_k = (overrides.get(name, getattr(CudaConfig, name)) for name in ("push_m", "push_k"))
    step_k = max(unit_k, blocks["block_k"])  # a flag covers whole steps and units, and no more of them than there are
    config = blocks | {
        "stages": stages,
        "epilogue_parts": parts,
        "chunk_m": max(CHUNK_ROWS, blocks["block_m"], unit_m),
        "chunk_k": min(max(CHUNK_K, step_k), cdiv(problem.k, step_k) * step_k),
    }
    return CudaConfig(**config | overrides)


def push_every_ns(problem: Problem, config: CudaConfig, programs: int) -> int:
    """Nanoseconds from one push unit of a rank to its next, so that all take ``push_percent`` of the own products."""
    if problem.world == 1:
        return 0
    tiles_m, tiles_n = config.tiles(problem)
    flop_ns = 2 * config.block_m * config.block_n / FLOP_PER_NS
    bytes_ns = 2 * (config.block_m + config.block_n) / BYTES_PER_NS
    waves = max(tiles_m * tiles_n * config.split_k / programs, 1)
    own_ns = waves * problem.k / config.split_k * max(flop_ns, bytes_ns)
    chunks_m, chunks_k = config.chunks(problem)
    return int(config.push_percent / 100 * own_ns / (chunks_m * chunks_k * config.units_per_chunk))


def _depth(block_m: int, block_n: int, block_k: int) -> tuple[int, int]:
    """Stages of the ring and pieces of the epilogue: as few pieces as leave room for three stages, or else for two.

    But two for 64 rows: all that is left to do after their last step is the epilogue, and pieces of it overlap.
    """
    pieces = (2, 4) if block_m == 64 and block_n >= 32 else (1, 2, 4)
    for least in (3, 2):
        for parts in pieces:
            for stages in range(MAX_STAGES, least - 1, -1):
                if smem_bytes(block_m, block_n, block_k, stages, parts) <= SMEM_LIMIT_BYTES:
                    return stages, parts
    return 2, 4
