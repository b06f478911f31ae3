"""``doctor``: what it finds, what it makes of platforms that fail, and where it must not need anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from agcli import backends, doctor
from agcli.backends import smi
from agcli.backends.base import Need
from agcli.doctor import Diagnosis, Platform
from agcli.main import main

ROOT = Path(__file__).parents[1]
GOOD, BAD = Need("a", True, "1.0"), Need("b", False, "not installed", "install b")


class Fake:
    """A platform with these needs."""

    def __init__(self, *needs: Need | Exception, inventory: Any = None) -> None:
        self._needs = needs
        if inventory is not None:
            self.inventory = inventory

    def needs(self) -> list[Need]:
        for need in self._needs:
            if isinstance(need, Exception):
                raise need
        return [need for need in self._needs if isinstance(need, Need)]


def loader(**platforms: Any) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        found = platforms[name]
        if isinstance(found, Exception):
            raise found
        return found

    return load


def needs_of(diagnosis: Diagnosis, name: str) -> tuple[Need, ...]:
    return next(p.needs for p in diagnosis.platforms if p.name == name)


# -- what it makes of what it finds ------------------------------------------------------------------------------


def test_a_platform_that_raises_is_a_need_not_met_and_harms_no_other() -> None:
    platforms = loader(
        npu=ImportError("libhccl.so: cannot open"), cuda=Fake(RuntimeError("bad driver")), cpu=Fake(GOOD)
    )
    found = doctor.examine(platforms)
    assert "ImportError: libhccl.so: cannot open" in needs_of(found, "npu")[0].found
    assert "RuntimeError: bad driver" in needs_of(found, "cuda")[0].found
    assert (found.ready("cpu"), found.ready("npu"), found.ready("cuda"), found.chosen) == (True, False, False, "cpu")


def test_a_platform_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Fake):
        def needs(self) -> list[Need]:
            time.sleep(30)
            return []

    monkeypatch.setattr(doctor, "PATIENCE_S", 0.2)
    found = doctor.examine(loader(npu=Stuck(), cuda=Fake(BAD), cpu=Fake(GOOD)))
    assert needs_of(found, "npu")[0].found == "none within 0.2 s"
    assert found.chosen == "cpu"


def test_inventory_is_shown_but_never_decides() -> None:
    def broken() -> Any:
        raise OSError("no such tool")

    platforms = loader(
        npu=Fake(GOOD, inventory=lambda: [("links", "HCCS")]), cuda=Fake(GOOD, inventory=broken), cpu=Fake(BAD)
    )
    found = doctor.examine(platforms)
    assert found.platforms[0].inventory == (("links", "HCCS"),)
    assert "no such tool" in found.platforms[1].inventory[0][1]
    assert found.ready("cuda")


@pytest.mark.parametrize(
    ("ready", "name", "status"),
    [("cpu", "auto", 0), ("cpu", "cpu", 0), ("cpu", "npu", 3), ("", "auto", 3), ("npu", "npu", 0), ("npu", "cpu", 3)],
)
def test_one_ready_backend_is_enough_unless_one_is_named(ready: str, name: str, status: int) -> None:
    platforms = tuple(Platform(n, (GOOD if n == ready else BAD,)) for n in backends.NAMES)
    assert Diagnosis((GOOD,), platforms).exit_status(name) == status
    assert Diagnosis((GOOD, BAD), platforms).exit_status(name) == 3  # what the machine lacks, all lack


# -- the machine -------------------------------------------------------------------------------------------------


def install(folder: Path, name: str, version: str, size: int) -> None:
    """A distribution that says it brought triton's compiled part, of this size."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text(f"triton/_C/libtriton.so,sha256=x,{size}\ntriton/__init__.py,sha256=y,1\n")


