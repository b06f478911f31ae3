"""The fused kernel on simulated cores against torch, over shapes, configurations, worlds and strides."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import WorldOfKernels

from agcli.problem import KernelConfig, Problem, make_plan

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def integers(shape, dtype, seed):
    """Small integers, whose products sum exactly in fp32, so that results can be compared bit by bit."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).to(DTYPES[dtype])


def behind(tensor):
    """A copy with NaN behind its last element."""
    memory = torch.full((tensor.numel() + 64,), float("nan"), dtype=tensor.dtype)
    memory[: tensor.numel()] = tensor.flatten()
    return memory[: tensor.numel()].view(tensor.shape)


def check(plan, cores=2, launches=2, layout=lambda t: t):
    """Run launches with new inputs each; every element of every C must be exact, and nothing beside C written."""
    problem = plan.problem
    world = WorldOfKernels(plan, cores)
    for launch in range(launches):
        seeds = [1000 * launch + rank for rank in range(problem.world)]
        a = [layout(integers(problem.a_shape, problem.dtype, seed)) for seed in seeds]
        b = [layout(integers(problem.b_shape, problem.dtype, 500 + seed)) for seed in seeds]
        c = [layout(torch.full(problem.c_shape, float("nan")).to(DTYPES[problem.dtype])) for _ in seeds]
        world.run(a, b, c)
        gathered = torch.cat([x.float() for x in a])
        for rank in range(problem.world):
            want = (gathered @ b[rank].float()).to(DTYPES[problem.dtype])
            assert torch.equal(c[rank], want), f"launch {launch}, rank {rank}"


def plan_of(m, n, k, world, dtype="fp16", **config):
    blocks = {"block_m": 16, "block_n": 32, "block_k": 32, "comm_block_m": 10, "comm_block_k": 32, "pvalue": 2}
    return make_plan(Problem(m, n, k, world, dtype), KernelConfig(**{**blocks, "transport": "store", **config}), None)


@settings(max_examples=40, deadline=None)
@given(
    m=st.integers(1, 70),
    n=st.integers(1, 70),
    k=st.integers(1, 70),
    world=st.integers(1, 5),
    dtype=st.sampled_from(["fp16", "bf16"]),
    transport=st.sampled_from(["store", "putmem"]),
    blocks=st.tuples(*[st.sampled_from([16, 32, 48])] * 3),
    comm=st.tuples(st.integers(1, 40), st.sampled_from([16, 32, 64])),
    pvalue=st.integers(1, 3),
    buffer_num=st.integers(2, 4),
    cores=st.integers(1, 4),
)
def test_any_shape_and_configuration(m, n, k, world, dtype, transport, blocks, comm, pvalue, buffer_num, cores):
    bm, bn, bk = blocks
    config = KernelConfig(bm, bn, bk, comm[0], comm[1], pvalue, buffer_num, transport)
    check(make_plan(Problem(m, n, k, world, dtype), config, None), cores)


@pytest.mark.parametrize("transport", ["store", "putmem"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_case_4_any_world_size(world, transport):
    check(plan_of(100, 96, 64, world, transport=transport), cores=3)


@pytest.mark.parametrize("shape", [(5, 256, 128), (16, 5, 128), (16, 256, 100), (8, 1, 4096), (1, 1, 1)])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_case_2_dimensions_below_a_block_leave_cores_idle_but_not_missing(shape, dtype):
    check(make_plan(Problem(*shape, 2, dtype), KernelConfig(transport="store"), None), cores=20, launches=1)


@pytest.mark.parametrize("transport", ["store", "putmem"])
def test_case_1_padding_never_reaches_c(transport):
    check(plan_of(51, 100, 96, 2, transport=transport), layout=behind)


@pytest.mark.parametrize("m", [32, 64, 96])
@pytest.mark.parametrize("buffer_num", [2, 3])
def test_case_11_launches_back_to_back_for_odd_and_even_iteration_counts(m, buffer_num):
    check(plan_of(m, 64, 64, 4, buffer_num=buffer_num), launches=4)


@pytest.mark.parametrize("buffer_num", [2, 3, 4])
def test_case_12_the_result_does_not_depend_on_the_number_of_slots(buffer_num):
    plan = plan_of(192, 160, 160, 2, block_m=32, block_n=32, block_k=32, buffer_num=buffer_num)
    check(plan, launches=1)


def test_case_7_strided_operands_give_the_same_result():
    def transposed(t):
        return t.t().contiguous().t()

    def column_slice(t):
        wide = torch.full((t.shape[0], 2 * t.shape[1]), float("nan"), dtype=t.dtype)
        wide[:, : t.shape[1]] = t
        return wide[:, : t.shape[1]]

    for layout in (transposed, column_slice):
        check(plan_of(48, 96, 80, 2), layout=layout)


def test_case_5_bf16_never_passes_through_fp16():
    world = WorldOfKernels(plan_of(1, 1, 1, 2, "bf16"), 1)
    one = [torch.full((1, 1), 300.0, dtype=torch.bfloat16)] * 2
    c = [torch.empty(2, 1, dtype=torch.bfloat16) for _ in range(2)]
    world.run(one, one, c)
    assert c[0].tolist() == [[90112.0], [90112.0]]


def test_case_10_accumulation_is_fp32():
    world = WorldOfKernels(plan_of(1, 1, 2, 1), 1)
    a, b = torch.tensor([[256.0, 256.0]]).half(), torch.tensor([[256.0], [-256.0]]).half()
    c = [torch.empty(1, 1, dtype=torch.float16)]
    world.run([a], [b], c)
    assert c[0].item() == 0.0
    ones = torch.ones(16, 70000).half()
    c = [torch.empty(16, 16, dtype=torch.float16)]
    WorldOfKernels(plan_of(16, 16, 70000, 1, block_k=256, comm_block_k=256), 1).run([ones], [ones.t()], c)
    assert c[0].isinf().all()  # 70000 is beyond fp16


def test_case_6_offsets_beyond_2_31_elements_are_right():
    """C with a row stride of 2**26: row 39 begins at element 2617245696. Only the pages touched become memory."""
    plan = plan_of(20, 16, 16, 2)
    world = WorldOfKernels(plan, 2)
    a = [integers((20, 16), "fp16", rank) for rank in range(2)]
    b = [integers((16, 16), "fp16", 9 + rank) for rank in range(2)]
    c = [torch.empty(40, 2**26, dtype=torch.float16)[:, :16] for _ in range(2)]
    assert 39 * c[0].stride(0) > 2**31
    world.run(a, b, c)
    for rank in range(2):
        assert torch.equal(c[rank].float(), torch.cat(a).float() @ b[rank].float())
