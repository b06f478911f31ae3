"""The memory formulas of agcli.problem against the compiler's verdicts, over configurations drawn at random.

The product must refuse what the compiler refuses, for the same memory and by the same bytes, and know where tiles are
double-buffered.
"""

from __future__ import annotations

import random

import pytest

from agcli.chips import Chip, chip_by_name
from agcli.compiler.compile import CompileRequest
from agcli.compiler.sweep import SweepRow, configurations, expected_plan, planned, sweep
from agcli.errors import UsageError
from agcli.problem import KernelConfig, Problem, default_config, make_plan
from agcli.toolchain import Toolchain

BLOCKS = (16, 32, 48, 64, 96, 112, 128, 160, 192, 256, 320, 512)


def drawn(chip: Chip, count: int, seed: int) -> list[CompileRequest]:
    """Configurations of which about half fit, and some fit to the last byte."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        config = KernelConfig(
            block_m=rng.choice(BLOCKS),
            block_n=rng.choice(BLOCKS),
            block_k=rng.choice((*BLOCKS, 1024)),
            comm_block_m=rng.choice((1, 3, 8, 20, 33, 96, 100, 192)),
            comm_block_k=rng.choice((16, 48, 256, 528, 1024)),
            pvalue=rng.choice((1, 2, 4, 8)),
            transport=rng.choice(("store", "putmem")),
        )
        requests.append(
            CompileRequest(chip, config, rng.choice(("fp16", "bf16")), multibuffer=rng.choice((None, False)))
        )
    return requests


def disagreements(rows: list[SweepRow]) -> list[tuple[object, ...]]:
    return [
        (
            row.request.config,
            row.request.multibuffer,
            row.report.faults,
            planned(row.report),
            expected_plan(row.request),
        )
        for row in rows
        if not row.agrees
    ]


def refusal(request: CompileRequest) -> str:
    """The memory for which a plan with this configuration is refused; empty if it is not."""
    try:
        make_plan(Problem(4096, 4096, 4096, 2, request.dtype), request.config, request.chip)
    except UsageError as error:
        return str(error).partition(" of ")[0]
    return ""


@pytest.mark.parametrize(("soc", "count"), [("Ascend910B3", 24), ("Ascend950PR_9579", 10)])
def test_formulas_and_compiler_agree_on_drawn_configurations(soc: str, count: int, toolchain: Toolchain) -> None:
    rows = sweep(drawn(chip_by_name(soc), count, seed=1), toolchain)
    assert disagreements(rows) == []
    for row in rows:
        assert bool(refusal(row.request)) == bool(row.report.overflows), row.request.config
        assert refusal(row.request) in ("", *expected_plan(row.request))
    assert 0 < sum(row.report.fits for row in rows) < count, "the sample must have both"


EDGES = (
    KernelConfig(block_m=128, block_n=256),  # L0C to the last byte
    KernelConfig(block_m=144, block_n=256),
    KernelConfig(block_m=128, block_n=128, block_k=512),  # L1 doubled, to the last byte
    KernelConfig(block_m=128, block_n=128, block_k=528),
    KernelConfig(block_m=128, block_n=128, block_k=1024),  # L1 once, to the last byte
    KernelConfig(block_m=128, block_n=128, block_k=1040),
    KernelConfig(comm_block_m=96, comm_block_k=1024),  # UB to the last byte
    KernelConfig(comm_block_m=97, comm_block_k=1024),
)


def test_formulas_and_compiler_agree_at_the_edges(toolchain: Toolchain) -> None:
    requests = [CompileRequest(chip_by_name("Ascend910B3"), config, multibuffer=True) for config in EDGES]
    rows = sweep(requests, toolchain)
    assert disagreements(rows) == []
    assert [row.report.fits for row in rows] == [True, False, True, True, True, False, True, False]


def test_progress_is_told_and_rows_keep_their_order(toolchain: Toolchain) -> None:
    chip = chip_by_name("Ascend910B3")
    requests = [CompileRequest(chip, KernelConfig(block_m=block)) for block in (256, 16, 64)]
    told: list[tuple[int, int]] = []
    rows = sweep(requests, toolchain, lambda done, total: told.append((done, total)))
    assert [row.report.config.block_m for row in rows] == [256, 16, 64]
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_default_sweep_varies_tiles_communication_tiles_and_pvalue() -> None:
    found = configurations(default_config(None))
    assert len(found) == len(set(found))
    assert {config.block_m for config in found} == {64, 128, 256}
    assert {config.comm_block_m for config in found} == {20, 64, 128}
    assert {config.pvalue for config in found} == {1, 2, 4, 8}


def test_axes_are_crossed_around_the_base() -> None:
    found = configurations(KernelConfig(pvalue=2), [("block_k", (128, 256)), ("comm_block_m", (8, 16))])
    assert [(c.block_k, c.comm_block_m, c.pvalue) for c in found] == [
        (128, 8, 2),
        (128, 16, 2),
        (256, 8, 2),
        (256, 16, 2),
    ]
