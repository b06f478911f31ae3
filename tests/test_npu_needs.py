"""What the npu backend finds missing on a machine, without importing any of it."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agcli.backends import npu_needs
from agcli.backends.base import Need
from agcli.backends.npu import NpuBackend
from agcli.chips import CHIPS
from agcli.errors import UsageError


def need(name: str) -> Need:
    return next(n for n in npu_needs.all_needs() if n.name == name)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight NPUs' nodes, and others that are none."""
    for name in [*(f"davinci{n}" for n in range(8)), "davinci_manager", "null"]:
        (tmp_path / name).touch()
    monkeypatch.setattr(npu_needs, "DEVICE_FOLDER", tmp_path)
    monkeypatch.delenv(npu_needs.VISIBLE, raising=False)
    return tmp_path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which packages are looked for, and nowhere else."""

    def find_spec(name: str) -> Any:
        folder = tmp_path / name
        return (
            SimpleNamespace(submodule_search_locations=[str(folder)], origin=str(folder)) if folder.is_dir() else None
        )

    monkeypatch.setattr(npu_needs.importlib.util, "find_spec", find_spec)
    monkeypatch.setattr(npu_needs, "version_of", lambda *names: None)
    return tmp_path


def put(folder: Path, *files: str, text: str = "") -> None:
    for file in files:
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("listed", "visible"),
    [
        (None, tuple(range(8))),
        ("0,1", (0, 1)),
        ("4,6", (4, 6)),
        ("", ()),
        ("1,0", (1,)),
        ("0, 1", (0,)),
        ("0,9", (0,)),
        ("-1", ()),
        ("all", ()),
    ],
)
def test_visible_devices_follow_the_variable(
    devices: Path, monkeypatch: pytest.MonkeyPatch, listed: str | None, visible: tuple[int, ...]
) -> None:
    if listed is not None:
        monkeypatch.setenv(npu_needs.VISIBLE, listed)
    assert npu_needs.visible_devices() == visible
    assert NpuBackend().device_count() == len(visible)
    assert need("devices").ok == bool(visible)
    assert (listed is None) or f"{len(visible)} visible of 8, ASCEND_RT_VISIBLE_DEVICES={listed}" == need(
        "devices"
    ).found


def test_a_container_that_shows_some_npus_counts_them_from_0(devices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (devices / f"davinci{number}").unlink()
    assert npu_needs.visible_devices() == (4, 5, 6, 7)
    monkeypatch.setenv(npu_needs.VISIBLE, "1,3,4")
    assert npu_needs.visible_devices() == (5, 7)


def test_without_nodes_there_is_no_npu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_needs, "DEVICE_FOLDER", tmp_path)
    assert not need("devices").ok
    assert "has no NPU" in need("devices").cure
    assert NpuBackend().device_count() == 0


def test_every_need_comes_with_a_cure_and_none_raises(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    found = npu_needs.all_needs()
    assert [n.name for n in found if not n.ok and not n.cure] == []
    assert [n.name for n in found if n.ok] == ["variables"]

    def broken(name: str) -> Any:
        raise ValueError("a broken installation")

    monkeypatch.setattr(npu_needs.importlib.util, "find_spec", broken)
    assert "ValueError: a broken installation" in need("shmem").found


def test_torch_npu_must_be_of_the_release_of_torch(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert need("torch_npu").found == "not installed"
    put(packages, "torch_npu/__init__.py")
    assert need("torch_npu").ok
    for own, ok in (("2.7.1.post4", True), ("2.7.1", True), ("2.6.0.post5", False), ("2.7.10", False)):
        monkeypatch.setattr(npu_needs, "version_of", lambda *n, own=own: "2.7.1+cpu" if n == ("torch",) else own)
        assert need("torch_npu").ok is ok
        assert need("torch_npu").found == f"{own} with torch 2.7.1+cpu"
        assert "torch-npu==2.7.1 " in need("torch_npu").cure


def test_two_tritons_in_one_environment_are_recognised(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def brought(size: int) -> list[Any]:
        files = [
            importlib.metadata.PackagePath("triton/__init__.py"),
            importlib.metadata.PackagePath("triton/_C/libtriton.so"),
        ]
        for file, nbytes in zip(files, (1, size), strict=True):
            file.size = nbytes
        return files

    put(packages, "triton/__init__.py", "triton/_C/libtriton.so", text="1234")
    assert "without the Ascend backend" in need("triton-ascend").found
    assert "install triton-ascend last" in need("triton-ascend").cure
    put(packages, "triton/backends/ascend/driver.py", "triton/language/extra/cann/__init__.py")
    assert need("triton-ascend").ok
    monkeypatch.setattr(npu_needs.importlib.metadata, "files", lambda name: brought(4))
    assert need("triton-ascend").ok
    monkeypatch.setattr(npu_needs.importlib.metadata, "files", lambda name: brought(99))
    assert "another triton has replaced" in need("triton-ascend").found


def test_the_published_triton_ascend_3_2_0_is_told_apart(packages: Path) -> None:
    put(packages, "triton/backends/ascend/driver.py")
    assert "without triton.language.extra.cann" in need("triton-ascend").found


def test_a_triton_dist_without_putmem_is_said_to_be_one(packages: Path) -> None:
    module = "triton_dist/language/extra/ascend/libaclshmem_device.py"
    put(packages, module, text="def barrier_all():\n    ...\n")
    assert need("triton_dist").ok
    assert "store only" in need("triton_dist").found
    assert NpuBackend().bench_hooks().transports == ("store",)
    put(packages, module, text="def putmem(dest, source, nbytes, pe):\n    ...\n")
    assert "store only" not in need("triton_dist").found
    assert NpuBackend().bench_hooks().transports == ("store", "putmem")


def test_another_package_called_shmem_is_not_taken_for_aclshmem(packages: Path) -> None:
    put(packages, "shmem/__init__.py")
    assert "another package called shmem" in need("shmem").found
    put(packages, "shmem/_pyshmem.cpython-311-aarch64-linux-gnu.so")
    assert need("shmem").ok


@pytest.mark.parametrize(
    ("name", "value", "ok"),
    [
        ("TRITON_ALL_BLOCKS_PARALLEL", "1", False),
        ("TRITON_ALL_BLOCKS_PARALLEL", "0", True),
        ("TRITON_INTERPRET", "1", False),
        ("NPU_SHMEM_SYMMETRIC_SIZE", "1G", False),
    ],
)
def test_variables_that_would_hang_the_kernel_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, ok: bool
) -> None:
    monkeypatch.setenv(name, value)
    assert need("variables").ok is ok
    assert ok or f"{name}={value}" in need("variables").found


def test_the_chip_is_the_one_named_or_present_or_one_with_the_smaller_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    assert npu_needs.chip_in("| 0     910B2C              | OK ") is CHIPS["Ascend910B2C"]
    assert npu_needs.chip_in("Ascend910_9392") is CHIPS["Ascend910_9392"]
    assert npu_needs.chip_in("Ascend950PR_9579") is CHIPS["Ascend950PR_9579"]
    assert npu_needs.chip_in("Ascend910 and nothing more") is None
    monkeypatch.setattr("agcli.backends.npu.present_chip", lambda: CHIPS["Ascend910B1"])
    assert NpuBackend().chip(None) is CHIPS["Ascend910B1"]
    assert NpuBackend().chip("ascend910b4") is CHIPS["Ascend910B4"]
    monkeypatch.setattr("agcli.backends.npu.present_chip", lambda: None)
    assert NpuBackend().chip(None) is CHIPS["Ascend910B3"]
    with pytest.raises(UsageError, match="unknown chip"):
        NpuBackend().chip("Ascend310")
