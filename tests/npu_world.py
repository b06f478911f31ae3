"""A machine with stand-in NPUs: the environment that makes commands and ranks see one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

REPO = Path(__file__).parents[1]
STANDINS = Path(__file__).parent / "standins"
NPU_SMI = """#!/bin/sh
echo '| 0     910B3               | OK            | 93.2        36                0    / 0             |'
"""


class NpuWorld:
    """``npus`` stand-in NPUs; driver and tools lie under ``folder``. ``settings``: see standin_world.py."""

    def __init__(self, folder: Path, npus: int = 2, **settings: Any) -> None:
        self.folder = folder
        self.tools, devices, self.record = folder / "bin", folder / "dev", folder / "record"
        for made in (self.tools, devices, self.record, folder / "cann"):
            made.mkdir(parents=True, exist_ok=True)
        for tool in ("npu-smi", "bishengir-compile", "bisheng"):
            path = self.tools / tool
            path.write_text(NPU_SMI)
            path.chmod(0o755)
        for number in range(npus):
            (devices / f"davinci{number}").touch()
        (devices / "davinci_manager").touch()
        self.variables = {
            "PYTHONPATH": os.pathsep.join([str(STANDINS), str(REPO)]),
            "PATH": os.pathsep.join([str(self.tools), os.environ["PATH"]]),
            "ASCEND_HOME_PATH": str(folder / "cann"),
            "STANDIN_DEVICES": str(devices),
            "STANDINS": json.dumps({"npus": npus, "record": str(self.record)} | settings),
            "TRITON_CACHE_DIR": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a process in this world."""
        return {**os.environ, **self.variables, **more}

    def run(self, *command: str, timeout_s: float = 120, **more: str) -> subprocess.CompletedProcess[str]:
        """``python *command`` in this world; keywords are further variables."""
        return subprocess.run(
            [sys.executable, *command],
            env=self.environment(**more),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def cli(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """``ag-gemm *arguments`` in this world."""
        return self.run("-m", "agcli", *arguments, **more)

    def calls(self, name: str) -> list[dict[str, Any]]:
        """The recorded calls of that name, process by process."""
        lines = [line for file in sorted(self.record.iterdir()) for line in file.read_text().splitlines()]
        return [call for call in map(json.loads, lines) if call["call"] == name]
