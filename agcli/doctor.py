"""What this machine can run, what is missing, and the cure. Standard library only; imports nothing that it judges.

Each platform says itself what it needs (``Backend.needs``) and may add what it knows of its devices
(``Backend.inventory() -> list[tuple[str, str]]``, optional). Whatever raises, or does not answer in time, becomes a
need that is not met: a doctor who falls ill helps nobody.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from agcli import __version__, backends
from agcli.backends.base import Backend, Need
from agcli.errors import EnvironmentFault
from agcli.host import usable_cores

SCHEMA = "ag-gemm-doctor/1"
PATIENCE_S = 2.2  # for all platforms together; they are asked at the same time
LEAST_PYTHON, LEAST_TORCH = (3, 10), (2, 4)
SMALL_SHM_BYTES = 256 * 2**20  # containers get 64 MiB unless told otherwise
# Distributions that install a package called triton; two of them overwrite each other, file by file.
TRITONS = ("triton", "triton-ascend", "pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu", "triton-nightly")

T = TypeVar("T")


@dataclass(frozen=True)
class Platform:
    """One backend's findings."""

    name: str
    needs: tuple[Need, ...]
    inventory: tuple[tuple[str, str], ...] = ()

    @property
    def ready(self) -> bool:
        """Whether nothing is missing."""
        return all(need.ok for need in self.needs)


@dataclass(frozen=True)
class Diagnosis:
    """All that was found: ``machine`` concerns every backend."""

    machine: tuple[Need, ...]
    platforms: tuple[Platform, ...]

    def ready(self, name: str) -> bool:
        """Whether the backend called ``name`` can run, or with ``auto`` any."""
        if not all(need.ok for need in self.machine):
            return False
        return any(p.ready for p in self.platforms if name in ("auto", p.name))

    @property
    def chosen(self) -> str | None:
        """The backend that ``auto`` means here."""
        return next((p.name for p in self.platforms if self.ready(p.name)), None)

    def exit_status(self, name: str) -> int:
        """0 if ``name`` is ready, else the status of an environment that is not as it must be."""
        return 0 if self.ready(name) else EnvironmentFault.exit_status

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        platforms = [
            {"name": p.name, "ready": self.ready(p.name), "needs": [asdict(n) for n in p.needs]}
            | {"inventory": dict(p.inventory)}
            for p in self.platforms
        ]
        machine = [asdict(need) for need in self.machine]
        return {"schema": SCHEMA, "tool": __version__, "auto": self.chosen, "machine": machine, "backends": platforms}


def examine(load: Callable[[str], Backend] = backends.load_backend) -> Diagnosis:
    """Look at everything, in the order in which ``auto`` chooses. Never raises."""
    found = _at_once({name: functools.partial(_platform, name, load) for name in backends.NAMES})
    late = Need(
        "answer", False, f"none within {PATIENCE_S:g} s", "is a driver or its tool (npu-smi, nvidia-smi) stuck?"
    )
    platforms = (found.get(name) or Platform(name, (late,)) for name in backends.NAMES)
    return Diagnosis(tuple(_machine()), tuple(platforms))


def _platform(name: str, load: Callable[[str], Backend]) -> Platform:
    try:
        backend = load(name)
        needs = tuple(backend.needs())
    except Exception as error:
        return Platform(name, (_ill("examination", error),))
    inventory: tuple[tuple[str, str], ...] = ()
    try:
        ask = getattr(backend, "inventory", None)
        inventory = tuple(ask()) if ask is not None else ()
    except Exception as error:
        inventory = (("inventory", f"could not be taken: {type(error).__name__}: {error}"),)
    return Platform(name, needs, inventory)


def _at_once(calls: Mapping[str, Callable[[], T]]) -> dict[str, T]:
    """The values of all calls that return within ``PATIENCE_S``; none may raise. Others are left to themselves."""
    values: dict[str, T] = {}
    threads = [threading.Thread(target=lambda n=n, c=c: values.update({n: c()}), daemon=True) for n, c in calls.items()]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return dict(values)


