"""Words for findings: which part of a tensor, what two tasks last had in common, and why nothing orders them."""

from __future__ import annotations

import torch

from agcli.check.access import Access, CheckedTask, TransferTask
from agcli.simulator.memory import Buffer

AXES = {1: ("element",), 2: ("row", "column"), 3: ("slot", "row", "column")}


def part(buffer: Buffer, offsets: torch.Tensor) -> str:
    """The smallest box around elements, such as ``peer_mem of rank 1, slot 0, rows 0-15, columns 0-31``."""
    name = f"{buffer.name} of rank {buffer.rank}"
    rest = offsets.flatten()
    order = sorted(range(len(buffer.shape)), key=lambda d: -buffer.strides[d])
    ranges = {}
    for d in order:
        if buffer.strides[d]:
            index = torch.div(rest, buffer.strides[d], rounding_mode="floor")
            rest = rest - index * buffer.strides[d]
            ranges[d] = (int(index.min()), int(index.max()))
    names = AXES.get(len(buffer.shape), tuple(f"index {d}" for d in range(len(buffer.shape))))
    texts = []
    for d in range(len(buffer.shape)):
        low, high = ranges.get(d, (0, 0))
        texts.append(f"{names[d]} {low}" if low == high else f"{names[d]}s {low}-{high}")
    return ", ".join([name, *texts])


def who(task: CheckedTask) -> str:
    """A task within a sentence."""
    return f"{task.unit_name} of core {task.core} on rank {task.machine.rank}"


def last_common(a: Access, b: Access, names: dict[tuple[str, int], str]) -> str:
    """The last synchronisation that both tasks had behind them."""
    common = [
        (scope, min(a.synchronised[scope][0], b.synchronised[scope][0]))
        for scope in a.synchronised
        if scope in b.synchronised
    ]
    if common:
        return ", ".join(names[key] for key in common)
    same_rank = a.task.machine.rank == b.task.machine.rank
    return "the start of the launch" if same_rank else "none: no barrier that both had passed"


def why(a: Access, b: Access, vector_barrier: int) -> str:
    """Why nothing orders two accesses; ``a`` ran first here. ``vector_barrier``: a line with barrier_all_vec, or 0."""
    reasons = []
    for access, other in ((a, b), (b, a)):
        if isinstance(access.task, TransferTask):
            reasons.append(
                f"the transfer is complete only when {who(access.task.owner)} has passed quiet or a barrier, and the "
                f"{other.kind} does not come after that"
            )
    first, second = a.task, b.task
    if first.machine.rank != second.machine.rank and first.machine.launch != second.machine.launch:
        reasons.append(
            f"launches of different ranks are not ordered: rank {first.machine.rank} was in launch "
            f"{first.machine.launch}, rank {second.machine.rank} in launch {second.machine.launch}"
        )
    if "cube" in (first.unit, second.unit) and first.unit != second.unit:
        if vector_barrier:
            reasons.append(f"barrier_all_vec, as in line {vector_barrier}, does not hold cube cores")
        elif first.machine is second.machine and first.core == second.core:
            reasons.append("cube and vector cores of one AI core are ordered by nothing but barriers and signals")
    if first.actor in second.heard:
        reasons.append(
            f"the last signal of {who(first)} that ended a wait of {who(second)} was sent before the {a.kind}, at "
            f"{second.heard[first.actor]}"
        )
    reasons.append(
        f"{who(first)} reached no barrier after its {a.kind} that {who(second)} passed before its {b.kind}, and sent "
        "no signal in between that was waited for"
    )
    return "; ".join(dict.fromkeys(reasons))
