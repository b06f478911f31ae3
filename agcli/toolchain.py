"""The vendor's compilers in an environment of their own.

triton-ascend installs as ``triton`` and so cannot share an environment with the upstream triton that torch may bring;
``agcli toolchain install`` therefore makes a private virtual environment in the user's cache folder (or in
``AGCLI_TOOLCHAIN_DIR``). It is built beside its place and moved there when it works, so that it is whole or absent.
An installed triton-ascend of the pinned version is used instead where this Python has one, and ``hivmc`` of a CANN
installation, where there is one, takes compilation on to the object file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from agcli import children, stops
from agcli.errors import EnvironmentFault

TRITON_ASCEND, ASCENDNPU_IR = "3.2.0", "1.2.0"
# triton-ascend declares no dependencies; it needs pybind11 to be imported.
REQUIREMENTS = (f"triton-ascend=={TRITON_ASCEND}", f"ascendnpu-ir=={ASCENDNPU_IR}", "pybind11>=2.13,<4")
PYTHONS = ((3, 11), (3, 10))  # triton-ascend 3.2.0 has wheels for 3.9 to 3.11, ascendnpu-ir 1.2.0 wants 3.10 or newer
DIR_VARIABLE = "AGCLI_TOOLCHAIN_DIR"
DRIVER = Path(__file__).parent / "compiler" / "driver.py"
_MANIFEST = "toolchain.json"
INSTALL_TIMEOUT_S = 1800
PROBE_TIMEOUT_S = 120


@dataclass(frozen=True)
class Toolchain:
    """Where the compilers are. ``origin`` is ``private`` or ``installed`` (this Python has triton-ascend)."""

    origin: str
    python: str
    bishengir_bin: str
    triton_ascend: str
    ascendnpu_ir: str
    hivmc: str | None = None

    def bishengir(self, chip_is_950: bool) -> str:
        """The compiler for a chip: Ascend 950 has one of its own."""
        return str(Path(self.bishengir_bin) / ("bishengir-compile-a5" if chip_is_950 else "bishengir-compile"))

    def printer(self, chip_is_950: bool) -> str:
        """The tool that prints a module of that compiler in generic form."""
        return str(Path(self.bishengir_bin) / ("bishengir-opt-a5" if chip_is_950 else "bishengir-opt"))

    def environment(self) -> dict[str, str]:
        """The environment in which the compilers find each other, and hivmc."""
        folders = [self.bishengir_bin, *([str(Path(self.hivmc).parent)] if self.hivmc else [])]
        return {**os.environ, "PATH": os.pathsep.join([*folders, os.environ.get("PATH", "")])}


def toolchain_dir() -> Path:
    """Where the private environment is or would be."""
    if override := os.environ.get(DIR_VARIABLE):
        return Path(override).absolute()  # the compilers run in folders of their own
    from platformdirs import user_cache_path

    return user_cache_path("ag-gemm") / "toolchain"


def find_toolchain() -> Toolchain | None:
    """The compilers that would be used now: the private environment's, else this Python's own; None without either."""
    return _private(toolchain_dir()) or _installed()


def require_toolchain() -> Toolchain:
    """The compilers. Raises EnvironmentFault saying how to get them."""
    toolchain = find_toolchain()
    if toolchain is None:
        raise EnvironmentFault(
            f"the Ascend compilers are not installed (looked in {toolchain_dir()} and in this Python); "
            "run 'ag-gemm toolchain install'"
        )
    return toolchain


def install(on_step: Callable[[str], None] = lambda text: None, force: bool = False) -> Toolchain:
    """Make the private environment, or return the one that is there.

    Raises EnvironmentFault, leaving no part of an environment behind, when no Python fits, the packages cannot be had
    or what was installed does not run.
    """
    _check_platform()
    place = toolchain_dir()
    with _locked(place), stops.handled():
        if not force and (found := _private(place)) is not None:
            return found
        _check_place(place)
        _remove_leftovers(place)
        python = find_python()
        work = _temporary_beside(place)
        try:
            on_step(f"making a virtual environment with {python}")
            _run([python, "-m", "venv", str(work / "env")], "making the virtual environment")
            on_step(f"downloading {', '.join(REQUIREMENTS)} (about 220 MB)")
            pip = [str(work / "env" / "bin" / "python"), "-m", "pip", "install", "--no-input", "--quiet"]
            _run([*pip, "--disable-pip-version-check", *REQUIREMENTS], "installing the packages")
            on_step("checking that the compilers run")
            toolchain = _describe(work)
            _check(toolchain)
            (work / _MANIFEST).write_text(json.dumps(asdict(toolchain), indent=1), encoding="utf-8")
            _replace(work, place)
        except OSError as error:
            raise EnvironmentFault(f"the toolchain could not be installed in {place}: {error}") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
    found = _private(place)
    if found is None:
        raise EnvironmentFault(f"the toolchain vanished from {place} while it was being installed")
    return found


def remove() -> bool:
    """Delete the private environment. False if there was none. Raises EnvironmentFault for a folder that is not one."""
    place = toolchain_dir()
    if not place.exists():
        return False
    if not (place / _MANIFEST).is_file():
        raise EnvironmentFault(f"{place} was not made by 'ag-gemm toolchain install'; it is left alone")
    with _locked(place):
        doomed = _temporary_beside(place)
        place.rename(doomed / "toolchain")
        shutil.rmtree(doomed)
    return True


def find_python() -> str:
    """A Python that both packages accept: this one if it fits, else one from PATH. Raises EnvironmentFault."""
    if sys.version_info[:2] in PYTHONS and _fits(sys.executable):
        return sys.executable
    for major, minor in PYTHONS:
        candidate = shutil.which(f"python{major}.{minor}")
        if candidate and _fits(candidate):
            return candidate
    wanted = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
    raise EnvironmentFault(
        f"the Ascend compilers need Python {wanted} with venv, and this is {platform.python_version()}; none of them "
        "is on PATH: install one (on Debian, with its python3.N-venv package)"
    )


def _fits(python: str) -> bool:
    """Whether ``python`` starts, has one of the versions and can make virtual environments."""
    code = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    try:
        run = children.run([python, "-c", code], timeout_s=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0 and run.stdout.strip() in [f"{major}.{minor}" for major, minor in PYTHONS]


def _check_platform() -> None:
    machine = platform.machine().lower()
    if sys.platform != "linux" or machine not in ("x86_64", "aarch64", "arm64"):
        here = f"{sys.platform} {machine}"
        raise EnvironmentFault(f"the Ascend compilers exist for Linux on x86-64 and Arm64, not for {here}")


def _private(place: Path) -> Toolchain | None:
    """The environment in ``place`` if it is whole and of the pinned versions."""
    try:
        toolchain = Toolchain(**json.loads((place / _MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    if (toolchain.triton_ascend, toolchain.ascendnpu_ir) != (TRITON_ASCEND, ASCENDNPU_IR):
        return None
    toolchain = _describe(place, toolchain)
    return toolchain if Path(toolchain.python).exists() and Path(toolchain.bishengir(False)).is_file() else None


def _describe(place: Path, known: Toolchain | None = None) -> Toolchain:
    """The toolchain in ``place``, whose paths are those of now: the environment is moved after it is built."""
    bins = list(place.glob("env/lib/python3.*/site-packages/ascendnpuir/bin"))
    if not bins:
        raise EnvironmentFault(f"ascendnpu-ir {ASCENDNPU_IR} brought no compiler to {place}")
    versions = (known.triton_ascend, known.ascendnpu_ir) if known else (TRITON_ASCEND, ASCENDNPU_IR)
    return Toolchain("private", str(place / "env" / "bin" / "python"), str(bins[0]), *versions, find_hivmc())


def _installed() -> Toolchain | None:
    """This Python's own triton-ascend, if it is the pinned version and AscendNPU-IR's compiler is there too."""
    try:
        triton_ascend = metadata.version("triton-ascend")
        ascendnpu_ir = metadata.version("ascendnpu-ir")
        folder = Path(str(metadata.distribution("ascendnpu-ir").locate_file("ascendnpuir"))) / "bin"
    except metadata.PackageNotFoundError:
        return None
    if (triton_ascend, ascendnpu_ir) != (TRITON_ASCEND, ASCENDNPU_IR) or not (folder / "bishengir-compile").is_file():
        return None
    return Toolchain("installed", sys.executable, str(folder), triton_ascend, ascendnpu_ir, find_hivmc())


def find_hivmc() -> str | None:
    """CANN's last compiler, on PATH or in the installation that ``ASCEND_HOME_PATH`` names."""
    home = os.environ.get("ASCEND_HOME_PATH")
    folders = [str(Path(home) / part) for part in ("bin", "tools/bishengir/bin", "compiler/bin")] if home else []
    return shutil.which("hivmc") or shutil.which("hivmc", path=os.pathsep.join(folders))


