"""Installing, finding and removing the compilers: whole or not at all, and a message that helps."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest

from agcli import toolchain
from agcli.errors import EnvironmentFault, Interrupted
from agcli.toolchain import Toolchain


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for the toolchain, and no compilers in this Python."""
    monkeypatch.setenv(toolchain.DIR_VARIABLE, str(tmp_path / "cache" / "toolchain"))
    monkeypatch.setattr(toolchain, "_installed", lambda: None)
    return tmp_path / "cache" / "toolchain"


def left_behind(place: Path) -> list[str]:
    """What is beside the toolchain's place, other than the lock."""
    return [path.name for path in place.parent.iterdir() if not path.name.endswith(".lock")]


def fake_environment(place: Path) -> None:
    """Files that look like an installed environment."""
    bins = place / "env/lib/python3.11/site-packages/ascendnpuir/bin"
    bins.mkdir(parents=True)
    (place / "env/bin").mkdir()
    for file in (bins / "bishengir-compile", place / "env/bin/python"):
        file.write_text("#!/bin/sh\n")
    manifest = {"origin": "private", "python": "elsewhere", "bishengir_bin": "elsewhere"}
    versions = {"triton_ascend": toolchain.TRITON_ASCEND, "ascendnpu_ir": toolchain.ASCENDNPU_IR}
    (place / "toolchain.json").write_text(json.dumps(manifest | versions))


def test_without_compilers_the_message_says_how_to_get_them(place: Path) -> None:
    assert toolchain.find_toolchain() is None
    with pytest.raises(EnvironmentFault, match="run 'ag-gemm toolchain install'") as raised:
        toolchain.require_toolchain()
    assert raised.value.exit_status == 3


def test_an_environment_that_was_moved_is_found_where_it_is(place: Path) -> None:
    fake_environment(place)
    found = toolchain.require_toolchain()
    assert found.python == str(place / "env/bin/python")
    assert found.bishengir(chip_is_950=True).endswith("ascendnpuir/bin/bishengir-compile-a5")


@pytest.mark.parametrize("damage", ["toolchain.json", "env/bin/python"])
def test_a_damaged_environment_is_none(place: Path, damage: str) -> None:
    fake_environment(place)
    (place / damage).unlink()
    assert toolchain.find_toolchain() is None


def test_an_environment_of_other_versions_is_none(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_environment(place)
    monkeypatch.setattr(toolchain, "TRITON_ASCEND", "9.9.9")
    assert toolchain.find_toolchain() is None


def test_a_failed_download_says_so_and_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place.parent))
    with pytest.raises(EnvironmentFault, match="is a package index reachable") as raised:
        toolchain.install()
    assert "triton-ascend" in str(raised.value)
    assert left_behind(place) == []


def test_an_interrupted_installation_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(command: list[str], what: str, stdin: str = "") -> None:
        if "pip" in command:
            raise KeyboardInterrupt

    monkeypatch.setattr(toolchain, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        toolchain.install()
    assert left_behind(place) == []


def test_a_terminated_installation_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(toolchain, "_run", lambda *args: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="stopped by SIGTERM") as stop:
        toolchain.install()
    assert stop.value.signum == signal.SIGTERM
    assert left_behind(place) == []
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_killed_installation_left_goes_with_the_next(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.parent / ".toolchain-ab_cd012/env/bin").mkdir(parents=True)
    (place.parent / ".toolchain-abcd0123").mkdir()
    (place.parent / ".toolchain-abcd0123/thesis.txt").write_text("mine")
    (place.parent / ".toolchain-settings2/env").mkdir(parents=True)
    monkeypatch.setattr(toolchain, "_run", lambda *args: None)
    with pytest.raises(EnvironmentFault, match="brought no compiler"):
        toolchain.install()
    assert sorted(left_behind(place)) == [".toolchain-abcd0123", ".toolchain-settings2"]


def test_a_relative_place_is_found_from_everywhere(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_environment(place)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(toolchain.DIR_VARIABLE, "cache/toolchain")
    found = toolchain.require_toolchain()
    assert (found.python, Path(found.bishengir_bin).is_absolute()) == (str(place / "env/bin/python"), True)


def test_an_occupied_place_is_refused_before_the_download(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("mine")
    monkeypatch.setattr(toolchain, "_run", lambda *args: pytest.fail("nothing should run"))
    with pytest.raises(EnvironmentFault, match="not empty and no toolchain"):
        toolchain.install()


def test_compilers_that_do_not_run_are_not_installed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install_nothing(command: list[str], what: str, stdin: str = "") -> None:
        return None

    monkeypatch.setattr(toolchain, "_run", install_nothing)
    with pytest.raises(EnvironmentFault, match="brought no compiler"):
        toolchain.install()
    assert left_behind(place) == []


def test_a_failing_step_reports_its_last_lines() -> None:
    with pytest.raises(EnvironmentFault, match=r"starting it failed\nthird\nnothing was installed"):
        toolchain._run(["sh", "-c", "echo third >&2; exit 4"], "starting it")


def test_a_second_installation_keeps_the_first(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_environment(place)
    monkeypatch.setattr(toolchain, "_run", lambda *args: pytest.fail("nothing should run"))
    assert toolchain.install().origin == "private"


def test_a_folder_of_someone_else_is_neither_replaced_nor_removed(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("mine")
    with pytest.raises(EnvironmentFault, match="it is left alone"):
        toolchain.remove()
    work = place.parent / "work"
    work.mkdir()
    with pytest.raises(EnvironmentFault, match="not empty and no toolchain"):
        toolchain._replace(work, place)
    assert (place / "thesis.txt").read_text() == "mine"


def test_remove_deletes_the_environment_only(place: Path) -> None:
    assert toolchain.remove() is False
    fake_environment(place)
    assert toolchain.remove() is True
    assert left_behind(place) == []


def test_no_python_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_fits", lambda python: False)
    with pytest.raises(EnvironmentFault, match=r"need Python 3.11 or 3.10 with venv"):
        toolchain.find_python()


def test_an_older_python_on_the_path_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python3.10"
    python.write_text("#!/bin/sh\necho 3.10\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr("sys.version_info", (3, 14, 0, "final", 0))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert toolchain.find_python() == str(python)


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(EnvironmentFault, match="Linux on x86-64 and Arm64"):
        toolchain.install()


def test_hivmc_of_a_cann_installation_is_found_and_put_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert toolchain.find_hivmc() is None
    hivmc = tmp_path / "bin" / "hivmc"
    hivmc.parent.mkdir()
    hivmc.write_text("#!/bin/sh\n")
    hivmc.chmod(0o755)
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert toolchain.find_hivmc() == str(hivmc)
    path = Toolchain("private", "python", "/b", "1", "2", str(hivmc)).environment()["PATH"]
    assert path.split(os.pathsep)[:2] == ["/b", str(hivmc.parent)]
