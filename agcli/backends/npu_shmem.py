"""ACLSHMEM (``import shmem``): initialising it, symmetric tensors, and ending it.

Names, return codes, limits and order are those of hicann/shmem: ``src/host/python_wrapper/pyshmem.cpp``,
``include/host/shmem_host_def.h``, ``docs/principles/init_finalize.md``. Methods are collective over the ranks, and a
failure on one rank is raised on all.
"""

from __future__ import annotations

import importlib
import math
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agcli.agreement import check_same, from_first, gather_notes, raise_together
from agcli.errors import EnvironmentFault

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MIB = 2**20
HEAP_STEP = 2 * MIB  # heaps are better a multiple of this
HEAP_LIMIT = 40 * 2**30  # of one rank (check_attr)
SLACK = 2 * MIB  # above the sum of the tensors, for rounding
LIBRARY_BYTES = 6 * MIB  # what the library takes for itself beside the heap
ADDRESS_LIMIT = 63  # characters of ip_port; the library cuts the rest without a word
PORT_ATTEMPTS = 4
LOWER = "lower --pvalue, --buffer-num or --k"

# include/host/shmem_host_def.h: meaning, cure.
CODES = {
    -1: ("invalid parameter", "report this with the call's name"),
    -2: ("invalid value", f"the heap may exceed what the library takes; {LOWER}"),
    -3: ("shared memory error", "another process may hold the port or the devices; end it, or start again"),
    -4: ("inner error or already initialised", "finalize what initialised ACLSHMEM in this process before"),
    -5: ("not initialised", "report this with the call's name"),
    -6: (
        "ranks could not meet",
        "set SHMEM_UID_SOCK_IFNAME to a network interface that all ranks reach; check the firewall",
    ),
    -7: ("timeout", "a rank did not arrive, or does not reach the others; set SHMEM_UID_SOCK_IFNAME"),
    -8: ("out of memory", f"{LOWER}, or end what else uses the devices"),
    -9: ("a library function is missing", "install CANN's ops package, and CANN and shmem versions that go together"),
    -10: ("inner timeout", "a rank did not arrive, or died"),
    -11: ("the library is being unloaded", "do not end the process while ranks still start"),
    -100: (
        "not supported",
        "this shmem build lacks what the chip needs; use --transport store, or build it for this chip",
    ),
}
LOG_HINT = "SHMEM_LOG_TO_STDOUT=1 shows the library's own log"
PORT_TAKEN = (-3, -6)


