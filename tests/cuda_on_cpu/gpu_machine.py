"""A Hopper GPU as the Gluon kernel sees it, on the CPU: memory, mbarriers, TMA and wgmma, in random schedules.

Everything that hardware does later happens here at any later time that the rules allow: a TMA load or store copies
between its issue and its completion, a plain store becomes visible before the storing task's next release at the
latest, and a wgmma reads its operands when it is waited for. Tasks (the partitions of every program of every rank) take
turns at random. Times are those of a clock that moves by a few nanoseconds with every turn.
"""

import bisect
import random
from types import SimpleNamespace

import torch
from greenlet import getcurrent, greenlet


class Deadlock(Exception):
    """No task can go on."""


class Word(int):
    """A scalar of the kernel: an int that knows ``to``, as do all results of its arithmetic."""

    def to(self, dtype):
        return Pointer(int(self), dtype.element_ty) if isinstance(dtype, PointerType) else self


def _closed(name):
    plain = getattr(int, name)

    def operator(self, *others):
        result = plain(self, *others)
        return result if result is NotImplemented else Word(result)

    return operator


for _name in ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor"):
    setattr(Word, f"__{_name}__", _closed(f"__{_name}__"))
    setattr(Word, f"__r{_name}__", _closed(f"__r{_name}__"))


class Dtype:
    """An element type: its torch type and size in bytes."""

    def __init__(self, torch_dtype):
        self.torch, self.size = torch_dtype, torch_dtype.itemsize


class PointerType:
    """The type of a pointer to elements."""

    def __init__(self, element):
        self.element_ty = element


class Pointer:
    """Addresses in bytes, one or a block of them, of elements of one type."""

    def __init__(self, address, element):
        self.address, self.element, self.dtype = address, element, PointerType(element)

    def __add__(self, offset):
        return Pointer(self.address + offset * self.element.size, self.element)


