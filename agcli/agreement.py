"""How ranks compare notes: what one rank knows becomes what all know, so that all of them raise the same error.

Each function is collective over ``group`` (None: the default process group) and uses only an all-gather.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from agcli.errors import AgGemmError, EnvironmentFault, UsageError

NOTE_BYTES = 4096  # every note is padded to this, since ranks must gather equal sizes
VALUE_CHARS = 100  # of one argument in a note


def group_device(group: dist.ProcessGroup | None) -> torch.device:
    """A device whose tensors the collectives of ``group`` take: the CPU where possible, else the current one."""
    devices = [entry.split(":")[0] for entry in str(dist.get_backend_config(group)).split(",")]
    return torch.device("cpu" if "cpu" in devices else devices[0])


def gather_notes(note: str, group: dist.ProcessGroup | None) -> list[str]:
    """The notes of all ranks, in rank order; each is cut to ``NOTE_BYTES`` bytes of UTF-8."""
    data = note.encode()[:NOTE_BYTES].ljust(NOTE_BYTES, b"\0")
    own = torch.tensor(list(data), dtype=torch.uint8, device=group_device(group))
    notes = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(notes, own, group=group)
    return [bytes(n.tolist()).rstrip(b"\0").decode(errors="ignore") for n in notes]


def from_first(note: str, group: dist.ProcessGroup | None) -> str:
    """The note of rank 0 of ``group``, on every rank. Raises ValueError if it does not fit whole."""
    if len(note.encode()) > NOTE_BYTES:
        raise ValueError(f"a note of {len(note.encode())} bytes is more than the {NOTE_BYTES} that can be sent")
    return gather_notes(note, group)[0]


def check_same(arguments: Mapping[str, Any], group: dist.ProcessGroup | None) -> None:
    """Refuse arguments that differ between ranks: the same UsageError, naming ranks and values, on every rank."""
    notes = gather_notes(json.dumps({name: str(value)[:VALUE_CHARS] for name, value in arguments.items()}), group)
    if len(set(notes)) == 1:
        return
    given = [json.loads(note) for note in notes]
    every = dict.fromkeys(name for values in given for name in values)
    names = [name for name in every if len({values.get(name) for values in given}) > 1]
    details = "; ".join(f"{name} is {_by_value([values.get(name) for values in given])}" for name in names)
    raise UsageError(f"ranks were given different arguments: {details}; all ranks must be given the same")


def raise_together(error: AgGemmError | None, group: dist.ProcessGroup | None) -> None:
    """Return if no rank has an error; else raise on every rank the errors of all, each once with its ranks.

    The class is the own error's where there is one, else EnvironmentFault.
    """
    notes = gather_notes("" if error is None else str(error) or type(error).__name__, group)
    if not any(notes):
        return
    failed = {
        note: [rank for rank, other in enumerate(notes) if other == note] for note in dict.fromkeys(notes) if note
    }
    if error is not None and len(failed) == 1 and all(notes):
        raise error
    text = "; ".join(f"{_ranks(ranks)}: {note}" for note, ranks in failed.items())
    raise (type(error) if error is not None else EnvironmentFault)(text) from error


def _by_value(values: list[Any]) -> str:
    """``[512, 512, 1024]`` as "512 on ranks 0, 1 and 1024 on rank 2"."""
    ranks = {value: [r for r, other in enumerate(values) if other == value] for value in dict.fromkeys(values)}
    return " and ".join(f"{value} on {_ranks(where)}" for value, where in ranks.items())


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
