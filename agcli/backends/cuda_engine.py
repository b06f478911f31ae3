"""Symmetric memory and launches of the CUDA kernels for one problem on one rank.

Symmetric memory of a rank, in this order (W ranks, shards of ``[M, K]``)::

    data   [2 slots, W sources, M, K]   what the peers pushed; a rank's own shard is read where it lies and never copied
    flags  [W sources, chunks] int32    how many push units of a chunk have arrived since the engine was made

Why no barrier is needed. Call n uses slot n mod 2, and flags only ever grow: a chunk of call n has arrived when its
flag has reached n times its number of units.

- *Nothing is overwritten too early.* Rank r pushes call n into a peer p's slot that p last read in its call n - 2. r
  begins call n after its own call n - 1 ended, that call waited for every chunk of p's call n - 1, p pushes call n - 1
  from a kernel that began after its kernel of call n - 2 had ended, and by then p has read all it will of call n - 2.
- *No flag lies.* p adds to a flag for call n only after its call n - 1 is complete, so a flag that has reached n times
  the units has seen all units of all calls up to n. A later call may have raised it further: hence "reached".
- *Every wait ends*, if all ranks call equally often and, where there are several operators, in the same order and one
  at a time: pushing never waits for anything, and all programs of a launch are resident at once, unless another
  operator's launch on another stream takes their place.

The number of the call lives on the device, one copy a program, read and advanced by that program alone: so a CUDA graph
of a call replays correctly, and calls from graphs and from Python may follow each other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agcli.backends.cuda_tuning import CudaConfig, push_every_ns
from agcli.errors import AgGemmError, EnvironmentFault
from agcli.problem import INT32_MAX, KernelConfig, Plan, cdiv

if TYPE_CHECKING:
    import torch

    from agcli.problem import Problem

ANY_BLOCKS = (64, 128, 32)  # block_m, block_n and block_k of the kernel with addresses
LAUNCHES_KEPT = 256  # prepared launches (sets of operand addresses) an engine remembers
ALIGNMENT = 16  # bytes: what tensor descriptors ask of addresses and row strides
ROWS_AT_ONCE = 128  # at most, of a tile or a push unit: offsets in those are 32-bit where descriptors are used


class _Address:
    """What a launch needs of a tensor: its address and type. Keeps no memory alive."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = tensor.data_ptr()

    def data_ptr(self) -> int:
        """Address in bytes."""
        return self._address


def can_describe(matrix: torch.Tensor) -> bool:
    """Whether the kernel with tensor descriptors (TMA) can address ``matrix``, whose coordinates are 32-bit."""
    row, col = matrix.stride()
    # A row stride of a single row may be anything in torch, but not in a descriptor.
    aligned = matrix.data_ptr() % ALIGNMENT == 0 and row * matrix.element_size() % ALIGNMENT == 0
    near = matrix.shape[0] <= INT32_MAX and ROWS_AT_ONCE * row <= INT32_MAX
    return aligned and near and col == 1 and row >= matrix.shape[1]


@dataclass
class PeerMemory:
    """Memory of one rank that its peers write.

    ``local`` holds its bytes, ``bases`` the address of every rank's memory as this rank sees it; ``meet`` returns once
    all ranks have called it, or raises, on all of them, the faults that they bring.
    """

    rank: int
    local: torch.Tensor
    bases: list[int]
    meet: Callable[[AgGemmError | None], None]
    owner: Any = None  # what keeps the peers' mappings alive


def symmetric_memory(size: int, group: Any, device: torch.device) -> PeerMemory:
    """``size`` bytes on every rank of ``group``, each mapped by all. Collective; a fault is raised on all ranks."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm_mem

    from agcli.agreement import raise_together

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    meet = partial(raise_together, group=group)
    fault = None
    try:
        empty = symm_mem.empty if world > 1 else torch.empty  # alone there is nobody to share it with
        local = empty(size, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as e:
        fault = EnvironmentFault(f"out of GPU memory: the symmetric buffer needs {size} bytes; lower --m or --k ({e})")
    except RuntimeError as e:
        fault = EnvironmentFault(f"symmetric memory of {size} bytes was refused: {e}")
    meet(fault)
    if world == 1:
        return PeerMemory(rank, local, [local.data_ptr()], meet)
    try:
        handle = symm_mem.rendezvous(local, group=group.group_name)
    except RuntimeError as e:
        fault = EnvironmentFault(f"symmetric memory of {size} bytes cannot be shared: {e}")
    meet(fault)
    offset = local.data_ptr() - int(handle.buffer_ptrs[rank])  # of the tensor in its allocation, alike on all ranks
    return PeerMemory(rank, local, [int(p) + offset for p in handle.buffer_ptrs], meet, handle)


def symmetric_bytes(problem: Problem, config: CudaConfig) -> tuple[int, int]:
    """Offset of the flags, and size, of a rank's symmetric memory."""
    flags_offset = cdiv(2 * problem.world * problem.m * problem.k * problem.itemsize, 128) * 128
    chunks_m, chunks_k = config.chunks(problem)
    return flags_offset, flags_offset + problem.world * chunks_m * chunks_k * 4