@pytest.mark.parametrize(("size", "effect"), [(100, "triton is in effect"), (70, "triton-ascend is in effect")])
def test_two_triton_distributions_are_recognised_and_whose_files_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, effect: str
) -> None:
    install(tmp_path, "triton", "3.2.0", 100)
    install(tmp_path, "triton-ascend", "3.2.1", 70)
    (tmp_path / "triton" / "_C").mkdir(parents=True)
    (tmp_path / "triton" / "_C" / "libtriton.so").write_bytes(b"x" * size)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    ok, found, _ = doctor._triton()
    assert (ok, found) == (True, f"triton 3.2.0, triton-ascend 3.2.1: they overwrite each other, {effect}")


def test_two_triton_distributions_of_which_none_is_whole_are_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "triton", "3.2.0", 100)
    install(tmp_path, "triton-ascend", "3.2.1", 70)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    ok, found, cure = doctor._triton()
    assert (ok, "none of them is whole" in found, "install last the one you need" in cure) == (False, True, True)


def test_an_old_torch_and_none_are_faults_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "distribution_version", lambda name: "2.3.1+cu121")
    assert doctor._torch() == (False, "2.3.1+cu121", "install torch 2.4 or newer")
    monkeypatch.setattr(doctor, "distribution_version", lambda name: None)
    assert doctor._torch()[:2] == (False, "not installed")


def test_a_loopback_interface_without_ports_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(99, "Cannot assign requested address")

    monkeypatch.setattr("agcli.doctor.socket.create_server", refuse)
    ok, found, cure = doctor._port()
    assert (ok, "Cannot assign requested address" in found, "ip link set lo up" in cure) == (False, True, True)


def test_an_examination_that_fails_is_reported_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agcli.doctor.os.statvfs", lambda path: 1 / 0)
    needs = {need.name: need for need in doctor._machine()}
    assert "ZeroDivisionError" in needs["/dev/shm"].found
    assert needs["Python"].ok


def test_sizes_and_versions_for_people_and_for_comparing() -> None:
    assert (doctor.gib(64 * 2**20), doctor.gib(3 * 2**29)) == ("64 MiB", "1.5 GiB")
    assert doctor.release("2.13.0+cpu") == (2, 13, 0)
    assert doctor.release("2.9.0.post2") == (2, 9, 0)
    assert doctor.release("unknown") == ()


# -- vendors' tools ----------------------------------------------------------------------------------------------

NPU_INFO = """\
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.0.3                 Version: 24.1.0.3                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.4        49                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          3387 / 65536         |
+===========================+===============+====================================================+
| 1     910B3               | Alarm         | 91.3        50                0    / 0             |
| 0                         | 0000:01:00.0  | 0           0    / 0          3382 / 65536         |
+===========================+===============+====================================================+
"""
NPU_TOPO = """\
           NPU0       NPU1       NPU2       CPU Affinity
NPU0       X          HCCS       PHB        144-167
NPU1       HCCS       X          HCCS       144-167
NPU2       PHB        HCCS       X          96-119

Legend:
  X    = Self
  HCCS = Connection traversing HCCS.
"""
GPU_TOPO = """\
\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tPIX\t0-47\t0
GPU1\tNV18\t X \tSYS\t48-95\t1
NIC0\tPIX\tSYS\t X \t\t
"""


def tool(folder: Path, name: str, answers: dict[str, str]) -> None:
    """A stand-in that prints the answer to its arguments, and fails on others."""
    lines = [f"'{arguments}') cat <<'END'\n{text}END\n;;" for arguments, text in answers.items()]
    path = folder / name
    path.write_text('#!/bin/sh\ncase "$*" in\n' + "\n".join(lines) + "\n*) exit 1;;\nesac\n")
    path.chmod(0o755)


def test_npus_their_memory_and_links_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "npu-smi", {"info": NPU_INFO, "info -t topo": NPU_TOPO})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert smi.npu_inventory() == [
        ("driver tool", "npu-smi 24.1.0.3"),
        ("device 0", "910B3, 3387 of 65536 MB of memory used"),
        ("device 1", "910B3 (health: Alarm), 3382 of 65536 MB of memory used"),
        ("links", "HCCS between 2 pairs, PHB between 1 pairs"),
    ]