class Memory:
    """One address space over all ranks: every allocation is a torch tensor, seen as bytes."""

    def __init__(self):
        self._bases, self._bytes, self._owners = [], [], []
        self._next = 1 << 20

    def allocate(self, tensor, owner):
        """Make ``tensor``, of rank ``owner``, addressable; its address."""
        base = self._next
        self._bases.append(base)
        self._bytes.append(tensor.view(-1).view(torch.uint8))
        self._owners.append(owner)
        self._next += (self._bytes[-1].numel() // 256 + 2) * 256
        return base

    def owner(self, address):
        """The rank in whose memory ``address`` is."""
        return self._owners[self._allocation(address)]

    def _allocation(self, address):
        return bisect.bisect_right(self._bases, address) - 1

    def _elements(self, pointer):
        at = self._allocation(int(pointer.address if isinstance(pointer.address, int) else pointer.address.min()))
        elements = self._bytes[at].view(pointer.element.torch)
        return elements, (pointer.address - self._bases[at]) // pointer.element.size

    def read(self, pointer, mask=None):
        """A Word, or a block with zeros where the mask says no."""
        if not isinstance(pointer.address, torch.Tensor):
            elements, index = self._elements(pointer)
            return Word(elements[index].item())
        values = torch.zeros(pointer.address.shape, dtype=pointer.element.torch)
        mask = _whole(mask, pointer)
        if mask.any():
            elements, index = self._elements(Pointer(pointer.address[mask], pointer.element))
            values[mask] = elements[index]
        return values

    def write(self, pointer, value, mask=None):
        """Store a scalar, or a block where the mask says yes."""
        if not isinstance(pointer.address, torch.Tensor):
            elements, index = self._elements(pointer)
            elements[index] = value
            return
        mask = _whole(mask, pointer)
        if mask.any():
            elements, index = self._elements(Pointer(pointer.address[mask], pointer.element))
            elements[index] = value.expand(pointer.address.shape)[mask]


def _whole(mask, pointer):
    """A mask in the shape of a block of pointers; True everywhere if there is none."""
    shape = pointer.address.shape
    return torch.ones(shape, dtype=torch.bool) if mask is None else mask.expand(shape)


class Task:
    """Something that takes turns: a partition, a program, a rank, or an operation under way."""

    def __init__(self, body, scheduler, program):
        self.run, self.program, self.ready = greenlet(body, scheduler), program, None
        self.stores = []  # plain stores of this task, under way
        self.tma_stores = []
        self.tma_may_read = False  # what ordinary stores of others wrote: since a fence between the two proxies

    @property
    def done(self):
        return self.run.dead


class Scheduler:
    """Gives turns to tasks that are ready, at random."""

    def __init__(self, seed):
        self.chance, self.clock = random.Random(seed), 0
        self._home = getcurrent()
        self._tasks = []
        self._by_greenlet = {}

    def spawn(self, body, program=None):
        """Add a task; ``program`` is (number, count, rank) for ``program_id``, by default that of the spawning task."""
        current = self._by_greenlet.get(getcurrent())
        task = Task(body, self._home, program or (current.program if current else None))
        self._tasks.append(task)
        self._by_greenlet[task.run] = task
        return task

    @property
    def current(self):
        """The task whose turn it is."""
        return self._by_greenlet[getcurrent()]

    def pause(self, ready=None):
        """Give others a turn, until ``ready()``."""
        self.current.ready = ready
        self._home.switch()

    def wait_for(self, tasks):
        """Pause until ``tasks`` have ended."""
        self.pause(lambda: all(task.done for task in tasks))

    def finish(self, tasks):
        """Wait until ``tasks`` have ended and what they stored is visible."""
        self.wait_for(tasks)
        self.wait_for([store for task in tasks for store in task.stores])

    def run(self, patience=2000):
        """Run all tasks to their ends. ``patience``: microseconds to let pass while all wait, for those that wait for
        the clock. Raises Deadlock."""
        idle = 0
        while self._tasks:
            task = self._next()
            if task is None:
                self.clock += 1000
                idle += 1
                if idle > patience:
                    raise Deadlock(f"{len(self._tasks)} tasks wait")
                continue
            idle = 0
            self.clock += self.chance.randrange(20)
            task.ready = None
            task.run.switch()
            if task.done:
                self._tasks.remove(task)
                del self._by_greenlet[task.run]

    def _next(self):
        """A task that is ready, or None: the first from a random one on."""
        count = len(self._tasks)
        start = self.chance.randrange(count)
        for i in range(count):
            task = self._tasks[(start + i) % count]
            if task.ready is None or task.ready():
                return task
        return None


class Barrier:
    """An mbarrier: a phase ends when all arrivals and all announced bytes are there."""

    def __init__(self):
        self.count = self.pending = self.bytes = self.phase = 0

    def init(self, count):
        self.count = self.pending = count

    def change(self, arrivals, announced):
        self.pending -= arrivals
        self.bytes += announced
        assert self.pending >= 0, "more arrivals than the barrier counts in a phase"
        if self.pending == 0 and self.bytes == 0:
            self.phase, self.pending = self.phase ^ 1, self.count

    def passed(self, phase):
        """Whether the phase of parity ``phase`` has ended: at first that of parity 1 has."""
        return self.phase != phase


class Tile:
    """Shared memory. ``unfenced``: places that were written and that TMA must not read before a fence."""

    def __init__(self, tensor, unfenced):
        self.tensor, self.unfenced = tensor, unfenced

    def index(self, i):
        return Tile(self.tensor[i], self.unfenced)

    def store(self, block):
        self.tensor.copy_(block.value)
        self.unfenced.add(self.tensor.data_ptr())


class Descriptor:
    """A tensor descriptor: a matrix, and the block that TMA moves."""

    def __init__(self, matrix, rows, cols, dtype, shared=False):
        self.matrix, self.shape, self.dtype = matrix, (rows, cols), dtype
        self.shared = shared  # peers write it
        self.block_type, self.layout = self, None
        self.nbytes = rows * cols * dtype.size

    def _inside(self, row, col):
        rows, cols = self.shape
        return slice(row, max(row, min(row + rows, self.matrix.shape[0]))), slice(
            col, max(col, min(col + cols, self.matrix.shape[1]))
        )

    def read(self, row, col, tile):
        """Copy a block into ``tile``, zeros beyond the matrix."""
        part = self.matrix[self._inside(row, col)]
        tile.tensor.zero_()
        tile.tensor[: part.shape[0], : part.shape[1]] = part

    def write(self, row, col, tile):
        """Copy ``tile`` into the matrix, as far as that goes."""
        part = self.matrix[self._inside(row, col)]
        part.copy_(tile.tensor[: part.shape[0], : part.shape[1]])


class Lanes(torch.Tensor):
    """A block of numbers; ``+=`` makes a new one, as in Triton."""

    def __iadd__(self, other):
        return self + other

    def to(self, dtype):
        return super().to(dtype.torch)


class Block:
    """A block in registers; products that wgmma owes it come at its waits."""

    type = SimpleNamespace(layout=None)  # nobody here looks at layouts

    def __init__(self, value):
        self.value, self.owed = value, []

    @property
    def shape(self):
        return list(self.value.shape)

    def to(self, dtype):
        assert not self.owed, "registers read while a wgmma is still to write them"
        return Block(self.value.to(dtype.torch))

    def reshape(self, shape):
        return Block(self.value.reshape(shape))

    def permute(self, *order):
        return Block(self.value.permute(*order))

    def split(self):
        return Block(self.value[..., 0]), Block(self.value[..., 1])

    def __add__(self, other):
        return Block(self.value + other)

    def pay(self, left):
        """Do the oldest products that are owed, until ``left`` are."""
        while len(self.owed) > left:
            a, b, use = self.owed.pop(0)
            product = a.tensor.float() @ b.tensor.float()
            self.value = self.value + product if use else product