def _ill(name: str, error: Exception) -> Need:
    return Need(name, False, f"failed: {type(error).__name__}: {error}", "this is a fault of ag-gemm: please report it")


# -- the machine -------------------------------------------------------------------------------------------------


def _machine() -> list[Need]:
    """What every platform needs or is bound by."""
    needs = []
    for name, examination in (
        ("system", _system),
        ("Python", _python),
        ("torch", _torch),
        ("Triton", _triton),
        ("cores", _cores),
        ("memory", _memory),
        ("/dev/shm", _shm),
        ("free port", _port),
    ):
        try:
            needs.append(Need(name, *examination()))
        except Exception as error:
            needs.append(_ill(name, error))
    return needs


Finding = tuple[bool, str, str]
"""Whether it is as it must be, what was found, and the cure."""


def _system() -> Finding:
    return True, f"{platform.system()} {platform.release()}, {platform.machine()}", ""


def _python() -> Finding:
    wanted = ".".join(map(str, LEAST_PYTHON))
    return sys.version_info >= LEAST_PYTHON, platform.python_version(), f"use Python {wanted} or newer"


def _torch() -> Finding:
    version = distribution_version("torch")
    if version is None:
        return False, "not installed", "pip install torch (for an NPU the version that torch-npu asks for)"
    return release(version) >= LEAST_TORCH, version, f"install torch {'.'.join(map(str, LEAST_TORCH))} or newer"


def _triton() -> Finding:
    found = {name: version for name in TRITONS if (version := distribution_version(name)) is not None}
    text = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) < 2:
        return True, text or "none (cpu needs none)", ""
    owner = triton_in_effect(list(found))
    effect = f"{owner} is in effect" if owner else "none of them is whole"
    cure = "keep one; or uninstall both and install last the one you need (npu: triton-ascend, cuda: triton)"
    return owner is not None, f"{text}: they overwrite each other, {effect}", cure


def _cores() -> Finding:
    return True, f"{usable_cores()} usable of {os.cpu_count()}", ""


def _memory() -> Finding:
    sizes = dict(re.findall(r"(MemTotal|MemAvailable):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    available, total = (gib(int(sizes[name]) * 1024) for name in ("MemAvailable", "MemTotal"))
    return True, f"{available} available of {total}", ""


def _shm() -> Finding:
    if not os.path.isdir("/dev/shm"):
        return True, "absent: simulated ranks share memory through the temporary directory", ""
    stat = os.statvfs("/dev/shm")
    size, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
    small = "" if free >= SMALL_SHM_BYTES else "; larger problems share memory elsewhere (docker run --shm-size=8g)"
    return True, f"{gib(free)} free of {gib(size)}{small}", ""


def _port() -> Finding:
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            return True, f"127.0.0.1:{server.getsockname()[1]} could be taken", ""
    except OSError as error:
        return (
            False,
            f"none on 127.0.0.1: {error}",
            "ranks meet on the loopback interface: bring it up (ip link set lo up)",
        )


# -- helpers -----------------------------------------------------------------------------------------------------


def gib(size: int) -> str:
    """``size`` bytes for people: "1.5 GiB", "64 MiB"."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, ...]:
    """``"2.13.0+cpu"`` as (2, 13, 0)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found.group().split("."))) if found else ()


def triton_in_effect(names: list[str]) -> str | None:
    """Which of these distributions brought the compiled part of ``triton`` that is on disk, None if none did.

    Two distributions list the same file; the sizes in their records tell whose it is now.
    """
    for name in names:
        compiled = [
            f for f in importlib.metadata.files(name) or () if re.search(r"triton/_C/libtriton\b.*\.so$", str(f))
        ]
        for file in compiled:
            path = Path(str(file.locate()))
            if path.is_file() and (file.size is None or path.stat().st_size == file.size):
                return name
    return None
