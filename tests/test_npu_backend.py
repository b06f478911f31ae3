"""The npu backend end to end, with stand-ins for torch_npu, shmem, triton and triton_dist: not on hardware."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agcli.backends import npu_shmem
from agcli.chips import CHIPS
from agcli.errors import EnvironmentFault
from agcli.problem import KernelConfig, Plan, Problem
from tests.npu_world import NpuWorld
from tests.test_operator import on_ranks

VERIFY = ("verify", "--backend", "npu", "--m", "100", "--n", "48", "--k", "64", "--timeout", "60")
MIB = 2**20


def failed(ran: subprocess.CompletedProcess[str], status: int = 3) -> str:
    """The one message of a command that ended with ``status``."""
    assert ran.returncode == status, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stderr


# -- what works ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transport", ["store", "putmem"])
def test_verify_launches_the_kernel_with_its_options_and_ends_what_it_began(tmp_path: Path, transport: str) -> None:
    world = NpuWorld(tmp_path)
    report = tmp_path / "out.json"
    ran = world.cli(*VERIFY, "--transport", transport, "--repeat", "3", "--json", str(report))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("PASS") == 2
    assert "npu" in report.read_text()
    assert "Ascend910B3" in report.read_text()
    launches = world.calls("launch")
    assert len(launches) == 6
    for launch in launches:
        assert launch["grid"] == [20]
        assert launch["options"] == {"disable_auto_inject_block_sync": True, "multibuffer": True}
    # One compile cache for each NPU, and the helper of the driver goes there too.
    caches = {str(tmp_path / "cache" / f"ag-gemm-npu{number}") for number in range(2)}
    assert {launch["cache"] for launch in launches} == caches
    assert {made["cache"] for made in world.calls("NPUUtils")} == caches
    # 2 slots x 2 ranks x 512 rows x 64 columns x 2 bytes is 256 KiB; with slack and in steps of 2 MiB it is 4 MiB.
    started = world.calls("aclshmem_init_using_unique_id")
    assert sorted(call["rank"] for call in started) == [0, 1]
    assert [(call["world"], call["bytes"], call["engine"]) for call in started] == [(2, 4 * MIB, "MTE")] * 2
    assert sorted(call["device"] for call in world.calls("set_device")) == [0, 1]
    for call in ("aclshmem_create_tensor", "aclshmem_free_tensor", "aclshmem_finalize"):
        assert len(world.calls(call)) == 2, call


def test_ascend_950_puts_through_udma_chosen_at_init(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, name="Ascend950PR_9579")
    ran = world.cli(*VERIFY, "--soc", "Ascend950PR_9579")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [call["engine"] for call in world.calls("aclshmem_init")] == ["UDMA", "UDMA"]
    assert world.calls("aclshmem_init_using_unique_id") == []
    for launch in world.calls("launch"):  # without the second option the first is a race on this chip
        assert (launch["options"]["disable_auto_inject_block_sync"], launch["options"]["mix_mode"]) == (True, "aic")


def test_releases_that_spell_the_last_call_wrongly_are_finalized_too(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, old_finalize=True)
    assert world.cli(*VERIFY).returncode == 0
    assert len(world.calls("aclshmem_finalize")) == 2


def test_the_grid_never_exceeds_the_cores_that_the_process_may_use(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, core_limit=7)
    assert world.cli(*VERIFY).returncode == 0
    assert {tuple(launch["grid"]) for launch in world.calls("launch")} == {(7,)}


def test_bench_has_two_engines_and_the_vendors_operation(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path)
    shape = ("--m", "512", "--n", "16", "--k", "1024", "--iterations", "1", "--warmup", "1")
    ran = world.cli("bench", "--backend", "npu", *shape, "--impl", "fused,vendor,torch")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    text = ran.stdout
    for implementation in ("fused-store", "fused-putmem", "torch", "vendor"):
        assert implementation in text
    assert "FAIL" not in text
    assert text.count("PASS") == 4
    # The heap of the first engine has no room for the second one, so it is made anew, twice as large.
    sizes = [call["bytes"] for call in world.calls("aclshmem_init_using_unique_id") if call["rank"] == 0]
    assert sizes == [6 * MIB, 12 * MIB]
    assert len(world.calls("aclshmem_finalize")) == 4


def test_the_heap_grows_by_no_more_than_there_is_room_for(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, free_bytes=16 * MIB)  # 6 the library's, 6 the first heap's: the second cannot have 12
    shape = ("--m", "512", "--n", "16", "--k", "1024", "--iterations", "1", "--warmup", "1")
    ran = world.cli("bench", "--backend", "npu", *shape, "--impl", "fused")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    sizes = [call["bytes"] for call in world.calls("aclshmem_init_using_unique_id") if call["rank"] == 0]
    assert sizes == [6 * MIB, 10 * MIB]


def test_operators_inside_a_job_share_the_heap_and_keep_working_when_it_moves(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path)
    tests = str(Path(__file__).parent)
    env = {**world.variables, "PYTHONPATH": world.variables["PYTHONPATH"] + ":" + tests}
    for found in on_ranks("one_process", backend="npu", env=env):
        assert all(found["right"])
        assert found["products"] == [[[90112.0], [90112.0]]] * 3
        assert found["group"] == 2
    for right in on_ranks("strided", backend="npu", transport="putmem", env=env):
        assert all(right.values())


JOB = """
import os, sys, torch, torch_npu, shmem, torch.distributed as dist
from agcli import AllGatherGemm
rank = int(os.environ["RANK"])
torch.npu.set_device(0 if "ONE_NPU" in os.environ else int(os.environ["LOCAL_RANK"]))
dist.init_process_group("hccl")
if sys.argv[1] == "initialised":
    shmem.set_conf_store_tls(False, "")
    assert shmem.aclshmem_init_using_unique_id(rank, 2, 64 * 2**20, bytes(range(256)) * 2) == 0
