"""Options that several commands share: one name, one help text, one unit each. Imports nothing heavy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from agcli.chips import DEFAULT_SOC
from agcli.errors import UsageError
from agcli.problem import MAX_RANKS, KernelConfig, option

PROBLEM_PANEL, KERNEL_PANEL, RUN_PANEL, REPORT_PANEL = "Problem", "Kernel configuration", "How to run", "Report"
_DEFAULTS = KernelConfig()


class DtypeName(str, Enum):
    """Element types of A, B and C."""

    FP16 = "fp16"
    BF16 = "bf16"


class BackendName(str, Enum):
    """Platforms."""

    AUTO = "auto"
    NPU = "npu"
    CUDA = "cuda"
    CPU = "cpu"


class TransportName(str, Enum):
    """Ways in which A reaches the peers."""

    AUTO = "auto"
    PUTMEM = "putmem"
    STORE = "store"


class DataName(str, Enum):
    """Kinds of input."""

    NORMAL = "normal"
    INTEGERS = "integers"


_SIZE_ON_CPU = "4096; on cpu 512 if none of --m, --n, --k is given"
_SIZES = {
    "m": "Rows of A on each rank",
    "n": "Columns of B on each rank",
    "k": "Columns of A and rows of B on each rank",
}
_TILES = {
    "block_m": "Rows of a tile of C (elements)",
    "block_n": "Columns of a tile of C (elements)",
    "block_k": "K of one multiplication of tiles (elements)",
    "comm_block_m": "Rows of a tile that is sent (elements)",
    "comm_block_k": "Columns of a tile that is sent (elements)",
    "pvalue": "Tile rows of A that are gathered in one iteration (count)",
    "buffer_num": "Slots of the symmetric buffer, at least 2 (count)",
}


def size(name: str, default: str = _SIZE_ON_CPU) -> Any:
    """The option for one of M, N and K; ``default`` is what its help says."""
    return typer.Option(
        f"--{name}",
        f"-{name.upper()}",  # some versions of torchrun take --m and --n behind the program for their own options
        help=f"{_SIZES[name]} (elements).",
        show_default=default,
        metavar="INT",
        rich_help_panel=PROBLEM_PANEL,
    )


def size_list(name: str, what: str, default: str, panel: str) -> Any:
    """An option for one size or several, for commands that run many problems."""
    return typer.Option(
        f"--{name}",
        f"-{name.upper()}",
        help=f"{what} on each rank: one number or several, such as 1024,4096.",
        show_default=default,
        metavar="LIST",
        rich_help_panel=panel,
    )


def tile(name: str, default: str | None = None) -> Any:
    """The option for a field of ``KernelConfig``; ``default`` is what its help says, else the field's own."""
    shown = default if default is not None else str(getattr(_DEFAULTS, name))
    return typer.Option(
        option(name), help=f"{_TILES[name]}.", show_default=shown, metavar="INT", rich_help_panel=KERNEL_PANEL
    )


M = Annotated[int | None, size("m")]
N = Annotated[int | None, size("n")]
K = Annotated[int | None, size("k")]
Dtype = Annotated[DtypeName, typer.Option(help="Element type of A, B and C.", rich_help_panel=PROBLEM_PANEL)]
Data = Annotated[
    DataName,
    typer.Option(
        help="Inputs: standard normal, or small integers, whose product must be right to the last bit.",
        rich_help_panel=PROBLEM_PANEL,
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="INT", help="Seed of all inputs (a number); ranks and repeats differ.", rich_help_panel=PROBLEM_PANEL
    ),
]

BlockM = Annotated[int | None, tile("block_m")]
BlockN = Annotated[int | None, tile("block_n", f"{_DEFAULTS.block_n}; 128 on Ascend 950")]
BlockK = Annotated[int | None, tile("block_k")]
CommBlockM = Annotated[int | None, tile("comm_block_m")]
CommBlockK = Annotated[int | None, tile("comm_block_k")]
PValue = Annotated[int | None, tile("pvalue")]
BufferNum = Annotated[int | None, tile("buffer_num")]

Transport = Annotated[
    TransportName,
    typer.Option(
        help="How A reaches the peers: one transfer per peer (putmem) or stores of tiles (store). "
        "auto: putmem on Ascend 950, else store.",
        rich_help_panel=KERNEL_PANEL,
    ),
]

