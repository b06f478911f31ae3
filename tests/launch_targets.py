"""Worker functions for the launcher's tests: each behaves well or badly in one way. Run in ranks, imported by name."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from agcli.errors import KernelFault, UsageError
from agcli.rank import RankContext


def describe(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "OMP_NUM_THREADS", "EXTRA")
    return {
        "place": [ctx.rank, ctx.world, ctx.local_rank, ctx.local_world, ctx.device],
        "run_id": ctx.run_id,
        "env": {name: os.environ.get(name) for name in names},
        "payload": payload,
        "stdin": sys.stdin.read(),
    }


def chatty(ctx: RankContext, payload: dict[str, Any]) -> str:
    print('{"type": "result", "value": "forged"}', flush=True)
    print("a line on stderr", file=sys.stderr)
    for done in range(1001):
        ctx.progress(done, 1000)
    return "true"


def all_reduce(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    time.sleep(payload.get("delay_s", 0) if ctx.rank == payload.get("late") else 0)
    created = ctx.init_process_group("gloo")
    again = ctx.init_process_group("gloo")
    total = torch.tensor([float(ctx.rank + 1) + payload.get("add", 0)])
    dist.all_reduce(total)
    state = {"created": created, "again": again, "collects": gc.isenabled()}
    return {"sum": total.item(), "run_id": ctx.run_id, **state}


def raises(ctx: RankContext, payload: dict[str, Any]) -> None:
    if ctx.rank not in payload.get("ranks", [ctx.rank]):
        ctx.phase("waiting for the others", waiting=True)
        time.sleep(300)
    kinds = {"usage": UsageError, "kernel": KernelFault, "value": ValueError}
    raise kinds[payload["kind"]](payload["text"])


def publishes(ctx: RankContext, payload: dict[str, Any]) -> str:
    ctx.publish({"row": ctx.rank})
    return "done"


def not_json(ctx: RankContext, payload: dict[str, Any]) -> Any:
    return object()


def verdicts(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    return {"passed": ctx.rank != 1}


def leaves(ctx: RankContext, payload: dict[str, Any]) -> None:
    print(f"last words of {ctx.rank}", flush=True)
    if ctx.rank == payload["rank"]:
        if payload["how"] == "sys.exit":
            sys.exit(payload["status"])
        os._exit(payload["status"])
    time.sleep(300)


def wrong_exit(ctx: RankContext, payload: dict[str, Any]) -> str:
    import atexit

    if ctx.rank == 1:
        atexit.register(os._exit, 7)
    return "fine"


def waits(ctx: RankContext, payload: dict[str, Any]) -> None:
    """Every rank writes its pid for the test and sleeps, alone or with a child of its own."""
    if payload.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [os.getpid()]
    if payload.get("child"):
        pids.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]).pid)
    if payload.get("leave_files"):
        for folder in ("/dev/shm", tempfile.gettempdir()):
            with open(f"{folder}/{ctx.run_id}-{ctx.rank}", "w") as f:
                f.write("left over")
    path = f"{payload['folder']}/pids-{ctx.rank}"
    with open(path + ".new", "w") as f:
        f.write(" ".join(map(str, pids)))
    os.replace(path + ".new", path)
    ctx.phase("sleeping")
    time.sleep(300)


def waits_in_torch(ctx: RankContext, payload: dict[str, Any]) -> None:
    """All ranks but the first wait in a collective operation for the first, which sleeps."""
    import torch.distributed as dist

    ctx.init_process_group("gloo")
    with open(f"{payload['folder']}/pids-{ctx.rank}", "w") as f:
        f.write(str(os.getpid()))
    ctx.phase("sleeping")
    if ctx.rank == 0:
        time.sleep(300)
    dist.barrier()


def one_is_late(ctx: RankContext, payload: dict[str, Any]) -> str:
    if ctx.rank == payload["late"]:
        ctx.phase("before launch 0")
        deadline = time.monotonic() + payload["delay_s"]
        while time.monotonic() < deadline:
            ctx.phase("before launch 0")  # no news, no progress
            time.sleep(0.05)
    else:
        ctx.phase("launch 0", waiting=True)
        time.sleep(payload["delay_s"])
    return "done"


def steady(ctx: RankContext, payload: dict[str, Any]) -> str:
    """Slower than the timeout in all, but always getting on; the others wait."""
    if ctx.rank:
        ctx.phase("the barrier", waiting=True)
        time.sleep(payload["steps"] * payload["step_s"])
        return "done"
    for step in range(payload["steps"]):
        ctx.progress(step, payload["steps"])
        time.sleep(payload["step_s"])
    return "done"


def meets(ctx: RankContext, payload: dict[str, Any]) -> list[str]:
    """What all ranks of this run wrote to the store under names that every other run uses too."""
    ctx.store().set(f"key-{ctx.rank}", payload["name"])
    return [bytes(ctx.store().get(f"key-{rank}")).decode() for rank in range(ctx.world)]


def wants_too_much(ctx: RankContext, payload: dict[str, Any]) -> None:
    import torch

    torch.empty(2**60, dtype=torch.uint8)
