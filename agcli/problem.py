"""The problem, the kernel's configuration, and all that follows from both. Pure: no device, no torch.

Legend: W ranks, A ``[M, K]`` and B ``[K, N]`` on each rank, C ``[W * M, N]`` on each rank.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from agcli.chips import Chip, has_udma
from agcli.errors import UsageError

ITEMSIZE = {"fp16": 2, "bf16": 2}
FRACTAL = 16  # the cube core multiplies 16 x 16 fractals of 16-bit elements, so tiles are multiples of it
INT32_MAX = 2**31 - 1
MAX_RANKS = 16384  # ACLSHMEM's limit (check_attr)
# The options whose values make the tiles in a memory as large as they are.
LIMITING_OPTIONS = {
    "L1": "--block-k, --block-m or --block-n",
    "L0C": "--block-m or --block-n",
    "UB": "--comm-block-m or --comm-block-k",
}
UDMA_PUT_LIMIT = 256 * 2**20  # bytes of one put (shmem docs/api/device_api.rst)


def cdiv(a: int, b: int) -> int:
    """``a / b`` rounded up, for ``a >= 0`` and ``b > 0``."""
    return -(-a // b)


@dataclass(frozen=True)
class Problem:
    """``C = all_gather(A) @ B`` with M, N, K per rank. Raises UsageError for sizes that make no problem."""

    m: int
    n: int
    k: int
    world: int
    dtype: str = "fp16"

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            value = getattr(self, name)
            try:
                object.__setattr__(self, name, operator.index(value))  # of NumPy, too, as an int that JSON takes
            except TypeError:
                raise UsageError(f"{name.upper()} must be a whole number, got {value!r} (--{name})") from None
            if value < 1:
                raise UsageError(f"{name.upper()} must be at least 1, got {value} (--{name})")
            if value > INT32_MAX:
                raise UsageError(f"{name.upper()} must fit 32 bits, got {value} (--{name})")
        if not 1 <= self.world <= MAX_RANKS:
            raise UsageError(f"the world size must be 1 to {MAX_RANKS}, got {self.world} (--world)")
        if self.world * self.m > INT32_MAX:
            raise UsageError(f"C would have {self.world * self.m} rows, more than {INT32_MAX} (--world, --m)")
        if self.dtype not in ITEMSIZE:
            raise UsageError(f"dtype must be one of {', '.join(ITEMSIZE)}, got '{self.dtype}' (--dtype)")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return ITEMSIZE[self.dtype]

    @property
    def a_shape(self) -> tuple[int, int]:
        """Shape of a rank's A."""
        return (self.m, self.k)

    @property
    def b_shape(self) -> tuple[int, int]:
        """Shape of a rank's B."""
        return (self.k, self.n)

    @property
    def c_shape(self) -> tuple[int, int]:
        """Shape of a rank's C."""
        return (self.world * self.m, self.n)

    @property
    def flops(self) -> int:
        """Floating-point operations of one rank: ``2 * W * M * N * K``."""
        return 2 * self.world * self.m * self.n * self.k


