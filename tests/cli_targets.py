"""What ranks do in the tests of the command line. Imports nothing heavy, so that eight ranks start quickly."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

from agcli import verify
from agcli.errors import KernelFault
from agcli.rank import RankContext


def cannot_compile(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    raise KernelFault("the kernel does not compile:\n  line 12: too much UB")


def sleep(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    ctx.phase("sleeping")
    time.sleep(1000)
    return {}


def noisy(ctx: RankContext, payload: dict[str, Any]) -> dict[str, Any]:
    """What libraries print: on stdout, as a warning, and from below Python."""
    print("a library says hello", flush=True)
    warnings.warn("a library warns", stacklevel=1)
    os.write(1, b"a library writes to file descriptor 1\n")
    return verify.run_rank(ctx, payload)