def _check(toolchain: Toolchain) -> None:
    """Start both compilers. Raises EnvironmentFault with what they said."""
    probe = [toolchain.python, "-I", str(DRIVER)]
    _run(probe, "importing triton-ascend", stdin='{"probe": true}')
    _run([toolchain.bishengir(False), "--version"], "starting bishengir-compile")


def _run(command: list[str], what: str, stdin: str = "") -> None:
    """Run a step of the installation. Raises EnvironmentFault with its last lines."""
    timeout_s = INSTALL_TIMEOUT_S if "pip" in command else PROBE_TIMEOUT_S
    try:
        with tempfile.TemporaryDirectory(prefix="ag-gemm-toolchain-") as scratch:  # pip leaves some when it is killed
            run = children.run(command, timeout_s=timeout_s, stdin=stdin, env={**os.environ, "TMPDIR": scratch})
    except subprocess.TimeoutExpired as error:
        raise EnvironmentFault(f"{what} took more than {timeout_s} s; nothing was installed") from error
    if run.returncode == 0:
        return
    output = (run.stderr.strip() or run.stdout.strip()).splitlines()
    lines = [line for line in output if not line.startswith("WARNING")] or output
    signs = ("NewConnectionError", "No matching distribution", "Temporary failure")
    network = any(sign in run.stderr for sign in signs)
    advice = "; is a package index reachable from here (pip config list)?" if network else ""
    raise EnvironmentFault(f"{what} failed{advice}\n" + "\n".join(lines[-6:]) + "\nnothing was installed")