@dataclass(frozen=True)
class KernelConfig:
    """How the kernel cuts a problem. The defaults are those of the defining document.

    ``pvalue`` counts tile rows of A gathered per iteration, ``buffer_num`` the slots of the symmetric buffer, and
    ``transport`` is ``store`` (vector cores write tiles to the peers), ``putmem`` (one transfer per peer) or ``auto``.
    Raises UsageError for what is wrong on any chip.
    """

    block_m: int = 128
    block_n: int = 256
    block_k: int = 256
    comm_block_m: int = 20
    comm_block_k: int = 256
    pvalue: int = 4
    buffer_num: int = 2
    transport: str = "auto"

    def __post_init__(self) -> None:
        for name in ("block_m", "block_n", "block_k"):
            value = getattr(self, name)
            if value < FRACTAL or value % FRACTAL:
                raise UsageError(f"{name} must be a positive multiple of {FRACTAL}, got {value} ({option(name)})")
        for name in ("comm_block_m", "comm_block_k", "pvalue"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)} ({option(name)})")
        if self.comm_block_k % FRACTAL:
            raise UsageError(
                f"comm_block_k must be a multiple of {FRACTAL} (32-byte vector accesses), "
                f"got {self.comm_block_k} (--comm-block-k)"
            )
        if self.buffer_num < 2:
            raise UsageError(
                f"buffer_num must be at least 2, got {self.buffer_num}: with one slot a rank overwrites what its "
                "peers still multiply (--buffer-num)"
            )
        if self.transport not in ("auto", "store", "putmem"):
            raise UsageError(f"transport must be auto, store or putmem, got '{self.transport}' (--transport)")

    def with_options(self, **overrides: Any) -> KernelConfig:
        """This configuration with every override that is not None."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return KernelConfig(**values | {k: v for k, v in overrides.items() if v is not None})


def option(name: str) -> str:
    """The command-line option of a field."""
    return "--" + name.replace("_", "-")


def default_config(chip: Chip | None) -> KernelConfig:
    """The blocks that fit ``chip``: the defining document's, smaller in N for Ascend 950.

    There the compiler, with the options that a launch can give it, converts C on the vector cores, and a tile of
    128 x 256 in fp32, twice, does not fit UB; 128 x 128 does (AscendNPU-IR 1.2.0, docs/compile.md).
    """
    if chip is not None and has_udma(chip):
        return KernelConfig(block_n=128)
    return KernelConfig()


def tile_memory(config: KernelConfig, itemsize: int) -> dict[str, int]:
    """Bytes on one AI core that a configuration needs at least, per memory, with single buffers.

    L1 holds a tile of A and one of B, L0C the fp32 accumulator, UB one communication tile; the compiler's library cuts
    tiles to the size of L0A and L0B. Plan and overflow messages of the AscendNPU-IR 1.2.0 compiler agree byte for byte
    over the sweeps of tests/compiler/test_formulas.py (Ascend910B3 and 950, both types).
    """
    return {
        "L1": (config.block_m + config.block_n) * config.block_k * itemsize,
        "L0C": config.block_m * config.block_n * 4,
        "UB": config.comm_block_m * config.comm_block_k * itemsize,
    }


def memory_sizes(chip: Chip) -> dict[str, int]:
    """Bytes of the memories of one AI core that tiles live in."""
    return {"L1": chip.l1_bytes, "L0C": chip.l0c_bytes, "UB": chip.ub_bytes}


def doubled_memories(chip: Chip) -> tuple[str, ...]:
    """The memories whose tiles multi-buffering doubles: L1, and on Ascend 950 L0C. No option of a launch doubles UB.

    Where twice the tiles do not fit, the compiler for Ascend 910 goes back to single buffers by itself and the one for
    950 fails, so a launch must say which (AscendNPU-IR 1.2.0, same tests).
    """
    return ("L1", "L0C") if has_udma(chip) else ("L1",)


def single_buffered(config: KernelConfig, itemsize: int, chip: Chip) -> str | None:
    """The memory that keeps the compiler from double-buffering this configuration; None if it can."""
    need, have = tile_memory(config, itemsize), memory_sizes(chip)
    return next((memory for memory in doubled_memories(chip) if 2 * need[memory] > have[memory]), None)


@dataclass(frozen=True)
class Plan:
    """A problem with a configuration whose transport is decided, and every size that follows from both."""

    problem: Problem
    config: KernelConfig
    chip: Chip | None = None

    def __post_init__(self) -> None:
        if self.config.transport == "auto":
            raise UsageError("a plan needs a decided transport; use make_plan")

    @property
    def rows_per_iteration(self) -> int:
        """Rows of each rank's A gathered per iteration."""
        return self.config.block_m * self.config.pvalue

    @property
    def iterations(self) -> int:
        """Iterations, and so barriers, of one launch."""
        return cdiv(self.problem.m, self.rows_per_iteration)

    @property
    def tail_rows(self) -> int:
        """Rows of each rank in the last iteration."""
        return self.problem.m - (self.iterations - 1) * self.rows_per_iteration

    @property
    def slot_rows(self) -> int:
        """Rows of one slot: every rank's rows of one iteration."""
        return self.problem.world * self.rows_per_iteration

    @property
    def peer_shape(self) -> tuple[int, int, int]:
        """Shape of the symmetric buffer, ``[buffer_num, W * block_m * pvalue, K]``."""
        return (self.config.buffer_num, self.slot_rows, self.problem.k)

    @property
    def symmetric_bytes(self) -> int:
        """Bytes of symmetric memory on each rank."""
        return self.config.buffer_num * self.slot_rows * self.problem.k * self.problem.itemsize

    @cached_property
    def tiles(self) -> int:
        """Tiles of C that one rank computes in one launch."""
        full = (self.iterations - 1) * self.config.pvalue
        rows = full + cdiv(self.tail_rows, self.config.block_m)
        return self.problem.world * rows * cdiv(self.problem.n, self.config.block_n)

    @property
    def tile_steps(self) -> int:
        """Products of one A tile with one B tile in one launch of one rank."""
        return self.tiles * cdiv(self.problem.k, self.config.block_k)

    @property
    def multibuffer(self) -> bool:
        """Whether the compiler can double-buffer the tiles that it loads, so that loads overlap with products."""
        return self.chip is None or single_buffered(self.config, self.problem.itemsize, self.chip) is None

    def warnings(self) -> list[str]:
        """What works but costs speed, one sentence each."""
        memory = single_buffered(self.config, self.problem.itemsize, self.chip) if self.chip is not None else None
        if memory is None or self.chip is None:
            return []
        need, have = tile_memory(self.config, self.problem.itemsize)[memory], memory_sizes(self.chip)[memory]
        return [
            f"tiles are single-buffered: twice {need // 1024} KiB does not fit the {have // 1024} KiB of {memory} on "
            f"{self.chip.name}; lower {LIMITING_OPTIONS[memory]} to overlap loads with work"
        ]

    def next_slot(self, first_slot: int) -> int:
        """The slot after the last one that a launch starting at ``first_slot`` uses."""
        return (first_slot + self.iterations) % self.config.buffer_num

    def locate(self, row: int, col: int, first_slot: int) -> dict[str, int]:
        """Where element ``(row, col)`` of C came from: source rank, its local row, iteration, slot and tile of C."""
        source, local = divmod(row, self.problem.m)
        iteration, in_iteration = divmod(local, self.rows_per_iteration)
        return {
            "source_rank": source,
            "local_row": local,
            "iteration": iteration,
            "slot": (first_slot + iteration) % self.config.buffer_num,
            "tile_row": in_iteration // self.config.block_m,
            "tile_col": col // self.config.block_n,
        }


