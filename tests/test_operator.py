"""AllGatherGemm: ranks on the cpu backend, then its parts without any. Docstrings name the users' cases."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agcli import AllGatherGemm
from agcli.chips import chip_by_name
from agcli.errors import EnvironmentFault, UsageError
from agcli.launch import Job, launch
from agcli.operands import check_operands, strides_of
from agcli.operator import JobContext
from agcli.problem import KernelConfig, Plan, Problem
from agcli.slotted import SlottedEngine, kernel_arguments

TESTS = Path(__file__).parent


def on_ranks(target: str, world: int = 2, env: dict[str, str] | None = None, **payload: Any) -> list[Any]:
    """What ``operator_targets.target`` returned on each rank."""
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    results = launch(
        Job(f"operator_targets:{target}", {"backend": "cpu", **payload}),
        world=world,
        devices=list(range(world)),
        timeout_s=120,
        env={"PYTHONPATH": path, **(env or {})},
    )
    assert [result.message for result in results] == [""] * world
    return [result.value for result in results]


# -- with ranks ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("transport", ["store", "putmem"])
def test_any_strides_give_the_result_of_contiguous_operands(transport: str) -> None:
    """Case 7, strides."""
    for right in on_ranks("strided", transport=transport):
        assert all(right.values()), right


def test_wrong_calls_raise_the_same_value_error_on_every_rank_and_leave_the_operator_usable() -> None:
    """Cases 3 (empty A) and 5 (mixed dtypes)."""
    results = on_ranks("wrong_calls")
    assert results[0] == results[1]
    assert results[0]["before"]
    assert results[0]["after"]
    messages = results[0]["messages"]
    assert messages["empty A"] == "UsageError: A must have shape [8, 48], got [0, 48]"
    assert messages["B in bf16"] == "UsageError: B must be of torch.float16 like the operator, got torch.bfloat16"
    assert "must be on cpu" in messages["A on meta"]
    assert "pass A.detach()" in messages["A with a gradient"]
    assert "out must have shape [16, 32], got [1, 32]" in messages["out too small"]
    assert "out must be of torch.float16" in messages["out in fp32"]
    assert "several of its elements share memory" in messages["out expanded"]
    assert messages["closed"] == "this AllGatherGemm is closed"


def test_dtypes_and_operators_follow_each_other_in_one_process() -> None:
    """Cases 5 (dtypes) and 20 (the job's group is used, and is there afterwards)."""
    for found in on_ranks("one_process"):
        assert all(found["right"])
        assert found["products"] == [[[90112.0], [90112.0]]] * 3
        assert found["group"] == 2


@pytest.mark.parametrize(("m", "buffer_num"), [(32, 2), (64, 2), (96, 2), (96, 3)])
def test_launches_back_to_back_do_not_disturb_each_other(m: int, buffer_num: int) -> None:
    """Case 11: one, two and three iterations a launch."""
    for right in on_ranks("back_to_back", world=3, m=m, buffer_num=buffer_num, repeat=20):
        assert all(right)


def test_an_operator_may_be_called_as_soon_as_it_is_built() -> None:
    """Case 13: cold starts."""
    for right in on_ranks("cold_starts", world=3, times=12):
        assert all(right)


def test_ranks_that_were_given_different_arguments_all_say_so() -> None:
    messages, others = on_ranks("disagreeing")
    assert messages == others
    assert "m is 32 on rank 0 and 64 on rank 1" in messages[0]
    assert "m is 32 on rank 0 and 0 on rank 1" in messages[1]
    assert messages[2] == "M must be at least 1, got 0 (--m)"
    assert "block_m is None on rank 0 and 16 on rank 1" in messages[3]
    assert "got torch.float32" in messages[4]
    assert "got 'tpu'" in messages[5]
    assert "unknown chip 'Ascend310'" in messages[6]
    assert "L0C of Ascend910B3 is too small" in messages[7]
    assert messages[8] == "True"


def test_the_ranks_may_be_a_part_of_the_job() -> None:
    assert on_ranks("subgroup", world=3) == [[2, True], None, [2, True]]


def test_a_ranks_place_is_its_jobs_with_global_and_local_rank_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 20."""
    for name, value in {"RANK": 5, "LOCAL_RANK": 1, "WORLD_SIZE": 8, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 5)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 8)
    monkeypatch.setattr("agcli.operator.from_first", lambda note, group: note)
    ctx = JobContext(None, 60.0)
    assert (ctx.rank, ctx.world, ctx.local_rank, ctx.local_world, ctx.device) == (5, 8, 1, 4, 1)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not ctx.init_process_group("hccl")  # there is one
    ctx.close()  # and it stays


def test_without_a_job_it_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="init_process_group first"):
        AllGatherGemm(1, 1, 1, backend="cpu")


def test_synchronize_tells_what_went_wrong_in_queued_calls() -> None:
    def synchronize() -> None:
        raise EnvironmentFault("rank 1 waited in vain")

    gemm: Any = object.__new__(AllGatherGemm)
    gemm._engine, gemm._platform = object(), SimpleNamespace(backend=SimpleNamespace(synchronize=synchronize))
    with pytest.raises(EnvironmentFault, match="in vain"):
        gemm.synchronize()
    gemm._engine = None
    gemm.synchronize()  # closed: nothing is queued


# -- operands --------------------------------------------------------------------------------------------------------
CPU = torch.device("cpu")


def plan_of(m: int, n: int, k: int, world: int = 2, **config: Any) -> Plan:
    return Plan(Problem(m, n, k, world), KernelConfig(**{"transport": "store", **config}), chip_by_name("Ascend910B3"))


def check(plan: Plan, a: torch.Tensor | None = None, b: torch.Tensor | None = None, out: Any = None) -> None:
    problem = plan.problem
    a = torch.empty(problem.a_shape, dtype=torch.float16) if a is None else a
    b = torch.empty(problem.b_shape, dtype=torch.float16) if b is None else b
    check_operands(plan, CPU, a, b, out)


def test_what_is_no_tensor_is_named() -> None:
    plan = plan_of(4, 8, 8)
    with pytest.raises(UsageError, match="B must be a tensor, got list"):
        check_operands(plan, CPU, torch.empty(4, 8, dtype=torch.float16), [1.0], None)  # type: ignore[arg-type]


def test_offsets_that_exceed_32_bits_inside_a_tile_name_the_operand_and_its_strides() -> None:
    plan = plan_of(4, 8, 8)
    huge = torch.empty(0, dtype=torch.float16)
    stride = 2**31 // 20  # comm_block_m is 20
    with pytest.raises(UsageError, match=rf"A has strides \[{stride}, 1\].*pass A.contiguous"):
        check(plan, a=_unread(huge, (4, 8), (stride, 1)))
    with pytest.raises(UsageError, match=r"B has strides \[1, 8388608\]"):
        check(plan, b=_unread(huge, (8, 8), (1, 2**23)))
    with pytest.raises(UsageError, match="out has strides"):
        check(plan, out=_unread(huge, (8, 8), (2**24, 1)))
    check(plan, a=_unread(huge, (4, 8), (2**26, 1)))
    wide = plan_of(4, 2**24, 1, block_k=16)  # the C that the operator makes has N for a row stride
    with pytest.raises(UsageError, match=r"C has strides \[16777216, 1\].*lower N or block_m"):
        check(wide, b=torch.empty(wide.problem.b_shape, dtype=torch.float16))
    check(replace(wide, chip=None), b=torch.empty(wide.problem.b_shape, dtype=torch.float16))  # no Ascend kernel


def _unread(storage: torch.Tensor, shape: tuple[int, int], strides: tuple[int, int]) -> torch.Tensor:
    """A tensor of these strides whose memory is never touched, so that it costs only addresses."""
    return torch.empty_strided(shape, strides, dtype=storage.dtype)


def test_an_irrelevant_stride_is_not_passed_on() -> None:
    assert strides_of(torch.empty(1, 6).as_strided((1, 6), (10**9, 1))) == (6, 1)
    assert strides_of(torch.empty(40).as_strided((5, 1), (3, 77))) == (3, 1)
    assert strides_of(torch.empty(4, 6).t()) == (1, 6)


def test_out_may_not_lie_in_the_memory_of_an_operand_or_of_itself() -> None:
    plan = plan_of(4, 8, 8)
    memory = torch.empty(400, dtype=torch.float16)
    with pytest.raises(UsageError, match="out shares memory with A"):
        check(plan, a=memory[:32].view(4, 8), out=memory[31 : 31 + 64].view(8, 8))
    with pytest.raises(UsageError, match="out shares memory with B"):
        check(plan, b=memory[100:164].view(8, 8), out=memory[163 : 163 + 64].view(8, 8))
    check(plan, a=memory[:32].view(4, 8), b=memory[100:164].view(8, 8), out=memory[32:96].view(8, 8))
    with pytest.raises(UsageError, match="several of its elements share memory"):
        check(plan, out=memory.as_strided((8, 8), (4, 1)))
    with pytest.raises(UsageError, match="several of its elements share memory"):
        check(plan, out=memory.as_strided((8, 8), (0, 1)))


def test_sparse_operands_are_refused() -> None:
    with pytest.raises(UsageError, match="dense"):
        check(plan_of(4, 8, 8), a=torch.zeros(4, 8, dtype=torch.float16).to_sparse())


# -- slots -----------------------------------------------------------------------------------------------------------
class Slots:
    """An engine whose launches and waits are only written down."""

    def __init__(self, **config: Any) -> None:
        self.log: list[Any] = []
        self.plan = plan_of(96, 8, 8, block_m=16, pvalue=2, **config)  # three iterations
        self.memory = torch.zeros(self.plan.peer_shape, dtype=torch.float16)
        self.engine = SlottedEngine(
            self.plan,
            1,
            self.memory,
            lambda arguments: self.log.append(arguments["first_slot"]),
            synchronize=lambda: self.log.append("synchronize"),
            barrier=lambda: self.log.append("barrier"),
            release=lambda memory: self.log.append(memory is self.memory),
        )
        self.a = torch.zeros(self.plan.problem.a_shape, dtype=torch.float16)
        self.b = torch.zeros(self.plan.problem.b_shape, dtype=torch.float16)
        self.c = torch.zeros(self.plan.problem.c_shape, dtype=torch.float16)

    def run(self) -> None:
        self.engine.run(self.a, self.b, self.c)

    def poisoned(self) -> list[bool]:
        return [bool(slot.isnan().all()) for slot in self.memory]


@pytest.mark.parametrize(("buffer_num", "slots"), [(2, [0, 1, 0, 1]), (3, [0, 0, 0, 0]), (4, [0, 3, 2, 1])])
def test_slots_go_on_from_launch_to_launch(buffer_num: int, slots: list[int]) -> None:
    world = Slots(buffer_num=buffer_num)
    places = []
    for _ in slots:
        world.run()
        places.append(world.engine.place()["first_slot"])
    assert world.log == slots == places


def test_poison_spares_the_slot_that_a_peer_may_be_writing() -> None:
    world = Slots(buffer_num=3)
    world.engine.poison()
    assert world.log == ["synchronize", "barrier"]
    assert world.poisoned() == [True, True, True]
    world.memory.zero_()
    world.run()
    world.engine.poison()
    assert world.poisoned() == [False, True, True]  # three iterations: the next launch begins in slot 0 again
    assert world.log == ["synchronize", "barrier", 0]


def test_close_waits_for_all_ranks_and_frees_once() -> None:
    world = Slots()
    world.engine.close()
    world.engine.close()
    assert world.log == ["synchronize", "barrier", True]
    with pytest.raises(RuntimeError, match="closed"):
        world.run()


def test_the_kernels_arguments_are_its_parameters_and_putmem_gets_a_contiguous_a() -> None:
    import inspect

    from agcli.simulator.binding import kernel_function, load_kernel

    world = Slots(transport="putmem")
    seen: list[dict[str, Any]] = []
    world.engine._launch = seen.append
    world.a = torch.zeros((8, 96), dtype=torch.float16).t()
    world.run()
    assert (seen[0]["stride_am"], seen[0]["stride_ak"]) == (8, 1)
    file = TESTS.parent / "agcli" / "kernels" / "allgather_gemm.py"
    parameters = inspect.signature(kernel_function(load_kernel(file, "kernel_allgather_gemm"))).parameters
    assert list(seen[0]) == list(parameters)
    stored = kernel_arguments(world.plan, 0, world.a, world.b, world.c, world.memory, 0)
    assert (stored["stride_am"], stored["stride_ak"]) == (1, 96)