def heap_bytes(tensor_bytes: int) -> int:
    """The heap for tensors of that many bytes in all: with slack, in steps of 2 MiB. EnvironmentFault above 40 GiB."""
    size = -(-(tensor_bytes + SLACK) // HEAP_STEP) * HEAP_STEP
    if size > HEAP_LIMIT:
        raise EnvironmentFault(
            f"the symmetric heap would need {size} bytes on each rank, ACLSHMEM takes at most {HEAP_LIMIT}; {LOWER}"
        )
    return size


def failure_text(call: str, code: int) -> str:
    """What a return code means and what to do; empty for 0."""
    if code == 0:
        return ""
    meaning, cure = CODES.get(code, ("unknown code", "look into the library's log"))
    return f"{call} returned {code} ({meaning}): {cure}. {LOG_HINT}"


@dataclass
class SymmetricTensor:
    """A tensor of the symmetric heap. When the heap is made anew, ``moved`` is told None, then the new tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    tensor: torch.Tensor | None = None
    moved: Callable[[torch.Tensor | None], None] = lambda tensor: None

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def place(self, tensor: torch.Tensor | None) -> None:
        """Lie at ``tensor`` from now on."""
        self.tensor = tensor
        self.moved(tensor)


class SymmetricMemory:
    """The symmetric heap of this process. A heap cannot grow, so for more tensors it is made anew with all of them.

    Args:
        rank, world: of ``group``.
        local_device: this rank's device as its process counts them.
        nodes: servers that the ranks are on.
        synchronize: waits for this rank's queued work.
    """

    def __init__(
        self,
        rank: int,
        world: int,
        *,
        local_device: int,
        nodes: int,
        group: dist.ProcessGroup | None,
        timeout_s: float,
        synchronize: Callable[[], None],
    ) -> None:
        fault = None
        try:
            self._ash: Any = importlib.import_module("shmem")
        except (ImportError, OSError, RuntimeError) as error:  # RuntimeError: a second libshmem.so is loaded
            fault = EnvironmentFault(f"shmem cannot be loaded ({error}); keep one ACLSHMEM on LD_LIBRARY_PATH")
        raise_together(fault, group)
        self.rank, self.world, self.local_device, self.nodes = rank, world, local_device, nodes
        self._group = group
        self._timeout_s = max(1, int(timeout_s))
        self._synchronize = synchronize
        self._size = 0  # bytes of the heap; 0 while there is none
        self._udma = False
        self._tensors: list[SymmetricTensor] = []  # in the order of their making
        self._borrowed = self._ash.aclshmemx_init_status() == self._ash.InitStatus.INITIALIZED
        if self._borrowed:  # the job's own: used as it is, and not ended here
            seen = (self._ash.my_pe(), self._ash.pe_count())
            wrong = f"the job initialised ACLSHMEM as rank {seen[0]} of {seen[1]}, the group has rank {rank} of {world}"
            raise_together(EnvironmentFault(wrong) if seen != (rank, world) else None, group)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, udma: bool) -> SymmetricTensor:
        """A symmetric tensor of zeros that every rank can reach, through the UDMA engine too if ``udma``."""
        made = SymmetricTensor(shape, dtype)
        check_same({"bytes of symmetric memory": made.nbytes}, self._group)
        total = made.nbytes + sum(tensor.nbytes for tensor in self._tensors)
        if not self._borrowed and (total + SLACK > self._size or (udma and not self._udma)):
            self._make_heap(total, udma)
        self._create(made)
        self._tensors.append(made)
        return made

    def free(self, tensor: SymmetricTensor) -> None:
        """Free a tensor that ``allocate`` returned; in the same order on all ranks, after a barrier."""
        self._tensors.remove(tensor)
        self._ash.aclshmem_free_tensor(tensor.tensor)
        tensor.tensor = None

    def _make_heap(self, tensor_bytes: int, udma: bool) -> None:
        """A heap for that many bytes of tensors; those that exist move into it."""
        import torch.distributed as dist

        size = heap_bytes(tensor_bytes)
        if self._size:  # the next ones are likely to be more of the same, and there may be room for them
            room = min(int(note) for note in gather_notes(str(_free_bytes() - LIBRARY_BYTES), self._group))
            likely = min(2 * self._size, HEAP_LIMIT, self._size + room)
            size = max(size, likely // HEAP_STEP * HEAP_STEP)
        self._check_room(size)
        self._synchronize()
        dist.barrier(self._group)
        for tensor in self._tensors:
            self._ash.aclshmem_free_tensor(tensor.tensor)
            tensor.place(None)
        raise_together(self.end(), self._group)
        raise_together(self._fault("set_conf_store_tls", self._ash.set_conf_store_tls(False, "")), self._group)
        udma = udma or self._udma
        (self._start_udma if udma else self._start_mte)(size)
        self._size, self._udma = size, udma
        for tensor in self._tensors:
            self._create(tensor)

    def _create(self, made: SymmetricTensor) -> None:
        """Give ``made`` its memory, cleared before any rank goes on."""
        import torch.distributed as dist

        fault = None
        try:
            tensor: torch.Tensor = self._ash.aclshmem_create_tensor(
                list(made.shape), dtype=made.dtype, device_id=self.local_device
            )
        except RuntimeError as error:
            fault = EnvironmentFault(f"no symmetric memory for {made.nbytes} bytes ({error}); {LOWER}")
        raise_together(fault, self._group)
        try:
            self._check_reach(tensor)
        except EnvironmentFault:
            self._ash.aclshmem_free_tensor(tensor)
            raise
        tensor.zero_()  # the library does not
        self._synchronize()
        dist.barrier(self._group)
        made.place(tensor)

    def end(self) -> EnvironmentFault | None:
        """Finalize, if there is anything to; what went wrong, if anything. Waits for all ranks inside the library."""
        if self._borrowed or not self._size:
            return None
        self._size = 0
        # Releases up to v1.3.5 have only the misspelled name, later ones deprecate it.
        finalize = getattr(self._ash, "aclshmem_finalize", None) or self._ash.aclshmem_finialize
        return self._fault("aclshmem_finalize", finalize())

    def _start_mte(self, size: int) -> None:
        """Initialise by unique id, which needs no port to be agreed on; the engine is always MTE."""
        uid, fault = "", None
        if self.rank == 0:
            try:
                uid = self._ash.aclshmem_get_unique_id().hex()
            except RuntimeError as error:
                fault = EnvironmentFault(f"aclshmem_get_unique_id failed ({error}): {CODES[-6][1]}. {LOG_HINT}")
        raise_together(fault, self._group)
        uid = from_first(uid, self._group)
        code = self._ash.aclshmem_init_using_unique_id(self.rank, self.world, size, bytes.fromhex(uid))
        raise_together(self._fault("aclshmem_init_using_unique_id", code), self._group)

    def _start_udma(self, size: int) -> None:
        """Initialise with the transfer engine of Ascend 950; only this form of init can choose one."""
        ash = self._ash
        fault = None
        for _ in range(PORT_ATTEMPTS):  # rank 0 finds a free port, but another process may take it first
            address = from_first(self._address() if self.rank == 0 else "", self._group)
            attributes = ash.InitAttr()
            attributes.my_rank, attributes.n_ranks = self.rank, self.world
            attributes.local_mem_size = size
            attributes.ip_port = address
            options = attributes.option_attr  # changed in place: a fresh one has undefined fields
            options.data_op_engine_type = ash.OpEngineType.UDMA
            options.shm_init_timeout = options.shm_create_timeout = self._timeout_s
            options.control_operation_timeout = self._timeout_s
            code = int(ash.aclshmem_init(attributes))
            fault = self._fault(f"aclshmem_init at {address}", code)
            codes = [int(note) for note in gather_notes(str(code), self._group)]
            if codes[0] not in PORT_TAKEN or 0 in codes:
                break
        raise_together(fault, self._group)

    def _address(self) -> str:
        """An address with a free port of this host, ``tcp://host:port``, that the other ranks' hosts can reach."""
        host = "127.0.0.1" if self.nodes == 1 else _own_address(os.environ.get("MASTER_ADDR", socket.gethostname()))
        with socket.socket() as probe:
            probe.bind((host, 0))
            address = f"tcp://{host}:{probe.getsockname()[1]}"
        assert len(address) <= ADDRESS_LIMIT
        return address

    def _check_room(self, size: int) -> None:
        """Compare the heap with what is free on the device, before the library fails with a bare number."""
        free = _free_bytes()
        fault = None
        if size - self._size + LIBRARY_BYTES > free:
            fault = EnvironmentFault(
                f"the symmetric heap needs {size - self._size + LIBRARY_BYTES} bytes of device memory, {free} are "
                f"available; {LOWER}, or end what else uses the device"
            )
        raise_together(fault, self._group)

    def _check_reach(self, tensor: torch.Tensor) -> None:
        """Both transports write to the peers' addresses, which only exist within a server or a super-pod."""
        unreachable = [
            pe for pe in range(self.world) if pe != self.rank and not self._ash.aclshmem_ptr(tensor.data_ptr(), pe)
        ]
        if not unreachable:
            return raise_together(None, self._group)
        where = (
            "these servers are not of one super-pod, and the kernel does not go through RDMA; run it within one server"
            if self.nodes > 1
            else "these devices are not in one mesh; choose devices of one with --devices"
        )
        return raise_together(
            EnvironmentFault(f"the memory of rank {', '.join(map(str, unreachable))} cannot be reached: {where}"),
            self._group,
        )

    def _fault(self, call: str, code: int) -> EnvironmentFault | None:
        text = failure_text(call, int(code or 0))
        return EnvironmentFault(text) if text else None


def _free_bytes() -> int:
    """Free memory of this rank's device."""
    import torch

    return int(torch.npu.mem_get_info()[0])  # type: ignore[attr-defined]


def _own_address(peer: str) -> str:
    """This host's address on the way to ``peer``, as a number."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((peer, 9))  # sends nothing
        return str(probe.getsockname()[0])