def _check_place(place: Path) -> None:
    """Raise EnvironmentFault if something other than a toolchain is there."""
    if place.exists() and not (place / _MANIFEST).is_file() and not (place.is_dir() and not any(place.iterdir())):
        raise EnvironmentFault(f"{place} is not empty and no toolchain; remove it or set {DIR_VARIABLE}")


def _remove_leftovers(place: Path) -> None:
    """Delete what installations left that were killed; the lock says that none is at work."""
    pattern = re.compile(rf"\.{re.escape(place.name)}-[a-z0-9_]{{8}}")  # mkdtemp's names
    for folder in place.parent.iterdir():
        if pattern.fullmatch(folder.name) and {path.name for path in folder.iterdir()} <= {
            "env",
            "toolchain",
            _MANIFEST,
        }:
            shutil.rmtree(folder, ignore_errors=True)


def _temporary_beside(place: Path) -> Path:
    """An empty folder on the same file system as ``place``, so that moving it there is one step."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {place.parent}: {error} (set {DIR_VARIABLE})") from error


def _replace(work: Path, place: Path) -> None:
    """Put ``work`` where ``place`` is, moving an older environment out of the way first."""
    _check_place(place)
    if place.exists():
        old = _temporary_beside(place)
        place.rename(old / "toolchain")
        work.rename(place)
        shutil.rmtree(old, ignore_errors=True)
    else:
        work.rename(place)


@contextlib.contextmanager
def _locked(place: Path) -> Iterator[None]:
    """Keep two installations of one user apart."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = (place.parent / f".{place.name}.lock").open("w")
    except OSError as error:
        raise EnvironmentFault(f"cannot write to {place.parent}: {error} (set {DIR_VARIABLE})") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