def local_memory(problem: Problem, config: CudaConfig) -> list[PeerMemory]:
    """Memory of all ranks on the current GPU, for tests and measurements of several ranks in one process."""
    import torch

    size = symmetric_bytes(problem, config)[1]
    parts = [torch.zeros(size, dtype=torch.uint8, device="cuda") for _ in range(problem.world)]
    bases = [part.data_ptr() for part in parts]
    return [PeerMemory(rank, part, bases, _raise_own) for rank, part in enumerate(parts)]


def _raise_own(fault: AgGemmError | None) -> None:
    if fault is not None:
        raise fault


class CudaEngine:
    """Symmetric memory, compiled kernels and prepared launches for one problem on one rank."""

    def __init__(
        self, problem: Problem, config: CudaConfig, memory: PeerMemory, wait_limit_s: float, programs: int | None = None
    ) -> None:
        """Collective. ``programs`` (default: one a multiprocessor) must fit on the GPU at once."""
        import torch

        self.problem, self.config, self.rank = problem, config, memory.rank
        self.dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[problem.dtype]
        device = memory.local.device
        properties = torch.cuda.get_device_properties(device)
        self._programs = programs or properties.multi_processor_count
        self._hopper = properties.major == 9
        self._limit_ns = int(wait_limit_s * 1e9)
        self._memory: PeerMemory | None = memory
        self._shard_bytes = problem.m * problem.k * problem.itemsize
        self._flags_offset, _ = symmetric_bytes(problem, config)
        self._calls = 0
        self._told = False  # of a wait in vain
        self._compiled: dict[Any, Any] = {}
        self._launches: dict[Any, Any] = {}
        fault = None
        try:
            self._allocate(memory)
        except torch.OutOfMemoryError as e:
            fault = EnvironmentFault(f"out of GPU memory beside the symmetric buffer: lower --m or --n ({e})")
        # No peer may push before every rank has cleared its flags.
        torch.cuda.synchronize(device)
        memory.meet(fault)

    def _allocate(self, memory: PeerMemory) -> None:
        """What launches need beside their operands; flags cleared, and both slots full of NaN."""
        import torch

        problem, config, device = self.problem, self.config, memory.local.device
        tiles_m, tiles_n = config.tiles(problem)
        split_tiles = problem.world * tiles_m * tiles_n if config.split_k > 1 else 0
        halves = split_tiles * config.split_k * config.block_m * config.block_n
        self._halves = torch.empty(halves, dtype=torch.float32, device=device)
        self._turns = torch.zeros(max(split_tiles, 1), dtype=torch.int32, device=device)
        memory.local[self._flags_offset :].zero_()
        data = memory.local[: 2 * problem.world * self._shard_bytes]
        self._gathered = data.view(self.dtype).view(2 * problem.world * problem.m, problem.k)
        self._gathered.fill_(float("nan"))
        self._bases = torch.tensor(memory.bases, dtype=torch.int64, device=device)
        # Of each program the number of calls, and behind them whether one waited in vain.
        self._epochs = torch.zeros(2 * self._programs, dtype=torch.int32, device=device)
        # Pinned, so that the host sees what a kernel reports without waiting for it; read there by every call, and a
        # look at a tensor costs a tenth of a call.
        self._error = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._failure = ctypes.c_int32.from_address(self._error.data_ptr())

    def run(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> None:
        """Enqueue ``c = all_gather(a) @ b`` on the current stream; a ``[M, K]``, b ``[K, N]``, c ``[W * M, N]``.

        All calls of an engine go to one stream, or to streams that wait for each other.
        """
        if self._failure.value:
            self.check()
        kernel, arguments = self.prepare(a, b, c)
        kernel(*arguments)
        self._calls += 1

    def prepare(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        """What ``run`` launches for these operands, compiled and loaded but not launched."""
        key = (a.data_ptr(), b.data_ptr(), c.data_ptr(), a.stride(), b.stride(), c.stride())
        launch = self._launches.get(key)
        if launch is None:
            if len(self._launches) >= LAUNCHES_KEPT:
                self._launches.clear()
            launch = self._launches[key] = self._make_launch(a, b, c)
        return launch

    def _make_launch(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        described = self._hopper and all(map(can_describe, (a, b, c, self._gathered)))
        kernel, arguments, options = self._described(a, b, c) if described else self._addressed(a, b, c)
        grid = (self._programs, 1, 1)
        key = (described, a.stride(), b.stride(), c.stride(), a.data_ptr() % 16, b.data_ptr() % 16, c.data_ptr() % 16)
        compiled = self._compiled.get(key)
        if compiled is None:
            compiled = self._compiled[key] = kernel.warmup(*arguments, grid=grid, **options)
        # A launch takes addresses as they are; it would look up every one that an object gives it.
        plain = tuple(each.data_ptr() if isinstance(each, _Address) else each for each in arguments)
        return compiled[grid], plain

    def _described(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Kernel, arguments and options of the kernel with tensor descriptors (TMA)."""
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        from agcli.kernels.allgather_gemm_cuda import allgather_gemm_kernel

        p, g = self.problem, self.config
        element = gl.bfloat16 if p.dtype == "bf16" else gl.float16

        def descriptor(tensor: torch.Tensor, rows: int, cols: int) -> TensorDescriptor:
            layout = gl.NVMMASharedLayout.get_default_for([rows, cols], element)
            return TensorDescriptor(_Address(tensor), list(tensor.shape), list(tensor.stride()), [rows, cols], layout)

        arguments = (
            descriptor(a, g.block_m, g.block_k),
            descriptor(self._gathered, g.block_m, g.block_k),
            descriptor(b, g.block_k, g.block_n),
            descriptor(c, g.block_m, g.block_n // g.epilogue_parts),
            *(_Address(t) for t in (a, c, self._bases, self._epochs, self._halves, self._turns, self._error)),
            *(
                p.m,
                p.n,
                p.k,
                a.stride(0),
                c.stride(0),
                self.rank,
                self._shard_bytes,
                self._flags_offset,
                self._limit_ns,
                push_every_ns(p, g, self._programs),
            ),
            *(g, p.world, p.m % g.block_m == 0),
        )
        return allgather_gemm_kernel, arguments, {"num_warps": g.warps, "maxnreg": g.max_registers}

    def _addressed(
        self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
    ) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Kernel, arguments and options of the kernel with masked pointers."""
        from agcli.kernels.allgather_gemm_cuda_any import allgather_gemm_any_kernel

        p = self.problem
        arguments = (
            *(_Address(t) for t in (a, b, c, self._bases, self._epochs, self._error)),
            *(
                p.m,
                p.n,
                p.k,
                *a.stride(),
                *b.stride(),
                *c.stride(),
                self.rank,
                self._shard_bytes,
                self._flags_offset,
                self._limit_ns,
            ),
            *(self.config, p.world, *ANY_BLOCKS),
        )
        return allgather_gemm_any_kernel, arguments, {"num_warps": 8}

    def check(self) -> None:
        """Raise what a kernel reported: a peer whose data did not come in time."""
        code = self._failure.value
        if code:
            self._told = True
            raise EnvironmentFault(
                f"rank {self.rank} waited {self._limit_ns / 1e9:g} s for data of rank {code - 1}, which did not come: "
                "that rank died, hangs, or made fewer calls. The results are wrong and this operator cannot go on."
            )

    @property
    def plan(self) -> Plan:
        """The problem with the blocks of contiguous operands' kernel, a call being one iteration."""
        p, g = self.problem, self.config
        described = self._hopper and p.n * p.itemsize % ALIGNMENT == 0 and p.k * p.itemsize % ALIGNMENT == 0
        blocks = (g.block_m, g.block_n, g.block_k) if described else ANY_BLOCKS
        return Plan(p, KernelConfig(*blocks, g.push_m, g.push_k, pvalue=cdiv(p.m, blocks[0]), transport="store"))

    def poison(self) -> None:
        """Fill with NaN the slot of the last call, in stream order: the peers' next pushes go to the other one."""
        slot = (self._epochs[:1] & 1).long()  # chosen on the device, which alone knows of calls that graphs replayed
        self._gathered.view(2, -1).index_fill_(0, slot, float("nan"))

    def place(self) -> dict[str, Any]:
        """The slot of the last ``run``, if no graph replayed calls."""
        return {"first_slot": self._calls & 1}

    @property
    def is_open(self) -> bool:
        """Whether it still holds memory."""
        return self._memory is not None

    def close(self) -> None:
        """Free all memory, then raise what a kernel reported, unless ``check`` did. Collective.

        Peers may still be pushing into the symmetric memory until all are here.
        """
        import torch

        if self._memory is None:
            return
        torch.cuda.synchronize(self._memory.local.device)
        self._memory.meet(None)
        self._launches.clear()
        self._compiled.clear()
        del self._gathered, self._halves, self._turns
        self._memory = None
        if not self._told:
            self.check()
