"""Devices, their memory and their links as the vendors' tools (``npu-smi``, ``nvidia-smi``) print them, for ``doctor``.

Starts no device. What a tool does not say, or says in an unknown form, is left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from agcli import children

TIMEOUT_S = 2.0  # of each tool; both questions are asked at the same time

Inventory = list[tuple[str, str]]
"""Names and values, in the order in which to show them."""


def npu_inventory() -> Inventory:
    """Driver version, NPUs and links, by ``npu-smi``."""
    info, topo = _ask(["npu-smi", "info"], ["npu-smi", "info", "-t", "topo"])
    version = re.search(r"npu-smi (\S+)", info)
    found = [("driver tool", f"npu-smi {version.group(1)}")] if version else []
    return found + _devices(parse_npu_info(info)) + _links(topo)


def gpu_inventory() -> Inventory:
    """Driver version, GPUs and links, by ``nvidia-smi``."""
    query = [
        "nvidia-smi",
        "--query-gpu=index,name,memory.used,memory.total,driver_version",
        "--format=csv,noheader,nounits",
    ]
    info, topo = _ask(query, ["nvidia-smi", "topo", "-m"])
    rows = [[cell.strip() for cell in line.split(",")] for line in info.splitlines() if line.count(",") == 4]
    found = [("driver", rows[0][4])] if rows else []
    return found + _devices([(index, name, used, total) for index, name, used, total, _ in rows]) + _links(topo)


def parse_npu_info(text: str) -> list[tuple[str, str, str, str]]:
    """Index, name and health, used and total MB of each NPU in the table of ``npu-smi info``.

    A device takes two lines; the last ``used / total`` of the second is its HBM::

        | 0     910B3               | OK            | 91.4        49                0    / 0             |
        | 0                         | 0000:C1:00.0  | 0           0    / 0          3387 / 65536         |
    """
    devices = []
    lines = text.splitlines()
    for line, below in pairwise(lines):
        first = re.match(r"\|\s*(\d+)\s+(\S+)\s*\|\s*([A-Za-z]+)\s*\|", line)
        memory = re.findall(r"(\d+)\s*/\s*(\d+)", below)
        if first and memory:
            index, name, health = first.groups()
            devices.append((index, name if health == "OK" else f"{name} (health: {health})", *memory[-1]))
    return devices


def parse_links(text: str) -> Counter[str]:
    """How many pairs of devices each kind of link joins, in the matrix of ``topo``; one way of each pair is counted::

          NPU0       NPU1       CPU Affinity
    NPU0       X          HCCS       0-23
    NPU1       HCCS       X          0-23
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    rows = [
        line.split()[1:]
        for line in text.splitlines()
        if re.match(r"\s*(NPU|GPU)\d+\s+\S+", line) and "X" in line.split()
    ]
    return Counter(row[j] for i, row in enumerate(rows) for j in range(i + 1, len(rows)) if j < len(row))


def _devices(devices: list[tuple[str, str, str, str]]) -> Inventory:
    return [(f"device {i}", f"{name}, {used} of {total} MB of memory used") for i, name, used, total in devices]


def _links(text: str) -> Inventory:
    kinds = parse_links(text)
    return (
        [("links", ", ".join(f"{kind} between {count} pairs" for kind, count in kinds.most_common()))] if kinds else []
    )


def _ask(*commands: list[str]) -> list[str]:
    """What each command prints; nothing if it is absent, fails or takes too long."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(_output, commands))


def _output(command: list[str]) -> str:
    if shutil.which(command[0]) is None:
        return ""
    try:
        ran = children.run(command, timeout_s=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ran.stdout if ran.returncode == 0 else ""
