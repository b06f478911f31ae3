"""What the npu backend needs of a machine, found without importing or initialising any of it.

Paths, package names and version rules: torch_npu's COMPATIBILITY.en.md, triton-ascend's installation guide and driver,
Triton-distributed's ``language/extra/ascend``, shmem's quickstart.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from agcli import children
from agcli.backends.base import Need
from agcli.chips import CHIPS, Chip

VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
DEVICE_FOLDER = Path("/dev")  # the driver makes davinci0, davinci1, ... here
# Variables that break the kernel: their harmless values, and why.
HARMFUL = {
    "TRITON_ALL_BLOCKS_PARALLEL": (
        ("", "0"),
        "it runs programs of the grid one after another, which a barrier never survives",
    ),
    "TRITON_INTERPRET": (("", "0"), "it runs kernels in Triton's interpreter instead of on the NPU"),
    "NPU_SHMEM_SYMMETRIC_SIZE": (("",), "it starts torch_npu's own symmetric memory, a second user of ACLSHMEM"),
}
NPU_SMI_TIMEOUT_S = 10


def all_needs() -> list[Need]:
    """Every need, in the order in which to mend them. Never raises."""
    return [
        _examined("npu-smi", _driver),
        _examined("devices", _devices),
        _examined("CANN", _cann),
        _examined("torch_npu", _torch_npu),
        _examined("triton-ascend", _triton_ascend),
        _examined("triton_dist", _triton_dist),
        _examined("shmem", _shmem),
        _examined("variables", _variables),
    ]


def visible_devices() -> tuple[int, ...]:
    """Driver numbers of the NPUs that a new process sees, in the order in which it counts them from 0.

    A container may show some only, such as davinci4 to davinci7, which it counts from 0 too.
    """
    present = _driver_numbers()
    listed = os.environ.get(VISIBLE)
    if listed is None:
        return tuple(present)
    devices: list[int] = []
    for entry in listed.split(","):
        if not entry.isdigit() or int(entry) >= len(present) or (devices and present[int(entry)] <= devices[-1]):
            break  # the list must ascend without blanks, and ends at the first device that is none
        devices.append(present[int(entry)])
    return tuple(devices)


@functools.cache
def present_chip() -> Chip | None:
    """The chip that ``npu-smi info`` names, None if that cannot be told."""
    tool = shutil.which("npu-smi")
    if tool is None:
        return None
    try:
        ran = children.run([tool, "info"], timeout_s=NPU_SMI_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return chip_in(ran.stdout)


def chip_in(text: str) -> Chip | None:
    """The first known chip named in ``text``, with or without its "Ascend": "910B3", "Ascend910_9392"."""
    for word in re.findall(r"9[15]0[\w-]+", text):
        chip = CHIPS.get(f"Ascend{word}")
        if chip is not None:
            return chip
    return None


def version_of(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _examined(name: str, examine: Callable[[], tuple[bool, str, str]]) -> Need:
    try:
        return Need(name, *examine())
    except Exception as error:
        return Need(name, False, f"could not be examined: {type(error).__name__}: {error}", "see docs/npu.md")


def _driver_numbers() -> list[int]:
    nodes = (re.fullmatch(r"davinci(\d+)", path.name) for path in DEVICE_FOLDER.glob("davinci*"))
    return sorted(int(node[1]) for node in nodes if node)


def _driver() -> tuple[bool, str, str]:
    tool = shutil.which("npu-smi")
    if tool is None:
        return False, "npu-smi is not on PATH", "install the Ascend driver (triton_dist finds its platform by npu-smi)"
    return True, tool, ""


def _devices() -> tuple[bool, str, str]:
    present, visible = len(_driver_numbers()), len(visible_devices())
    listed = os.environ.get(VISIBLE)
    found = f"{visible} visible" + (f" of {present}, {VISIBLE}={listed}" if listed is not None else "")
    if present == 0:
        return False, found, f"no {DEVICE_FOLDER}/davinci*: this host or container has no NPU; pass the devices through"
    if visible == 0:
        return False, found, f"unset {VISIBLE}, or list devices in ascending order without blanks"
    return True, found, ""


def _cann() -> tuple[bool, str, str]:
    home = os.environ.get("ASCEND_HOME_PATH")
    if not home or not Path(home).is_dir():
        found = f"ASCEND_HOME_PATH={home} is no folder" if home else "ASCEND_HOME_PATH is not set"
        return False, found, "install CANN 8.5 or newer, with its ops package, and source its set_env.sh"
    search = os.pathsep.join(filter(None, (os.environ.get("TRITON_NPU_COMPILER_PATH"), os.environ.get("PATH"))))
    absent = [tool for tool in ("bishengir-compile", "bisheng") if shutil.which(tool, path=search) is None]
    if absent:
        return False, f"{home}, without {' and '.join(absent)} on PATH", "source CANN's set_env.sh"
    return True, home, ""


def _torch_npu() -> tuple[bool, str, str]:
    torch, own = version_of("torch"), version_of("torch-npu", "torch_npu")
    wanted = _release(torch)
    cure = f"pip install torch-npu=={wanted} (the version that goes with torch, and with your CANN)"
    if importlib.util.find_spec("torch_npu") is None:
        return False, "not installed", cure
    if own is None:
        return True, "found, version unknown", ""
    return _release(own) == wanted, f"{own} with torch {torch}", cure


def _release(version: str | None) -> str:
    """``2.7.1`` of ``2.7.1.post4`` or ``2.7.1+cpu``."""
    found = re.match(r"\d+(\.\d+){0,2}", version or "")
    return found.group() if found else ""


def _triton_ascend() -> tuple[bool, str, str]:
    again = "uninstall triton and triton-ascend, then install triton-ascend last"
    spec = importlib.util.find_spec("triton")
    if spec is None or not spec.submodule_search_locations:
        return (
            False,
            "not installed",
            "build Triton-distributed's triton-ascend, or install triton-ascend 3.2.1 or newer",
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    version = version_of("triton-ascend", "triton_ascend") or "version unknown"
    if not (folder / "backends" / "ascend").is_dir():
        return False, f"triton {version_of('triton') or ''} without the Ascend backend".replace("  ", " "), again
    if _overwritten(folder):
        return False, f"{version}, whose compiled part another triton has replaced", again
    if not (folder / "language" / "extra" / "cann").is_dir():
        cure = "build triton-ascend as Triton-distributed does (3.2.0 as published cannot run distributed kernels)"
        return False, f"{version} without triton.language.extra.cann", cure
    return True, version, ""


def _overwritten(folder: Path) -> bool:
    """Whether ``libtriton`` is not the file that the triton-ascend distribution brought.

    Both distributions install a package ``triton``; whichever came last wins, file by file.
    """
    try:
        files: Iterable[importlib.metadata.PackagePath] = importlib.metadata.files("triton-ascend") or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    for file in files:
        if re.fullmatch(r"libtriton\b.*\.so", file.name) and file.size is not None:
            actual = folder / "_C" / file.name
            return not actual.is_file() or actual.stat().st_size != file.size
    return False


def _triton_dist() -> tuple[bool, str, str]:
    spec = importlib.util.find_spec("triton_dist")
    if spec is None or not spec.submodule_search_locations:
        return False, "not installed", "build Triton-distributed for Ascend (its docs/build.md)"
    if not offers_putmem():
        return True, "found, without putmem: transport store only", ""
    return True, version_of("triton-dist", "triton_dist") or "found, version unknown", ""


def offers_putmem() -> bool:
    """Whether the triton_dist that is installed can put, as far as its files tell; True where they do not."""
    spec = importlib.util.find_spec("triton_dist")
    if spec is None or not spec.submodule_search_locations:
        return True
    device = Path(next(iter(spec.submodule_search_locations))) / "language/extra/ascend/libaclshmem_device.py"
    return not device.is_file() or bool(re.search(r"^\s*(def )?putmem\b", device.read_text(errors="replace"), re.M))


def _shmem() -> tuple[bool, str, str]:
    cure = "build the wheel of hicann/shmem with -python_extension, from the commit that the compiler was built with"
    spec = importlib.util.find_spec("shmem")
    if spec is None:
        return False, "not installed", cure
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not any(any(folder.glob("_pyshmem*")) for folder in folders):
        return False, f"another package called shmem ({spec.origin})", "uninstall it; " + cure
    return True, version_of("cann-shmem", "cann_shmem", "shmem") or "found, version unknown", ""


def _variables() -> tuple[bool, str, str]:
    for name, (harmless, why) in HARMFUL.items():
        value = os.environ.get(name, harmless[0])
        if value not in harmless:
            return False, f"{name}={value}: {why}", f"unset {name}"
    return True, "none that would do harm", ""
