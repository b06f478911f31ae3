"""The simulator against Triton's own interpreter, on kernels that one can run (no barriers, powers of two)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agcli.simulator.launch import bind, run
from agcli.simulator.machine import Machine
from agcli.simulator.split import SplitKernel
from agcli.simulator.world import SharedWorld

HERE = Path(__file__).parent
pytest.importorskip("triton", reason="the oracle is Triton's interpreter (extra 'test')")
import kernels_plain  # noqa: E402

CASES = kernels_plain.cases()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    path = tmp_path_factory.mktemp("interpreter") / "results.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "kernels_plain.py"), str(path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return torch.load(path)


@pytest.mark.parametrize("name", CASES)
def test_the_same_source_gives_the_same_values(name, expected):
    kernel, programs, arguments = CASES[name]
    world = SharedWorld(0, 1, lambda value: [value])
    split = SplitKernel(kernel)
    run(split, Machine(0, programs, world, world.begin()), bind(split, (), arguments, 0, {}))
    world.end(failed=False)
    for output, value in kernels_plain.outputs(arguments).items():
        torch.testing.assert_close(value, expected[name][output], rtol=2e-3, atol=1e-5)