a = torch.full((8, 16), rank + 1.0).half()
with AllGatherGemm(8, 4, 16, backend="npu", cores=3) as gemm:
    c = gemm(a, torch.ones(16, 4).half())
assert c[:, 0].tolist() == [16.0] * 8 + [32.0] * 8, c
status = shmem.aclshmemx_init_status().name
dist.barrier()
changed = sorted(k for k in os.environ if k.startswith(("TRITON", "HCCL")))
print(f"RANK {rank} {status} {dist.is_initialized()} {changed}\\n", end="")
"""


@pytest.mark.parametrize(("before", "after"), [("initialised", "INITIALIZED"), ("untouched", "NOT_INITIALIZED")])
def test_what_the_job_began_is_used_and_left_alone(tmp_path: Path, before: str, after: str) -> None:
    """Case 20: the job's process group, and its ACLSHMEM if it has initialised that."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    world = NpuWorld(tmp_path)
    ran = world.run("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), before)
    assert ran.returncode == 0, ran.stderr
    for rank in range(2):
        assert f"RANK {rank} {after} True ['TRITON_CACHE_DIR']" in ran.stdout
    assert {tuple(launch["grid"]) for launch in world.calls("launch")} == {(3,)}
    assert len(world.calls("aclshmem_finalize")) == (0 if before == "initialised" else 2)


# -- what goes wrong -------------------------------------------------------------------------------------------------
def test_fewer_devices_than_ranks_end_before_a_rank_starts(tmp_path: Path) -> None:
    """Case 21."""
    world = NpuWorld(tmp_path, npus=8)
    text = failed(world.cli(*VERIFY, "--world", "4", ASCEND_RT_VISIBLE_DEVICES="0,1"))
    assert "4 npu devices wanted, 2 visible of 8, ASCEND_RT_VISIBLE_DEVICES=0,1" in text
    assert world.calls("set_device") == []


def test_a_machine_without_npus_says_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    """Case 21."""
    text = failed(NpuWorld(tmp_path, npus=0).cli(*VERIFY, "--world", "2"))
    assert "backend npu is not ready" in text
    assert "devices: 0 visible. no " in text


def test_a_return_code_is_told_with_its_meaning_and_cure(tmp_path: Path) -> None:
    text = failed(NpuWorld(tmp_path, codes={"aclshmem_init_using_unique_id": -8}).cli(*VERIFY))
    assert (
        "ranks 0-1: aclshmem_init_using_unique_id returned -8 (out of memory): lower --pvalue, --buffer-num or" in text
    )
    assert "SHMEM_LOG_TO_STDOUT=1" in text


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"raises": {"aclshmem_create_tensor": "aclshmem_malloc failed"}, "rank": 1}, "aclshmem_malloc failed"),
        ({"free_bytes": MIB}, f"needs {4 * MIB + 6 * MIB} bytes of device memory, {MIB} are available"),
        ({"unreachable": [1]}, "cannot be reached: these devices are not in one mesh"),
        ({"raises": {"aclshmem_get_unique_id": "no NIC"}}, "aclshmem_get_unique_id failed (no NIC)"),
        ({"raises": {"synchronize": "error code is 507018"}, "rank": 0}, "NPU 0 reported 507018: an AI core timed out"),
        ({"codes": {"set_conf_store_tls": -1}}, "set_conf_store_tls returned -1"),
        ({"raises": {"NPUUtils": "no g++"}, "rank": 1}, "rank 1: the kernel cannot be prepared: ValueError: no g++"),
        ({"codes": {"aclshmem_finalize": -3}}, "aclshmem_finalize returned -3"),
    ],
)
def test_a_failure_of_one_rank_ends_all_with_one_message(tmp_path: Path, settings: dict[str, Any], says: str) -> None:
    """Case 14: also if only one rank fails to allocate."""
    assert says in failed(NpuWorld(tmp_path, **settings).cli(*VERIFY))


