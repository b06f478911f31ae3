"""What the CUDA kernel imports of Gluon, for ``gluon_machine``: the kernel's module is loaded with these instead."""

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch
from gluon_machine import Barrier, Block, Dtype, Lanes, Memory, Pointer, PointerType, Scheduler, Tile, Word

KERNEL = Path(__file__).resolve().parents[2] / "agcli" / "kernels" / "allgather_gemm_cuda.py"


class Constexpr:
    """``gl.constexpr``: the value itself."""

    def __new__(cls, value):
        return value


class BarrierLayout:
    """Tells an allocation of mbarriers."""


class Language:
    """The functions of ``gl`` and its Hopper part, on one machine."""

    def __init__(self, scheduler: Scheduler, memory: Memory):
        self.scheduler, self.memory = scheduler, memory

    # -- scalars, blocks, memory ---------------------------------------------------------------------------------
    def program_id(self, axis):
        return Word(self.scheduler.current.program[0])

    def num_programs(self, axis):
        return Word(self.scheduler.current.program[1])

    def load(self, pointer, mask=None):
        self.scheduler.pause()
        return self.memory.read(pointer, mask)

    def store(self, pointer, value, mask=None):
        """Visible at any time until the task's next release, or the end of the program."""
        value = value.value if isinstance(value, Block) else value
        task = self.scheduler.current
        task.stores.append(self.scheduler.spawn(lambda: self.memory.write(pointer, value, mask)))
        self.scheduler.pause()

    def atomic_add(self, pointer, value, sem, scope):
        task = self.scheduler.current
        if sem in ("release", "acq_rel"):
            self.scheduler.pause(lambda: all(store.done for store in task.stores))
            task.stores.clear()
        else:
            self.scheduler.pause()
        old = self.memory.read(pointer)
        self.memory.write(pointer, old + value)
        return old

    def inline_asm(self, asm, constraints, arguments, dtype, is_pure, pack):
        """The kernel's three pieces of PTX, told by what they do."""
        if not arguments:
            return Word(self.scheduler.clock)
        if "ld.acquire.sys" in asm:
            assert "fence.proxy.async" in asm  # TMA reads next what ordinary stores wrote
            address, target, limit_ns = arguments
            late = self.scheduler.clock + limit_ns
            word = Pointer(address, self.int32)
            self.scheduler.pause(lambda: self.memory.read(word) >= target or self.scheduler.clock > late)
            return Word(self.memory.read(word) < target)
        (due,) = arguments
        self.scheduler.pause(lambda: self.scheduler.clock >= due)
        return Word(0)

    int32 = Dtype(torch.int32)

    # -- shared memory, mbarriers, TMA, wgmma --------------------------------------------------------------------
    def allocate(self, dtype, shape, layout):
        if isinstance(layout, BarrierLayout):
            barriers = [Barrier() for _ in range(shape[0])]
            return SimpleNamespace(index=lambda i: barriers[i])
        return Tile(torch.full(shape, torch.nan, dtype=dtype.torch))

    def wait(self, barrier, phase):
        self.scheduler.pause(lambda: barrier.passed(phase))

    def arrive(self, barrier, pred=True):
        self.scheduler.pause()
        if pred:
            barrier.change(1, 0)

    def tma_load(self, descriptor, corner, barrier, tile):
        def copy():
            descriptor.read(*corner, tile)
            barrier.change(0, -descriptor.nbytes)

        self.scheduler.spawn(copy)
        self.scheduler.pause()

    def tma_store(self, descriptor, corner, tile):
        task = self.scheduler.current
        task.tma_stores.append(self.scheduler.spawn(lambda: descriptor.write(*corner, tile)))
        self.scheduler.pause()

    def store_wait(self, pending):
        stores = self.scheduler.current.tma_stores
        earlier = stores[: len(stores) - pending]
        self.scheduler.pause(lambda: all(store.done for store in earlier))

    def mma(self, a, b, acc, use_acc=True, is_async=False):
        assert is_async
        acc.owed.append((a, b, bool(use_acc)))
        self.scheduler.pause()
        return acc

    def mma_wait(self, pending, deps):
        self.scheduler.pause()
        (acc,) = deps
        acc.pay(pending)
        return acc

    def warp_specialize(self, partitions, warps, registers):
        self.scheduler.finish([self.scheduler.spawn(partial(f, *args)) for f, args in partitions])

    # -- modules -------------------------------------------------------------------------------------------------
    def modules(self):
        """What the kernel imports, by name."""

        def jit(function=None, **options):
            return function if function is not None else lambda f: f

        def nothing(*args, **options):
            return None

        gl = ModuleType("triton.experimental.gluon.language")
        gl.__dict__.update(
            constexpr=Constexpr,
            float32=Dtype(torch.float32),
            int32=self.int32,
            int64=Dtype(torch.int64),
            pointer_type=PointerType,
            SliceLayout=nothing,
            BlockedLayout=nothing,
            NVMMADistributedLayout=nothing,
            arange=lambda begin, end, layout: torch.arange(begin, end).as_subclass(Lanes),
            zeros=lambda shape, dtype, layout: Block(torch.zeros(shape)),
            cdiv=lambda a, b: Word(-(-int(a) // int(b))),
            multiple_of=lambda value, multiple: value,
            static_range=word_range,
            barrier=nothing,  # among the warps of a partition, which are one task here
            program_id=self.program_id,
            num_programs=self.num_programs,
            load=self.load,
            store=self.store,
            atomic_add=self.atomic_add,
            inline_asm_elementwise=self.inline_asm,
            allocate_shared_memory=self.allocate,
            warp_specialize=self.warp_specialize,
        )
        hopper = ModuleType("triton.experimental.gluon.language.nvidia.hopper")
        hopper.__dict__.update(
            fence_async_shared=nothing,
            mbarrier=SimpleNamespace(
                MBarrierLayout=BarrierLayout,
                init=lambda barrier, count: barrier.init(count),
                expect=lambda barrier, nbytes: barrier.change(1, nbytes),
                wait=self.wait,
                arrive=self.arrive,
            ),
            tma=SimpleNamespace(async_load=self.tma_load, async_store=self.tma_store, store_wait=self.store_wait),
            warpgroup_mma=self.mma,
            warpgroup_mma_wait=self.mma_wait,
        )
        gluon = ModuleType("triton.experimental.gluon")
        gluon.__dict__.update(jit=jit, language=gl)
        parents = {name: ModuleType(name) for name in ("triton", "triton.experimental")}
        return parents | {
            "triton.experimental.gluon": gluon,
            gl.__name__: gl,
            f"{gl.__name__}.nvidia": ModuleType(f"{gl.__name__}.nvidia"),
            hopper.__name__: hopper,
        }


def word_range(*bounds):
    """``range`` of Words."""
    return map(Word, range(*bounds))


def load_kernel(scheduler, memory):
    """The kernel's module, on this machine."""
    spec = importlib.util.spec_from_file_location("kernel_on_the_cpu", KERNEL)
    module = importlib.util.module_from_spec(spec)
    module.range = word_range
    with mock.patch.dict(sys.modules, Language(scheduler, memory).modules()):
        spec.loader.exec_module(module)
    return module