def decide_transport(config: KernelConfig, chip: Chip | None) -> KernelConfig:
    """``auto`` as ``putmem`` where that is the chip's transfer engine (Ascend 950), else as ``store``."""
    if config.transport != "auto":
        return config
    return config.with_options(transport="putmem" if chip is not None and has_udma(chip) else "store")


def make_plan(problem: Problem, config: KernelConfig, chip: Chip | None) -> Plan:
    """Decide the transport and check all limits of ``chip`` (None: a platform without Ascend's memories).

    On 910B and 910C ``auto`` is ``store``, since a put there is one core copying in 16 KiB steps. Raises UsageError
    naming the memory, needed and available bytes, and the option.
    """
    config = decide_transport(config, chip)
    plan = Plan(problem, config, chip)
    if chip is not None:
        _check_memories(plan, chip)
    # The largest offset inside a tile of the symmetric buffer; bases of tiles are 64-bit.
    reach = max(config.block_m, config.comm_block_m) * problem.k
    if reach > INT32_MAX:
        lower = "--k, --block-m or --comm-block-m"
        raise UsageError(f"K = {problem.k} makes offsets inside a tile exceed 32 bits ({reach}); lower {lower}")
    put_bytes = min(plan.rows_per_iteration, problem.m) * problem.k * problem.itemsize
    if config.transport == "putmem" and put_bytes > UDMA_PUT_LIMIT:
        raise UsageError(
            f"a put would move {put_bytes} bytes, more than the {UDMA_PUT_LIMIT} of one transfer; "
            "lower --pvalue or --block-m, or use --transport store"
        )
    return plan


def check_contiguous_reach(plan: Plan) -> None:
    """Refuse an N for which Ascend's kernel exceeds 32 bits inside a tile of a contiguous B or C. Raises UsageError.

    No part of a plan: an operator may be given operands with other strides, and judges them call by call.
    """
    n, config = plan.problem.n, plan.config
    reach = max(config.block_k, config.block_m) * n + config.block_n
    if plan.chip is not None and reach > INT32_MAX:
        lower = "--n, --block-k or --block-m"
        raise UsageError(f"N = {n} makes offsets inside a tile exceed 32 bits ({reach}); lower {lower}")


def _check_memories(plan: Plan, chip: Chip) -> None:
    need = tile_memory(plan.config, plan.problem.itemsize)
    for memory, available in memory_sizes(chip).items():
        if need[memory] > available:
            raise UsageError(
                f"{memory} of {chip.name} is too small: {need[memory]} bytes needed, {available} available; "
                f"lower {LIMITING_OPTIONS[memory]}"
            )
