"""The package: what is built installs and runs without the source, and declares all that it imports."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email.parser import Parser
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from pathlib import Path

import pytest

import agcli

ROOT = Path(__file__).parent.parent
FOR_A_BUILD = ("agcli", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "MANIFEST.in")
# Imported inside functions, where the platform that needs it, or the option, has it.
OF_A_PLATFORM = {"torch_npu", "shmem", "triton", "triton_dist"}
FOR_TYPES = {"typing_extensions"}  # read by type checkers only


def run(*args: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command away from the source; it must end with 0."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    ran = subprocess.run(args, cwd=cwd, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran


def has_setuptools() -> bool:
    """Whether it is here, as new as pyproject.toml asks."""
    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the sdist, built from a copy of the source, and the wheel, built from the sdist."""
    pytest.importorskip("build", reason="python -m build is not installed (pip install build)")
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in FOR_A_BUILD:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source / name)
    isolation = ["--no-isolation"] if has_setuptools() else []  # else it is downloaded
    run(sys.executable, "-m", "build", *isolation, "--outdir", folder, cwd=source)
    return folder


@pytest.fixture(scope="module")
def environment(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new virtual environment with the wheel, which takes dependencies, and nothing else, from this one."""
    folder = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=dist)
    python = folder / "bin" / "python"
    (wheel,) = dist.glob("*.whl")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=dist)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # behind the wheel on the path
    return folder


def test_the_wheel_runs_without_the_source(environment: Path, tmp_path: Path) -> None:
    where = run(environment / "bin" / "python", "-c", "import agcli; print(agcli.__file__)", cwd=tmp_path).stdout
    assert Path(where).is_relative_to(environment)
    program = environment / "bin" / "ag-gemm"
    assert run(program, "--version", cwd=tmp_path).stdout == f"ag-gemm {agcli.__version__}\n"
    sizes = ("--world", "2", "--m", "64", "--n", "64", "--k", "64")
    ran = run(program, "verify", "--backend", "cpu", *sizes, cwd=tmp_path)
    assert "2 of 2 ranks passed" in ran.stdout


def test_the_shell_can_complete_commands_and_options(environment: Path, tmp_path: Path) -> None:
    program = environment / "bin" / "ag-gemm"
    for words, completed in (("ag-gemm ver", "verify\n"), ("ag-gemm verify --tu", "--tuned\n")):
        asked = {"_AG_GEMM_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        assert run(program, cwd=tmp_path, **asked).stdout == completed


def test_the_wheel_holds_every_file_and_the_licence(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    source = {path.relative_to(ROOT).as_posix() for path in (ROOT / "agcli").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == source
    assert "agcli/py.typed" in names
    assert any(name.endswith("dist-info/licenses/LICENSE") for name in names)
    assert wheel.name == f"ag_gemm-{agcli.__version__}-py3-none-any.whl"


def test_the_sdist_holds_what_a_build_needs(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "agcli/py.typed"} <= names


def test_what_is_imported_is_declared(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        metadata = Parser().parsestr(archive.read(name).decode())
    declared = {_plain(re.split(r"[^\w.-]", text)[0]) for text in metadata.get_all("Requires-Dist") or ()}
    brought_by = packages_distributions()
    for module in imported(ROOT / "agcli") - set(sys.stdlib_module_names) - OF_A_PLATFORM - FOR_TYPES - {"agcli"}:
        assert declared & {_plain(distribution) for distribution in brought_by.get(module, [module])}, module


def imported(folder: Path) -> set[str]:
    """First names of all modules that the files of ``folder`` import by statement."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found


def test_there_is_one_version_and_it_has_changes() -> None:
    assert f"\n## {agcli.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def _plain(name: str) -> str:
    """A distribution's name as the index compares them."""
    return re.sub(r"[-_.]+", "-", name).lower()
