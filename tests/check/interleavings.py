"""A small producer-consumer language, explored in all interleavings, and run under the detector.

A program is a list of operations for each rank, which is one vector core here. Data and signal words are on rank 0:

    ("write", cell), ("read", cell), ("barrier",), ("put", cell), ("quiet",), ("fence",),
    ("set", word, value), ("add", word), ("wait", word, ">=" or "==", value)

``put`` starts a transfer to a cell, which happens at any time until its rank's ``quiet`` or barrier has passed, and
before what the rank puts or signals after its next ``fence``.
"""

from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Rank:
    """How far a rank is, and what it sent that has not arrived: ``(cells, signals)`` of each stretch between fences."""

    at: int = 0
    sent: tuple = (((), ()),)

    @property
    def quiet(self):
        return self.sent == (((), ()),)

    def arriving(self):
        """Cells of transfers that may happen now: all those before the fences must have arrived."""
        return next((cells for cells, signals in self.sent if cells), ())


def explore(program):
    """``(race, deadlock)``: whether any interleaving has two conflicting accesses side by side, or gets stuck."""
    race = deadlock = False
    start = ((Rank(),) * len(program), (0,) * WORDS)
    seen, todo = {start}, [start]
    while todo:
        ranks, words = todo.pop()
        nexts = [task[rank.at] if rank.at < len(task) else None for task, rank in zip(program, ranks, strict=True)]
        accesses = [op for op in nexts if op is not None and op[0] in ("read", "write")]
        accesses += [("write", cell) for rank in ranks for cell in rank.arriving()]
        race |= any(_conflict(a, b) for i, a in enumerate(accesses) for b in accesses[:i])
        after = list(_steps(nexts, ranks, words))
        deadlock |= not after and any(op is not None for op in nexts)
        todo += [state for state in after if state not in seen]
        seen.update(after)
    return race, deadlock


def _conflict(a, b):
    return a[1] == b[1] and "write" in (a[0], b[0])


def _steps(nexts, ranks, words):
    if all(op == ("barrier",) for op in nexts) and all(rank.quiet for rank in ranks):
        yield tuple(replace(rank, at=rank.at + 1) for rank in ranks), words
        return
    for i, (op, rank) in enumerate(zip(nexts, ranks, strict=True)):
        changes = list(_arrivals(rank, words))
        if op is not None:
            changes += _operation(op, rank, words)
        for changed, new_words in changes:
            yield (*ranks[:i], _tidy(changed), *ranks[i + 1 :]), new_words


def _arrivals(rank, words):
    """Anything sent may arrive when all before the last fence has; signals arrive in order."""
    for stage, (cells, signals) in enumerate(rank.sent):
        before, after = rank.sent[:stage], rank.sent[stage + 1 :]
        if not any(earlier for earlier, _ in before):
            for i in range(len(cells)):
                yield replace(rank, sent=(*before, (cells[:i] + cells[i + 1 :], signals), *after)), words
        if signals and before == (((), ()),) * stage:
            yield replace(rank, sent=(*before, (cells, signals[1:]), *after)), _signalled(signals[0], words)


def _tidy(rank):
    """Without the stretches from which all has arrived."""
    sent = tuple(part for part in rank.sent[:-1] if part != ((), ())) + rank.sent[-1:]
    return replace(rank, sent=sent)


def _operation(op, rank, words):
    """The rank's next operation, if it can happen now."""
    done = replace(rank, at=rank.at + 1)
    cells, signals = rank.sent[-1]
    if op[0] in ("read", "write"):
        yield done, words
    elif op[0] == "put":
        yield replace(done, sent=(*rank.sent[:-1], (tuple(sorted((*cells, op[1]))), signals))), words
    elif op[0] == "fence":
        yield replace(done, sent=(*rank.sent, ((), ()))), words
    elif (op[0] == "quiet" and rank.quiet) or (op[0] == "wait" and _holds(op, words)):
        yield done, words
    elif op[0] in ("set", "add"):
        if len(rank.sent) == 1:
            yield done, _signalled(op, words)
        else:
            yield replace(done, sent=(*rank.sent[:-1], (cells, (*signals, op)))), words


def _signalled(op, words):
    value = op[2] if op[0] == "set" else words[op[1]] + 1
    return (*words[: op[1]], value, *words[op[1] + 1 :])


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
            task = CheckedTask(machine, 0, "vector0", _body(operations, machine, cells, words))
            detector.enter_launch(task, None, [])
            schedule.add(task)
        try:
            schedule.run()
        except Stuck:
            yield "deadlock"
        for finding in detector.signals.findings():
            findings.add(finding)
    yield from {fault.kind for fault in findings.faults}


def _body(operations, machine, cells, words):
    def run():
        for name, *values in operations:
            if name == "write":
                cells.buffer.write(Region(values[0], (1,), (1,)), 1.0)
            elif name == "read":
                cells.buffer.read(Region(values[0], (1,), (1,)))
            elif name == "put":
                machine.start_transfer(lambda cell=values[0]: cells.buffer.write(Region(cell, (1,), (1,)), 1.0))
            elif name in ("quiet", "fence"):
                getattr(shmem, name)()
            elif name == "set":
                shmem.signal_op(words + values[0], values[1], shmem.SIGNAL_SET, 0)
            elif name == "add":
                shmem.signal_op(words + values[0], 1, shmem.SIGNAL_ADD, 0)
            elif name == "wait":
                shmem.signal_wait_until(words + values[0], 3 if values[1] == ">=" else 0, values[2])
            else:
                shmem.barrier_all()

    return run