def test_a_taken_port_is_tried_again_with_another(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, name="Ascend950PR_9579", codes={"aclshmem_init": -6})
    text = failed(world.cli(*VERIFY, "--soc", "Ascend950PR_9579"))
    assert "aclshmem_init at tcp://127.0.0.1:" in text
    assert len(world.calls("aclshmem_init")) == 2 * npu_shmem.PORT_ATTEMPTS


def test_a_triton_dist_without_putmem_offers_store_as_the_cure(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, putmem=False)
    assert world.cli(*VERIFY, "--transport", "store").returncode == 0
    text = failed(world.cli(*VERIFY, "--transport", "putmem"))
    assert "offers no libshmem_device.putmem on Ascend; use --transport store" in text


def test_variables_that_hang_the_kernel_are_refused(tmp_path: Path) -> None:
    text = failed(NpuWorld(tmp_path).cli(*VERIFY, TRITON_ALL_BLOCKS_PARALLEL="1"))
    assert "TRITON_ALL_BLOCKS_PARALLEL=1" in text
    assert "unset TRITON_ALL_BLOCKS_PARALLEL" in text


def test_ranks_in_both_meshes_of_a_server_are_refused(tmp_path: Path) -> None:
    world = NpuWorld(tmp_path, npus=16)
    text = failed(world.cli(*VERIFY, "--world", "2", "--devices", "7,8"))
    assert "use NPUs of both its meshes" in text


def test_two_ranks_on_one_npu_are_refused(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    ran = NpuWorld(tmp_path, npus=1).run(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "untouched"),
        ONE_NPU="1",
    )
    assert ran.returncode != 0
    assert "ranks 0 and 1 use the same NPU 0" in ran.stderr


# -- sizes and codes, without ranks ----------------------------------------------------------------------------------
def test_the_heap_has_slack_and_comes_in_steps_up_to_the_librarys_limit() -> None:
    for tensor_bytes in (1, 256 * 1024, 2 * MIB, 100 * MIB + 1):
        size = npu_shmem.heap_bytes(tensor_bytes)
        assert size % (2 * MIB) == 0
        assert tensor_bytes + npu_shmem.SLACK <= size < tensor_bytes + npu_shmem.SLACK + 2 * MIB
    assert npu_shmem.heap_bytes(40 * 2**30 - 2 * MIB) == 40 * 2**30
    with pytest.raises(EnvironmentFault, match="at most 42949672960; lower --pvalue, --buffer-num or --k"):
        npu_shmem.heap_bytes(40 * 2**30)
    # Case 14: 4 slots x 8 ranks x 2048 rows x 65536 columns x 2 bytes.
    plan = Plan(Problem(8192, 64, 65536, 8), KernelConfig(transport="store", pvalue=16, buffer_num=4))
    assert npu_shmem.heap_bytes(plan.symmetric_bytes) == 8 * 2**30 + 2 * MIB


def test_every_known_code_has_a_meaning_and_a_cure() -> None:
    assert npu_shmem.failure_text("f", 0) == ""
    assert sorted(npu_shmem.CODES, reverse=True) == [*range(-1, -12, -1), -100]
    for code in (*npu_shmem.CODES, -77):
        assert f"f returned {code} (" in npu_shmem.failure_text("f", code)


def test_single_buffering_is_passed_on_where_doubled_tiles_do_not_fit() -> None:
    plan = Plan(Problem(64, 64, 64, 2), KernelConfig(transport="store", block_k=512), CHIPS["Ascend910B3"])
    assert not plan.multibuffer
    assert json.dumps(plan.warnings())
