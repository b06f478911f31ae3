"""Stands in for ACLSHMEM's host API over the simulator's shared memory, with the rules that the real one has.

Names and order: hicann/shmem, src/host/python_wrapper/pyshmem.cpp, src/host/init/shmem_init.cpp. Ranks meet through
the process group, which the real library does not need.
"""

from __future__ import annotations

import math
import re
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist
from standin_world import HELD, failing, note, setting

from agcli.simulator.world import SharedWorld

MIB = 2**20
HEAP_LIMIT = 40 * 2**30
PORTS = range(1025, 65536)


class InitStatus(IntEnum):
    NOT_INITIALIZED = 0
    SHM_CREATED = 1
    INITIALIZED = 2
    INVALID = 2**31 - 1


class OpEngineType(IntEnum):
    MTE = 1
    SDMA = 2
    ROCE = 4
    UDMA = 8


class OptionalAttr:
    """Undefined until an ``InitAttr`` sets its fields up."""

    data_op_engine_type: OpEngineType
    shm_init_timeout: int
    shm_create_timeout: int
    control_operation_timeout: int
    version: int
    sockFd: int  # noqa: N815


class InitAttr:
    """``my_rank``, ``n_ranks`` and ``local_mem_size`` are undefined until they are set."""

    my_rank: int
    n_ranks: int
    local_mem_size: int

    def __init__(self) -> None:
        self.ip_port = ""
        self.option_attr = OptionalAttr()
        self.option_attr.data_op_engine_type = OpEngineType.MTE
        self.option_attr.shm_init_timeout = 120
        self.option_attr.shm_create_timeout = 120
        self.option_attr.control_operation_timeout = 120
        self.option_attr.version = 1
        self.option_attr.sockFd = -1


class _State:
    """Of this process."""

    tls_off = False
    world: SharedWorld | None = None
    heap_bytes = 0
    tensors: dict[int, int] = {}  # address -> bytes  # noqa: RUF012


def set_conf_store_tls(enable: bool, tls_info: str) -> int:
    _State.tls_off = not enable
    return _returned("set_conf_store_tls") or 0


def set_conf_store_tls_key(pk: str, pw: str, decrypt_fn: Any) -> int:
    return 0


def aclshmem_get_unique_id() -> bytes:
    message = failing("raises", "aclshmem_get_unique_id")
    if message:
        raise RuntimeError(message)
    return bytes(range(256)) * 2


def aclshmem_init_using_unique_id(mype: int, npes: int, mem_size: int, uid: bytes) -> int:
    assert uid == bytes(range(256)) * 2, "the unique id of rank 0 must arrive whole"
    return _start("aclshmem_init_using_unique_id", mype, npes, mem_size, OpEngineType.MTE)


def aclshmem_init(attributes: InitAttr) -> int:
    found = re.fullmatch(r"tcp://[^:]+:(\d+)", attributes.ip_port[:63])
    if not found or int(found[1]) not in PORTS:
        return -1
    engine = attributes.option_attr.data_op_engine_type
    return _start("aclshmem_init", attributes.my_rank, attributes.n_ranks, attributes.local_mem_size, engine)


def _start(call: str, pe: int, pes: int, size: int, engine: OpEngineType) -> int:
    torch.npu.current_device()  # init needs an active device
    assert _State.tls_off, "TLS is on by default and must be off on all ranks alike"
    note(call, rank=pe, world=pes, bytes=size, engine=engine.name)
    code = _returned(call)
    if code:
        return code
    if _State.world is not None:
        return -4
    if not 0 <= pe < pes or not 0 < size <= HEAP_LIMIT:
        return -2
    sizes = _exchange(size)
    assert len(set(sizes)) == 1, f"local size diffs: {sizes}"
    assert size % (2 * MIB) == 0
    _State.world = SharedWorld(pe, pes, _exchange)
    _State.heap_bytes = HELD["heap"] = size
    return 0


def _exchange(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _returned(call: str) -> int | None:
    code = failing("codes", call)
    return None if code is None else int(code)


def aclshmemx_init_status() -> InitStatus:
    return InitStatus.INITIALIZED if _State.world else InitStatus.NOT_INITIALIZED


def aclshmem_create_tensor(shape: list[int], dtype: torch.dtype = torch.float32, device_id: int = 0) -> torch.Tensor:
    assert device_id == torch.npu.current_device(), "device_id counts this process's devices, not ranks"
    nbytes = -(-math.prod(shape) * dtype.itemsize // 16) * 16
    message = failing("raises", "aclshmem_create_tensor")
    full = sum(_State.tensors.values()) + nbytes > _State.heap_bytes
    absent = any(_exchange(message is not None))  # its control barrier waits for all ranks, 120 s long
    if message or full or absent:
        raise RuntimeError(message or ("aclshmem_malloc failed" if full else "the control barrier timed out"))
    assert _State.world is not None
    tensor = _State.world.allocate(tuple(shape), dtype, "")
    tensor.fill_(float("nan"))  # it is not zeroed
    _State.tensors[tensor.data_ptr()] = nbytes
    note("aclshmem_create_tensor", bytes=nbytes)
    return tensor


def aclshmem_free_tensor(tensor: torch.Tensor) -> None:
    del _State.tensors[tensor.data_ptr()]
    assert _State.world is not None
    _State.world.free(tensor)
    note("aclshmem_free_tensor")


def aclshmem_ptr(ptr: int, pe: int) -> int:
    if ptr not in _State.tensors or pe in setting("unreachable", []):
        return 0
    return ptr


def my_pe() -> int:
    return _world().rank


def pe_count() -> int:
    return _world().size


def aclshmem_finalize() -> int:
    note("aclshmem_finalize")
    code = _returned("aclshmem_finalize")
    if code:
        return code
    if _State.world is None:
        return -5
    _State.world.close()
    _State.world = None
    HELD["heap"] = 0
    _State.tensors.clear()
    return 0


def aclshmem_info_get_version() -> tuple[int, int]:
    return (1, 1)


def _world() -> SharedWorld:
    if _State.world is None:
        raise RuntimeError("ACLSHMEM is not initialised")
    return _State.world
