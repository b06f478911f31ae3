"""A small producer-consumer language, explored in all interleavings, and run under the detector.

A program is a list of operations for each rank, which is one vector core here. Data and signal words are on rank 0:

    ("write", cell), ("read", cell), ("barrier",),
    ("set", word, value), ("add", word), ("wait", word, ">=" or "==", value)
"""

import torch

from agcli.check.access import CheckedTask
from agcli.check.findings import Findings
from agcli.check.places import Places
from agcli.check.races import Detector
from agcli.check.schedules import Schedule, Stuck
from agcli.check.world import CheckedMachine, LocalWorld
from agcli.simulator import shmem
from agcli.simulator.memory import Pointer, Region

CELLS, WORDS = 2, 2


def explore(program):
    """``(race, deadlock)``: whether any interleaving has two conflicting accesses side by side, or gets stuck."""
    race = deadlock = False
    start = ((0,) * len(program), (0,) * WORDS)
    seen, todo = {start}, [start]
    while todo:
        counters, words = todo.pop()
        nexts = [task[i] if i < len(task) else None for task, i in zip(program, counters, strict=True)]
        race |= any(_conflict(a, b) for i, a in enumerate(nexts) for b in nexts[:i])
        after = list(_steps(nexts, counters, words))
        deadlock |= not after and any(op is not None for op in nexts)
        todo += [state for state in after if state not in seen]
        seen.update(after)
    return race, deadlock


def _conflict(a, b):
    accesses = a and b and a[0] in ("read", "write") and b[0] in ("read", "write") and a[1] == b[1]
    return bool(accesses and "write" in (a[0], b[0]))


def _steps(nexts, counters, words):
    if all(op == ("barrier",) for op in nexts):
        yield tuple(i + 1 for i in counters), words
        return
    for task, op in enumerate(nexts):
        if op is None or op[0] == "barrier" or (op[0] == "wait" and not _holds(op, words)):
            continue
        changed = list(words)
        if op[0] == "set":
            changed[op[1]] = op[2]
        elif op[0] == "add":
            changed[op[1]] += 1
        yield tuple(i + (task == t) for t, i in enumerate(counters)), tuple(changed)


def _holds(op, words):
    return words[op[1]] >= op[3] if op[2] == ">=" else words[op[1]] == op[3]


class _NoSources:
    sources = ()


def detect(program, schedules):
    """Kinds of findings over some schedules of a program."""
    findings = Findings()
    for seed in range(schedules):
        detector = Detector(Places(_NoSources()), findings, len(program))
        world = LocalWorld(len(program), detector)
        machines = []
        schedule = Schedule(seed, lambda task: task.machine.task_ended(task), lambda: [m.poll() for m in machines])  # noqa: B023
        for rank, operations in enumerate(program):
            world.allocate("cells", rank, (CELLS,), torch.float32)
            world.allocate("words", rank, (WORDS,), torch.int32)
            machine = CheckedMachine(rank, 1, world, 0, ("vector0",), schedule)
            machines.append(machine)
            cells, words = (Pointer(buffer) for buffer in world.symmetric[0].values())
            task = CheckedTask(machine, 0, "vector0", _body(operations, cells, words))
            detector.enter_launch(task, None, [])
            schedule.add(task)
        try:
            schedule.run()
        except Stuck:
            yield "deadlock"
        for finding in detector.signals.findings():
            findings.add(finding)
    yield from {fault.kind for fault in findings.faults}


def _body(operations, cells, words):
    def run():
        for name, *values in operations:
            if name == "write":
                cells.buffer.write(Region(values[0], (1,), (1,)), 1.0)
            elif name == "read":
                cells.buffer.read(Region(values[0], (1,), (1,)))
            elif name == "set":
                shmem.signal_op(words + values[0], values[1], shmem.SIGNAL_SET, 0)
            elif name == "add":
                shmem.signal_op(words + values[0], 1, shmem.SIGNAL_ADD, 0)
            elif name == "wait":
                shmem.signal_wait_until(words + values[0], 3 if values[1] == ">=" else 0, values[2])
            else:
                shmem.barrier_all()

    return run
