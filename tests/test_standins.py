"""The stand-ins of the npu backend's packages have the names, arguments and results that the real ones have.

The table is copied from the libraries: shmem's pyshmem.cpp and docs/api, torch_npu's npu/__init__.py, npu/streams.py
and native functions, Triton-distributed's distributed_ops.py and libaclshmem_device.py, triton-ascend's driver.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.npu_world import NpuWorld

# module: {name: signature}; "class" for a type, otherwise (arguments) -> result; None: no result is promised.
TABLE: dict[str, dict[str, tuple[list[str], str | None]]] = {
    "shmem": {
        "set_conf_store_tls": (["enable", "tls_info"], "int"),
        "set_conf_store_tls_key": (["pk", "pw", "decrypt_fn"], "int"),
        "aclshmem_init": (["attributes"], "int"),
        "aclshmem_get_unique_id": ([], "bytes"),
        "aclshmem_init_using_unique_id": (["mype", "npes", "mem_size", "uid"], "int"),
        "aclshmemx_init_status": ([], "InitStatus"),
        "aclshmem_create_tensor": (["shape", "dtype", "device_id"], "torch.Tensor"),
        "aclshmem_free_tensor": (["tensor"], "None"),
        "aclshmem_ptr": (["ptr", "pe"], "int"),
        "my_pe": ([], "int"),
        "pe_count": ([], "int"),
        "aclshmem_finalize": ([], "int"),
        "aclshmem_info_get_version": ([], "tuple[int, int]"),
    },
    "torch.npu": {
        "set_device": (["device"], None),
        "current_device": ([], "int"),
        "device_count": ([], "int"),
        "synchronize": (["device"], None),
        "get_device_name": (["device"], "str"),
        "get_device_properties": (["device"], None),
        "get_device_limit": (["device"], None),
        "mem_get_info": (["device"], "tuple[int, int]"),
        "Event": (["enable_timing", "blocking", "interprocess"], None),
    },
    "torch_npu": {
        "npu_all_gather_base_mm": (
            [
                "self",
                "x2",
                "hcom",
                "world_size",
                "bias",
                "x1_scale",
                "x2_scale",
                "gather_index",
                "gather_output",
                "comm_turn",
                "output_dtype",
                "comm_mode",
            ],
            None,
        ),
    },
    "triton_dist.language": {
        "rank": (["axis"], None),
        "num_ranks": (["axis"], None),
        "symm_at": (["ptr", "rank"], None),
        "notify": (["ptr", "rank", "signal", "sig_op", "comm_scope"], None),
        "consume_token": (["value", "token"], None),
    },
    "triton_dist.language.extra.libshmem_device": {
        "putmem": (["dest", "source", "nbytes", "pe"], None),
        "getmem": (["dest", "source", "nbytes", "pe"], None),
        "barrier_all": ([], None),
        "quiet": ([], None),
        "fence": ([], None),
    },
    "triton_dist.language.extra.ascend.libaclshmem_device": {
        "putmem": (["dest", "source", "nbytes", "pe"], None),
        "barrier_all": ([], None),
    },
    "triton.language.extra.cann.extension": {"sub_vec_id": ([], None), "sub_vec_num": ([], None)},
}
VALUES = {
    "InitStatus": {"NOT_INITIALIZED": 0, "SHM_CREATED": 1, "INITIALIZED": 2, "INVALID": 2**31 - 1},
    "OpEngineType": {"MTE": 1, "SDMA": 2, "ROCE": 4, "UDMA": 8},
}
FIELDS = {
    "attributes": ["ip_port", "option_attr"],  # my_rank, n_ranks and local_mem_size are undefined until set
    "options": (
        [
            "control_operation_timeout",
            "data_op_engine_type",
            "shm_create_timeout",
            "shm_init_timeout",
            "sockFd",
            "version",
        ]
    ),
}
LOOK = """
import importlib, inspect, json, sys
import torch_npu, torch, shmem
found = {}
for name, members in json.loads(sys.argv[1]).items():
    module = torch.npu if name == "torch.npu" else importlib.import_module(name)
    for member in members:
        signature = inspect.signature(getattr(module, member))
        found[name + "." + member] = [list(signature.parameters), signature.return_annotation
                                      if isinstance(signature.return_annotation, str) else None]
enums = {e: {m.name: m.value for m in getattr(shmem, e)} for e in ("InitStatus", "OpEngineType")}
attributes = shmem.InitAttr()
fields = {"attributes": sorted(vars(attributes)), "options": sorted(vars(attributes.option_attr))}
from triton.backends.ascend.driver import NPUUtils
torch.npu.set_device(0)
utils = NPUUtils() is NPUUtils() and [NPUUtils().get_aicore_num(), NPUUtils().get_aivector_core_num()]
print(json.dumps([found, enums, fields, utils]))
"""


def test_names_arguments_and_results_are_those_of_the_libraries(tmp_path: Path) -> None:
    ran = NpuWorld(tmp_path).run("-c", LOOK, json.dumps({name: list(members) for name, members in TABLE.items()}))
    assert ran.returncode == 0, ran.stderr
    found, enums, fields, utils = json.loads(ran.stdout)
    for module, members in TABLE.items():
        for member, (arguments, result) in members.items():
            got = found[f"{module}.{member}"]
            assert got[0] == arguments, f"{module}.{member}"
            assert result is None or got[1] == result, f"{module}.{member}"
    assert enums == VALUES
    assert fields == FIELDS
    assert utils == [20, 40]


@pytest.mark.parametrize(("old", "name"), [(False, "aclshmem_finalize"), (True, "aclshmem_finialize")])
def test_the_last_call_is_spelled_as_in_old_and_in_new_releases(tmp_path: Path, old: bool, name: str) -> None:
    code = "import torch_npu, shmem; print([n for n in dir(shmem) if 'final' in n or 'finial' in n])"
    assert NpuWorld(tmp_path, old_finalize=old).run("-c", code).stdout.strip() == f"['{name}']"
