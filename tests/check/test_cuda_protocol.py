"""The protocol of the cuda backend (two slots in turn, epoch-valued flags, no barrier) under the detector."""

import pytest
import torch
from programs import KERNELS, Program, empty, gathered_product, numbers


def epoch_gemm(rank, results, m=13):
    c = results[rank.launch, rank.rank] = empty(rank.world * m, 24)
    return {
        "a_ptr": numbers(m, 32, seed=rank.rank), "b_ptr": numbers(32, 24, seed=7), "c_ptr": c,
        "peer_mem_ptr": rank.symmetric("peer_mem", (2, rank.world * m, 32), torch.float16),
        "sig_ptr": rank.symmetric("flags", (rank.world,), torch.int32),
        "rank": rank.rank, "rank_size": rank.world, "epoch": rank.launch + 1, "M": m, "N": 24, "K": 32,
        "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16,
    }  # fmt: skip


EPOCH_GEMM = Program(KERNELS / "epoch_gemm.py", epoch_gemm)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("cores", [1, 3])
def test_it_needs_no_barrier(tmp_path, world, cores):
    found, results = EPOCH_GEMM.check(tmp_path, world=world, cores=cores)
    assert [fault.kind for fault in found.faults] == []
    assert torch.equal(results[2, 0], gathered_product(13, world))


def test_with_one_slot_it_is_a_race(tmp_path):
    found, _ = EPOCH_GEMM.check(tmp_path, [("epoch % 2 * rank_size * M * K", "0")])
    assert "race" in {fault.kind for fault in found.faults}


def test_a_flag_without_an_epoch_lets_old_data_pass(tmp_path):
    edits = [
        ("signal_op(sig_ptr + rank, epoch, 0, target)", "signal_op(sig_ptr + rank, 1, 0, target)"),
        ("signal_wait_until(sig_ptr + source, 3, epoch)", "signal_wait_until(sig_ptr + source, 3, 1)"),
    ]
    found, _ = EPOCH_GEMM.check(tmp_path, edits)
    assert {fault.kind for fault in found.faults} & {"race", "signal-reuse", "unwritten-read"}


def test_a_flag_set_by_the_cube_too_is_a_race(tmp_path):
    found, _ = EPOCH_GEMM.check(tmp_path, [("if sub_vec_id() == 1:", "if sub_vec_id() == 0:")])
    assert "race" in {fault.kind for fault in found.faults}
