"""Platform backends, one file each, behind the protocol in base.py. Importing this loads no platform, no torch."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Sequence

from agcli.backends.base import Backend, Need
from agcli.errors import EnvironmentFault, UsageError

# In the order in which `auto` tries them.
_CLASSES = {
    "npu": ("agcli.backends.npu", "NpuBackend"),
    "cuda": ("agcli.backends.cuda", "CudaBackend"),
    "cpu": ("agcli.backends.cpu", "CpuBackend"),
}
NAMES = tuple(_CLASSES)

_log = logging.getLogger(__name__)


def load_backend(name: str) -> Backend:
    """The backend called ``name``, ready or not, for those who ask what it lacks. UsageError for an unknown name."""
    if name not in _CLASSES:
        raise UsageError(f"backend must be auto, {', '.join(NAMES[:-1])} or {NAMES[-1]}, got '{name}' (--backend)")
    module, attribute = _CLASSES[name]
    backend: Backend = getattr(importlib.import_module(module), attribute)()
    return backend


def get_backend(name: str = "auto") -> Backend:
    """A backend that is ready; ``auto`` is the first ready one of npu, cuda, cpu. It is not started yet.

    Raises UsageError for an unknown name, and EnvironmentFault listing what is missing and the cure.
    """
    if name != "auto":
        backend = load_backend(name)
        lacks = missing(backend.needs())
        if lacks:
            raise EnvironmentFault(f"backend {name} is not ready:\n{describe_missing(lacks)}")
        return backend
    faults: list[str] = []
    for candidate in map(load_backend, NAMES):
        lacks = missing(candidate.needs())
        if not lacks:
            return candidate
        faults.append(f"{candidate.name}:\n{describe_missing(lacks)}")
        if candidate.device_count() > 0:
            _log.warning("%s devices are present but not used: %s", candidate.name, "; ".join(n.name for n in lacks))
    raise EnvironmentFault("no backend is ready.\n" + "\n".join(faults))


def require_devices(backend: Backend, wanted: int, chosen: Sequence[int] = ()) -> None:
    """Refuse more ranks than there are devices on this host, or ``chosen`` ones that it has not, before a rank starts.

    Raises EnvironmentFault with both numbers, the latter as the backend's need called "devices" words it, which may
    name a variable that hides the others.
    """
    visible = backend.device_count()
    absent = [device for device in chosen if device >= visible]
    if wanted <= visible and not absent:
        return
    found = next((need.found for need in backend.needs() if need.name == "devices"), f"{visible} visible")
    if absent:
        raise EnvironmentFault(f"there is no {backend.name} device {absent[0]}: {found}, counted from 0 (--devices)")
    raise EnvironmentFault(
        f"{wanted} {backend.name} devices wanted, {found}; ask for fewer ranks (--world) or make more devices visible"
    )


def missing(needs: Iterable[Need]) -> list[Need]:
    """Those needs that are not as they must be."""
    return [need for need in needs if not need.ok]


def describe_missing(needs: Iterable[Need]) -> str:
    """One line a need: what was found, and the cure."""
    return "\n".join(f"  {need.name}: {need.found}" + (f". {need.cure}" if need.cure else "") for need in needs)
