"""What the stand-ins share: the settings in the variable ``STANDINS`` (JSON), and a record of what was called.

Settings, all optional:
    npus: how many there are (2).
    name: what ``get_device_name`` answers ("Ascend910B3").
    codes: {function: code} to return instead of working; on ``rank`` only, if that is given.
    raises: {function: message} to raise RuntimeError with; on ``rank`` only, if that is given.
    rank: the rank that fails (all).
    unreachable: peers that ``aclshmem_ptr`` does not reach.
    free_bytes: of the device while there is no heap (8 GiB).
    core_limit: AI cores that the process may use (20).
    old_finalize: only the misspelled name exists.
    putmem: false, to leave it out of the Ascend module.
    record: a folder; each process appends what it called to ``PID.jsonl``.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

AI_CORES = 20
HELD = {"heap": 0}  # bytes of the device's memory that this process holds
SETTINGS: dict[str, Any] = json.loads(os.environ.get("STANDINS", "{}"))


def setting(name: str, default: Any) -> Any:
    """A setting, or its default."""
    return SETTINGS.get(name, default)


def note(call: str, **values: Any) -> None:
    """Record a call."""
    if "record" in SETTINGS:
        with (Path(SETTINGS["record"]) / f"{os.getpid()}.jsonl").open("a") as file:
            file.write(json.dumps({"call": call, **values}) + "\n")


def failing(kind: str, call: str) -> Any:
    """What ``codes`` or ``raises`` asks ``call`` to do on this rank, or None."""
    import torch.distributed as dist

    wanted = SETTINGS.get(kind, {}).get(call)
    only = SETTINGS.get("rank")
    here = only is None or (dist.is_initialized() and dist.get_rank() == only)
    return wanted if here else None
