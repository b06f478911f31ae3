"""The compilers, installed once for all tests, and kernels made from the real one by changing a line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agcli import toolchain as toolchains
from agcli.compiler.compile import KernelSource
from agcli.errors import EnvironmentFault
from agcli.toolchain import Toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The compilers. Skips where they cannot be had, but never in CI."""
    try:
        return toolchains.find_toolchain() or toolchains.install()
    except EnvironmentFault as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no Ascend compilers, and they cannot be installed here: {error}")


@pytest.fixture
def changed_kernel(tmp_path: Path) -> Callable[[str, str], KernelSource]:
    """A copy of the kernel in which ``old`` (there once) reads ``new``."""

    def make(old: str, new: str) -> KernelSource:
        source = Path(KernelSource().file).read_text(encoding="utf-8")
        assert source.count(old) == 1, old
        path = tmp_path / "changed.py"
        path.write_text(source.replace(old, new), encoding="utf-8")
        return KernelSource(str(path), KernelSource().name)

    return make