def test_gpus_their_memory_and_links_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = "--query-gpu=index,name,memory.used,memory.total,driver_version --format=csv,noheader,nounits"
    rows = "0, NVIDIA H200, 4, 143771, 570.86.15\n1, NVIDIA H200, 12, 143771, 570.86.15\n"
    tool(tmp_path, "nvidia-smi", {query: rows, "topo -m": GPU_TOPO})
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert smi.gpu_inventory() == [
        ("driver", "570.86.15"),
        ("device 0", "NVIDIA H200, 4 of 143771 MB of memory used"),
        ("device 1", "NVIDIA H200, 12 of 143771 MB of memory used"),
        ("links", "NV18 between 1 pairs"),
    ]


@pytest.mark.parametrize("answer", ["", "exit 1", "echo nonsense, all of it", "sleep 30"])
def test_a_tool_that_is_absent_fails_babbles_or_hangs_adds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(smi, "TIMEOUT_S", 0.3)
    if answer:
        for name in ("npu-smi", "nvidia-smi"):
            (tmp_path / name).write_text(
                f"#!/bin/sh\nexec {answer}\n" if answer.startswith("sleep") else f"#!/bin/sh\n{answer}\n"
            )
            (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin{os.pathsep}/usr/bin")
    assert smi.npu_inventory() == smi.gpu_inventory() == []


# -- command lines -----------------------------------------------------------------------------------------------


def test_here_cpu_is_ready_and_npu_is_not_with_each_missing_part_and_its_cure(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.json"
    assert main(["doctor", "--json", str(path)]) == 0
    out = capfd.readouterr().out
    assert "backend cpu: ready" in out
    assert "backend npu: not ready" in out
    data = json.loads(path.read_text())
    found = {b["name"]: b for b in data["backends"]}
    lacks = [need for need in found["npu"]["needs"] if not need["ok"]]
    assert {"CANN", "torch_npu", "triton_dist", "shmem", "devices"} <= {need["name"] for need in lacks}
    for need in lacks:
        line = next(line for line in out.splitlines() if line.startswith(need["name"]) and "missing" in line)
        assert need["cure"]
        assert need["cure"] in line
    assert (data["auto"], found["cpu"]["ready"]) == ("cpu", True)
    torch = next(need for need in data["machine"] if need["name"] == "torch")
    assert torch["found"] == metadata.version("torch")


def test_a_named_backend_decides(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--backend", "npu"]) == 3
    assert main(["doctor", "--backend", "cpu", "--json", "-"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out[out.index("{") :])["schema"] == "ag-gemm-doctor/1"
    assert "backend cpu: ready" in err


def closure(*names: str) -> set[str]:
    """These installed distributions and all that they depend on."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found and doctor.distribution_version(name) is not None:
            found.add(name)
            waiting += [
                re.split(r"[^\w.-]", need)[0] for need in metadata.requires(name) or () if "extra ==" not in need
            ]
    return found


def linked(folder: Path, names: set[str]) -> Path:
    """A site folder with only these of the installed distributions."""
    folder.mkdir()
    for name in names:
        for top in {file.parts[0] for file in metadata.files(name) or ()} - {"..", "__pycache__"}:
            (folder / top).symlink_to(Path(str(metadata.distribution(name).locate_file(top))))
    return folder


HEAVY = "print(sorted({'torch', 'torch_npu', 'numpy', 'greenlet'} & sys.modules.keys()), status)"


def test_it_works_where_only_the_command_line_is_installed(tmp_path: Path) -> None:
    site = linked(tmp_path / "site", closure("typer", "rich"))
    start = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(site)!r}]; exec(sys.argv[1])"
    code = f"from agcli.main import main; status = main(['doctor']); {HEAVY}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", start, code], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "[] 3"
    torch = next(line for line in done.stdout.splitlines() if line.startswith("torch "))
    assert torch.split()[1:4] == ["missing", "not", "installed"]
    assert "please report it" not in done.stdout


def test_it_imports_nothing_heavy_where_all_is_installed() -> None:
    code = f"import sys; from agcli.main import main; status = main(['doctor']); {HEAVY}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"
