"""What hardware would punish is an error with its place; what is right runs."""

from pathlib import Path

import pytest
import torch
from machines import alone, launch

from agcli.errors import KernelFault, UsageError
from agcli.simulator.binding import load_kernel
from agcli.simulator.split import SplitKernel

KERNELS = Path(__file__).with_name("kernels_faulty.py")


def kernel(name):
    return load_kernel(KERNELS, name)


def line_of(text):
    return next(i for i, line in enumerate(KERNELS.read_text().splitlines(), 1) if text in line)


def test_a_read_outside_a_tensor_names_tensor_line_rank_and_core():
    with pytest.raises(KernelFault) as error:
        launch(kernel("reads_past_the_end"), torch.zeros(10), torch.zeros(16), 10, BLOCK=16)
    message = str(error.value)
    assert "read outside a tensor: offset 15 of x_ptr" in message
    assert f"{KERNELS}:{line_of('tl.load(x_ptr + offs), mask=offs < n)')} in reads_past_the_end" in message
    assert "rank 0, core 0, vector 0" in message


def test_a_write_outside_a_tensor_is_a_fault_and_writes_nothing():
    memory = torch.zeros(32)
    with pytest.raises(KernelFault, match="write outside a tensor"):
        launch(kernel("writes_past_the_end"), torch.ones(16), memory[:10], 10, BLOCK=16)
    assert not memory.any()


def test_the_gap_beside_a_column_slice_is_outside_the_tensor():
    wide = torch.zeros(4, 20)
    with pytest.raises(KernelFault, match="read outside a tensor: offset 28"):
        launch(kernel("reads_beside_a_column_slice"), wide[:, :8], torch.zeros(16), 20, BLOCK=16)
    launch(kernel("reads_beside_a_column_slice"), wide[:, :16], torch.zeros(16), 20, BLOCK=16)


def test_symm_at_takes_scalar_pointers_of_symmetric_memory_only():
    world = alone()
    peer = world.allocate((8,), torch.float32, "")
    with pytest.raises(KernelFault, match="symm_at takes a scalar pointer only"):
        launch(kernel("symm_at_of_a_block"), peer, torch.zeros(8), world=world)
    with pytest.raises(KernelFault, match="x_ptr is not symmetric memory"):
        launch(kernel("symm_at_of_plain_memory"), torch.zeros(8), torch.zeros(8))


def test_reading_symmetric_memory_that_nothing_wrote():
    world = alone()
    peer = world.allocate((8,), torch.float32, "")
    peer.fill_(1.0)  # the host's writes are not the kernel's
    with pytest.raises(KernelFault, match=r"nothing wrote at all: peer_mem\[0\] of rank 0"):
        launch(kernel("reads_what_nothing_wrote"), peer, torch.zeros(8), world=world)


def test_a_barrier_that_some_cores_skip_names_who_ended_and_who_waits():
    with pytest.raises(KernelFault) as error:
        launch(kernel("barrier_by_some"), torch.zeros(1), cores=2)
    message = str(error.value)
    assert "a wait that can never end: 3 of 6 tasks of rank 0 are at barrier_all" in message
    assert "rank 0, core 1, cube has ended the kernel" in message
    assert f"kernels_faulty.py:{line_of('        libshmem_device.barrier_all()')}" in message


def test_a_signal_that_never_comes_is_a_fault():
    world = alone()
    signal = world.allocate((16,), torch.int32, "")
    with pytest.raises(KernelFault, match=r"(?s)a wait that can never end.*peer_mem\[0\] == 5"):
        launch(kernel("waits_for_ever"), signal, world=world)


@pytest.mark.parametrize(
    ("name", "wait"),
    [("wait_without_consume", "    token = dl.wait"), ("helper_wait_without_consume", "    token = wait_for")],
)
def test_a_wait_whose_token_is_not_consumed_is_deleted_as_by_the_compiler(name, wait):
    world = alone()
    signal = world.allocate((16,), torch.int32, "")
    out = torch.zeros(8)
    split = launch(kernel(name), signal, torch.ones(8), out, world=world)  # does not wait
    assert split.dead_waits == [(str(KERNELS), line_of(wait))]
    assert out.all()


def test_a_consumed_wait_waits():
    world = alone()
    signal = world.allocate((16,), torch.int32, "")
    out = torch.zeros(8)
    split = launch(kernel("wait_with_consume"), signal, torch.ones(8), out, world=world)
    assert split.dead_waits == []
    assert out.all()


