"""Choosing a platform: the first ready one, or an error that lists what is missing and the cure."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from agcli import backends
from agcli.backends.base import Need
from agcli.errors import EnvironmentFault, UsageError


class Fake:
    """A platform with ``devices`` devices that lacks what ``lacks`` names."""

    def __init__(self, name: str, devices: int = 1, lacks: tuple[str, ...] = ()) -> None:
        self.name, self.devices, self.lacks = name, devices, lacks

    def needs(self) -> list[Need]:
        return [
            Need(
                "driver",
                "driver" not in self.lacks,
                "version 1" if "driver" not in self.lacks else "none",
                "install it",
            ),
            Need("devices", self.devices > 0, f"{self.devices} visible, SHOWN=0,1"),
        ]

    def device_count(self) -> int:
        return self.devices


def pretend(monkeypatch: pytest.MonkeyPatch, **platforms: Fake) -> None:
    known = {name: platforms.get(name, Fake(name, devices=0)) for name in backends.NAMES}
    monkeypatch.setattr(backends, "load_backend", lambda name: known[name])


def test_importing_the_package_and_loading_every_backend_loads_no_torch() -> None:
    code = (
        "import sys; from agcli import backends; a = 'torch' in sys.modules\n"
        "for name in backends.NAMES: backends.load_backend(name).needs()\n"
        "print(a, 'torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_auto_is_the_first_ready_of_npu_cuda_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.NAMES == ("npu", "cuda", "cpu")
    pretend(monkeypatch, cuda=Fake("cuda"), cpu=Fake("cpu"))
    assert backends.get_backend("auto").name == "cuda"
    pretend(monkeypatch, npu=Fake("npu"), cuda=Fake("cuda"), cpu=Fake("cpu"))
    assert backends.get_backend("auto").name == "npu"


def test_devices_that_are_there_but_not_used_are_not_passed_over_in_silence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pretend(monkeypatch, npu=Fake("npu", 8, lacks=("driver",)), cpu=Fake("cpu"))
    with caplog.at_level(logging.WARNING):
        assert backends.get_backend("auto").name == "cpu"
    assert "npu devices are present but not used: driver" in caplog.text


def test_a_named_backend_that_is_not_ready_lists_what_is_missing_and_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 21: never a pass elsewhere."""
    pretend(monkeypatch, npu=Fake("npu", 0, lacks=("driver",)), cpu=Fake("cpu"))
    with pytest.raises(EnvironmentFault) as caught:
        backends.get_backend("npu")
    assert str(caught.value) == "backend npu is not ready:\n  driver: none. install it\n  devices: 0 visible, SHOWN=0,1"
    assert caught.value.exit_status == 3


def test_when_none_is_ready_every_backend_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    with pytest.raises(EnvironmentFault, match=r"no backend is ready(.|\n)*npu:(.|\n)*cuda:(.|\n)*cpu:"):
        backends.get_backend()


def test_an_unknown_name_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match="auto, npu, cuda or cpu, got 'tpu'"):
        backends.get_backend("tpu")


def test_more_ranks_than_devices_names_both_numbers_and_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 21."""
    fake: Any = Fake("npu", 2)
    backends.require_devices(fake, 2)
    with pytest.raises(EnvironmentFault, match="4 npu devices wanted, 2 visible, SHOWN=0,1; ask for fewer ranks"):
        backends.require_devices(fake, 4)
    backends.require_devices(fake, 2, (1, 0))
    with pytest.raises(
        EnvironmentFault, match=r"there is no npu device 5: 2 visible, SHOWN=0,1, counted from 0 \(--dev"
    ):
        backends.require_devices(fake, 2, (0, 5))