Tuned = Annotated[
    bool,
    typer.Option(
        "--tuned",
        help="Take what `ag-gemm tune` found best for this chip, world size, dtype and the nearest shape.",
        rich_help_panel=KERNEL_PANEL,
    ),
]
Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        metavar="FILE",
        show_default="one per user",
        help="File of tuned configurations.",
        rich_help_panel=KERNEL_PANEL,
    ),
]

World = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="INT",
        show_default="all visible devices; 2 on cpu; inside a job of torchrun or Slurm that job's ranks",
        help="Ranks (count), one device each.",
        rich_help_panel=RUN_PANEL,
    ),
]
Backend = Annotated[
    BackendName,
    typer.Option(
        help="Platform. auto: the first of npu, cuda, cpu that is ready; cpu simulates Ascend cores.",
        rich_help_panel=RUN_PANEL,
    ),
]
Devices = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        show_default="the first ones",
        help="Indices of the visible devices to use, one a rank, such as 0,1,4-7.",
        rich_help_panel=RUN_PANEL,
    ),
]
Cores = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="INT",
        show_default="as many as the chip has",
        help="Simulated AI cores of each rank (count; cpu only).",
        rich_help_panel=RUN_PANEL,
    ),
]
Soc = Annotated[
    str | None,
    typer.Option(
        metavar="CHIP",
        show_default=f"the one present; {DEFAULT_SOC} on cpu",
        help="Chip whose memory limits and core counts hold.",
        rich_help_panel=RUN_PANEL,
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="End the run when no rank has made progress for so long (seconds).",
        rich_help_panel=RUN_PANEL,
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show tracebacks and the ranks' logs with errors.", rich_help_panel=RUN_PANEL)
]

JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="PATH",
        show_default="none",
        help="Write the report as JSON to this file, or with - to stdout, and the table to stderr.",
        rich_help_panel=REPORT_PANEL,
    ),
]
JunitPath = Annotated[
    Path | None,
    typer.Option(
        "--junit",
        metavar="PATH",
        show_default="none",
        help="Write the report as JUnit XML to this file, or with - to stdout, and the table to stderr.",
        rich_help_panel=REPORT_PANEL,
    ),
]


def parse_devices(text: str | None) -> tuple[int, ...] | None:
    """``0,1,4-6`` -> ``(0, 1, 4, 5, 6)``. Raises UsageError for anything else and for a device named twice."""
    if text is None:
        return None
    devices: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)) or (dash and int(last) < int(first)):
            raise UsageError(f"'{part.strip()}' is not a device index or a range such as 4-7 (--devices {text})")
        devices += range(int(first), min(int(last if dash else first), MAX_RANKS) + 1)
    for device, count in Counter(devices).items():
        if count > 1:
            raise UsageError(f"device {device} is named twice (--devices {text})")
    return tuple(devices)


def check_timeout(seconds: float) -> None:
    """Refuse a time that can never pass or has passed already."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise UsageError(f"the time must be a positive number of seconds, got {seconds:g} (--timeout)")


def tuned_store(
    tuned: bool, store: Path | None, kernel: Mapping[str, Any], reports: Mapping[str, Path | None]
) -> Path | None:
    """The file of tuned configurations to use, None without ``--tuned``. UsageError for options that contradict it.

    ``reports`` are the files that are written, by option: none of them may take its place.
    """
    if not tuned:
        if store is not None:
            raise UsageError(f"--store {store} is the file of --tuned, which was not given")
        return None
    given = [option(name) for name, value in kernel.items() if value not in (None, "auto")]
    if given:
        raise UsageError(f"--tuned decides the configuration; leave {', '.join(given)} out")
    from agcli.outputs import check_distinct
    from agcli.tuned import check_store, default_store

    path = store if store is not None else default_store()
    check_distinct({**reports, "--store": path})
    check_store(path)
    return path


def kernel_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``KernelConfig`` among a command's parameters; None where the option was not given."""
    names = ("block_m", "block_n", "block_k", "comm_block_m", "comm_block_k", "pvalue", "buffer_num", "transport")
    return {name: getattr(values[name], "value", values[name]) for name in names}