def test_overflow_of_a_32_bit_offset_is_a_fault():
    out = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(KernelFault, match="32-bit overflow: 2621374464"):
        launch(kernel("overflows"), torch.zeros(1), out, 39999, 65536)


def test_what_a_mask_keeps_out_is_undefined_without_other():
    out = torch.zeros(16)
    launch(kernel("unmasked_remainder_is_not_zero"), torch.ones(10), out, 10)
    assert out[:10].eq(1).all()
    assert out[10:].isnan().all()


def test_the_split_follows_each_use_of_a_name():
    a, b = torch.randn(16, 16).half(), torch.randn(16, 16).half()
    c, copy = torch.zeros(16, 16), torch.zeros(16, 16, dtype=torch.float16)
    split = SplitKernel(kernel("product_with_a_second_load_of_the_same_name"))
    launch(split, a, b, c, copy)
    torch.testing.assert_close(c, 2 * (a.float() @ b.float()))
    assert torch.equal(copy, a)
    for part, stores in (("cube", 1), ("vector", 1), ("sync", 0)):
        assert split.part(part).__code__.co_names.count("store") == stores


def test_a_store_of_several_values_to_one_element_keeps_one_of_them():
    out = torch.zeros(4)
    launch(kernel("several_values_for_one_element"), out)
    assert out[0] in (0, 1, 2, 3)
    assert not out[1:].any()


def test_a_scalar_load_that_its_mask_keeps_out_is_other_or_undefined():
    out = torch.zeros(2)
    launch(kernel("scalars_behind_a_mask"), torch.ones(0), out, 0)
    assert out[0] == 5
    assert out[1].isnan()


def test_loading_leaves_no_stand_in_behind():
    import sys

    before = set(sys.modules)
    kernel("waits_for_ever")
    left = {name for name in set(sys.modules) - before if name.split(".")[0] in ("triton", "triton_dist", "agcli")}
    assert not {name for name in left if name.startswith(("triton", "agcli.kernels"))}


def test_a_missing_kernel_and_a_file_that_does_not_run(tmp_path):
    with pytest.raises(UsageError, match=r"has no kernel 'nothing'; it has .*barrier_by_some"):
        kernel("nothing")
    broken = tmp_path / "broken.py"
    broken.write_text("import triton\nraise ValueError('no')\n")
    with pytest.raises(UsageError, match="ValueError: no"):
        load_kernel(broken, "f")
    with pytest.raises(UsageError, match="no such kernel file"):
        load_kernel(tmp_path / "absent.py", "f")


def test_an_atomic_whose_result_the_cube_needs_is_refused_rather_than_done_twice():
    with pytest.raises(
        UsageError, match=rf"kernels_faulty.py:{line_of('before = tl.atomic_add')}: the cube cores need"
    ):
        SplitKernel(kernel("cube_needs_an_atomic"))


def test_a_wait_inside_a_helper_counts_while_the_helpers_result_is_used():
    world = alone()
    signal = world.allocate((16,), torch.int32, "")
    with pytest.raises(KernelFault, match=r"a wait that can never end"):
        launch(kernel("helper_wait_with_consume"), signal, torch.ones(8), torch.zeros(8), world=world)


def test_an_unknown_primitive_is_not_passed_over():
    with pytest.raises(UsageError, match=r"kernels_faulty\.py:\d+: the simulator does not know .*\.broadcast"):
        launch(kernel("unknown_primitive"), torch.zeros(16, dtype=torch.int32))


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("no_such_operation", torch.int32, "there is no operation 7"),
        ("no_such_comparison", torch.int32, "there is no comparison 9"),
        ("no_such_comparison", torch.float16, "no comparison 9"),
        ("waits_for_ever", torch.float16, "a wait needs integer words, but peer_mem is fp16"),
        ("sum_beyond_the_word", torch.float16, "a signal needs integer words"),
        ("sum_beyond_the_word", torch.int32, "32-bit overflow: 2147483648"),
    ],
)
def test_misuse_of_signals(name, dtype, message):
    world = alone()
    signal = world.allocate((16,), dtype, "")
    with pytest.raises(KernelFault, match=message):
        launch(kernel(name), signal, world=world)


def test_the_cube_reads_what_it_has_stored_itself():
    a, b = torch.randint(-2, 3, (16, 16)).half(), torch.eye(16).half() * 2
    before = a.clone().float()
    outputs = [torch.zeros(16, 16) for _ in range(3)]
    launch(kernel("product_before_and_after_a_store"), a, b, *outputs)
    assert torch.equal(outputs[0], 2 * before)
    assert torch.equal(outputs[1], 2 * before)
    assert torch.equal(outputs[2], 4 * before)
