"""What the CUDA kernels import of Triton and Gluon, for ``gpu_machine``: their modules load with these instead."""

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest import mock

import torch
from gpu_machine import Barrier, Block, Dtype, Lanes, Memory, Pointer, PointerType, Scheduler, Tile, Word

KERNELS = Path(__file__).resolve().parents[2] / "agcli" / "kernels"


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
        self.unfenced = {}  # by program: a fence of one does nothing for another's shared memory

    # -- scalars, blocks, memory ---------------------------------------------------------------------------------
    def program_id(self, axis):
        return Word(self.scheduler.current.program[0])

    def num_programs(self, axis):
        return Word(self.scheduler.current.program[1])

    def load(self, pointer, mask=None, other=0.0):
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
        assert scope == "sys" or self.memory.owner(pointer.address) == task.program[2], "a peer sees no other scope"
        if sem in ("release", "acq_rel"):
            self.scheduler.wait_for(task.stores)
            task.stores.clear()
        else:
            self.scheduler.pause()
        old = self.memory.read(pointer)
        self.memory.write(pointer, old + value)
        return old

    def inline_asm(self, asm, constraints, arguments, dtype, is_pure, pack):
        """The kernels' three pieces of PTX, told by what they do."""
        if not arguments:
            return Word(self.scheduler.clock)
        if "ld.acquire.sys" in asm:
            address, target, limit_ns = arguments
            late = self.scheduler.clock + limit_ns
            word = Pointer(address, self.int32)
            self.scheduler.pause(lambda: self.memory.read(word) >= target or self.scheduler.clock > late)
            self.scheduler.current.tma_may_read |= "fence.proxy.async" in asm
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
        return Tile(torch.full(shape, torch.nan, dtype=dtype.torch), self._unfenced())

    def _unfenced(self):
        return self.unfenced.setdefault(self.scheduler.current.program, set())

    def fence(self):
        self._unfenced().clear()

    def wait(self, barrier, phase):
        self.scheduler.pause(lambda: barrier.passed(phase))

    def arrive(self, barrier, pred=True):
        self.scheduler.pause()
        if pred:
            barrier.change(1, 0)

    def tma_load(self, descriptor, corner, barrier, tile):
        assert not descriptor.shared or self.scheduler.current.tma_may_read, "no fence since the wait for a peer"

        def copy():
            descriptor.read(*corner, tile)
            barrier.change(0, -descriptor.nbytes)

        self.scheduler.spawn(copy)
        self.scheduler.pause()

    def tma_store(self, descriptor, corner, tile):
        assert tile.tensor.data_ptr() not in tile.unfenced, "TMA may not see yet what was stored"
        task = self.scheduler.current
        task.tma_stores.append(self.scheduler.spawn(lambda: descriptor.write(*corner, tile)))
        self.scheduler.pause()

    def store_wait(self, pending):
        stores = self.scheduler.current.tma_stores
        self.scheduler.wait_for(stores[: len(stores) - pending])

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
        self.scheduler.finish([self.scheduler.spawn(partial(self._partition, *each)) for each in partitions])

    def _partition(self, body, arguments):
        body(*arguments)
        assert all(store.done for store in self.scheduler.current.tma_stores), "TMA still reads shared memory"

    # -- modules -------------------------------------------------------------------------------------------------
    def _common(self):
        """What Triton's language and Gluon's have alike."""
        return {
            "constexpr": Constexpr,
            "float32": Dtype(torch.float32),
            "int32": self.int32,
            "int64": Dtype(torch.int64),
            "pointer_type": PointerType,
            "arange": lambda begin, end, layout=None: torch.arange(begin, end).as_subclass(Lanes),
            "cdiv": lambda a, b: Word(-(-int(a) // int(b))),
            "static_range": word_range,
            "program_id": self.program_id,
            "num_programs": self.num_programs,
            "load": self.load,
            "store": self.store,
            "atomic_add": self.atomic_add,
            "inline_asm_elementwise": self.inline_asm,
        }

    def _triton(self):
        """``triton.language``."""
        return self._common() | {
            "debug_barrier": nothing,
            "full": lambda shape, value, dtype: Word(value),
            "zeros": lambda shape, dtype: torch.zeros(shape).as_subclass(Lanes),
            "dot": lambda a, b, acc: acc + a.float() @ b.float(),
        }

    def _gluon(self):
        """``triton.experimental.gluon.language``."""
        return self._common() | {
            "SliceLayout": nothing,
            "BlockedLayout": nothing,
            "NVMMADistributedLayout": nothing,
            "zeros": lambda shape, dtype, layout: Block(torch.zeros(shape)),
            "multiple_of": lambda value, multiple: value,
            "barrier": nothing,  # among the warps of a partition, which are one task here
            "allocate_shared_memory": self.allocate,
            "warp_specialize": self.warp_specialize,
        }

    def _hopper(self):
        """``triton.experimental.gluon.language.nvidia.hopper``."""
        return {
            "fence_async_shared": self.fence,
            "mbarrier": SimpleNamespace(
                MBarrierLayout=BarrierLayout,
                init=lambda barrier, count: barrier.init(count),
                expect=lambda barrier, nbytes: barrier.change(1, nbytes),
                wait=self.wait,
                arrive=self.arrive,
            ),
            "tma": SimpleNamespace(async_load=self.tma_load, async_store=self.tma_store, store_wait=self.store_wait),
            "warpgroup_mma": self.mma,
            "warpgroup_mma_wait": self.mma_wait,
        }

    def modules(self):
        """What the kernels import, by name."""
        language = "triton.experimental.gluon.language"
        contents = {
            "triton": {"jit": jit},
            "triton.language": self._triton(),
            "triton.experimental": {},
            "triton.experimental.gluon": {"jit": jit},
            language: self._gluon(),
            f"{language}.nvidia": {},
            f"{language}.nvidia.hopper": self._hopper(),
        }
        found = {name: ModuleType(name) for name in contents}
        for name, module in found.items():
            module.__dict__.update(contents[name])
            parent, _, child = name.rpartition(".")
            if parent:
                setattr(found[parent], child, module)
        return found


def jit(function=None, **options):
    """``triton.jit`` and ``gluon.jit``: the function itself."""
    return function if function is not None else lambda f: f


def nothing(*arguments, **options):
    """What has no effect here."""


def word_range(*bounds):
    """``range`` of Words."""
    return map(Word, range(*bounds))


def load_kernel(name, scheduler, memory):
    """The module of a kernel, ``agcli/kernels/<name>.py``, on this machine."""
    spec = importlib.util.spec_from_file_location(f"{name}_on_the_cpu", KERNELS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    module.range = word_range
    with mock.patch.dict(sys.modules, Language(scheduler, memory).modules()):
        spec.loader.exec_module(module)
    return module
