"""Read kernels without the packages they import, and give their names the simulator's meaning.

``load_kernel`` runs a kernel file while stand-ins take the place of ``triton``, ``triton_dist`` and other device
packages, for the load alone. ``resolved_globals`` does the same for a kernel that was imported with the real packages.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from agcli.errors import UsageError
from agcli.simulator import language, scalars, shmem
from agcli.simulator.kinds import kind
from agcli.simulator.refusals import REFUSAL

_ROOTS = ("triton", "triton_dist", "shmem", "torch_npu")
_TL = SimpleNamespace(**language.namespace())
_DL = SimpleNamespace(**shmem.NAMES)
_TL.extra = SimpleNamespace(cann=SimpleNamespace(extension=_DL), ascend=SimpleNamespace(extension=_DL))


@kind("both")
def _refused(message: str) -> None:
    """Stands in place of a branch with something in it that the simulator does not understand."""
    raise UsageError(message)


# The functions of Python that Triton has in kernels; their names mean what they do there.
_BUILTINS = {
    **{function.__name__: function for function in (len, list, float, int, isinstance, getattr, hasattr, min, max)},
    "range": scalars.kernel_range, "print": language.device_print, REFUSAL: _refused,
}  # fmt: skip
PRIMITIVES = "agcli.kernels.primitives"


class KernelFunction:
    """What ``triton.jit`` makes of a function here: something to launch through a backend, or to call in a kernel."""

    is_kernel_function = True

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.__name__ = fn.__name__
        self.__doc__ = fn.__doc__


def _jit(fn: Callable[..., Any] | None = None, **_options: Any) -> Any:
    """``triton.jit``, with or without options."""
    return KernelFunction(fn) if fn is not None else KernelFunction


class _StandIn(ModuleType):
    """A module of which any name can be imported: the simulator's where it has that name, else a placeholder."""

    def __init__(self, name: str, known: dict[str, Any]) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        if full in sys.modules:
            return sys.modules[full]
        return _StandIn(full, {})

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise UsageError(f"{self.__name__} is not part of what the simulator knows")


def _known(name: str) -> dict[str, Any]:
    """The names that the stand-in for a module offers."""
    if name == "triton":
        return {"jit": _jit, "cdiv": language.cdiv, "language": _module("triton.language")}
    if name == "triton.language":
        return vars(_TL)
    if name.startswith(("triton.language.extra", "triton_dist")):
        known: dict[str, Any] = {"jit": _jit, **shmem.NAMES}
        if name.endswith("extra"):
            known["libshmem_device"] = _DL
        if name.endswith("algorithm"):
            known |= _swizzles()
        return known
    return {}


def _module(name: str) -> _StandIn:
    return _StandIn(name, _known(name))


def _swizzles() -> dict[str, Any]:
    module = Path(__file__).parents[1] / "kernels" / "swizzle.py"
    names = ("dist_swizzle2d_Nz", "gemm_swizzle2d_Nz")
    return {name: KernelFunction(kernel_function(load_kernel(module, name))) for name in names}


class _Finder(MetaPathFinder, Loader):
    """Finds stand-ins for device packages and their submodules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in _ROOTS:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        return _module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: the stand-in is complete."""


@contextmanager
def _stand_ins() -> Iterator[None]:
    """Put stand-ins in the place of device packages; whatever was imported with them goes again afterwards."""
    hidden = {n: m for n, m in sys.modules.items() if n.split(".")[0] in _ROOTS or n.startswith("agcli.kernels")}
    for name in hidden:
        del sys.modules[name]
    before = set(sys.modules)
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in set(sys.modules) - before:
            if _uses_stand_in(sys.modules[name]):
                del sys.modules[name]
        sys.modules.update(hidden)


def _uses_stand_in(module: ModuleType) -> bool:
    if module.__name__.startswith("agcli.kernels"):
        return True
    values = list(vars(module).values())
    return isinstance(module, _StandIn) or any(isinstance(v, (_StandIn, KernelFunction)) for v in values)


def load_kernel(file: str | Path, name: str) -> Any:
    """The kernel ``name`` of a Python file, loaded with stand-ins for absent (and present) device packages.

    Raises UsageError if the file cannot be read or run, or has no such kernel.
    """
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(f"no such kernel file: {file}")
    spec = importlib.util.spec_from_file_location(f"_kernel_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"cannot load {path}: it is no Python file, whose name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        with _stand_ins():
            spec.loader.exec_module(module)
    except SystemExit as error:
        raise UsageError(
            f"cannot load {path}: it ends the program while it is loaded (SystemExit: {error.code})"
        ) from error
    except Exception as error:
        raise UsageError(f"cannot load {path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    kernel = getattr(module, name, None)
    if kernel is None:
        known = [n for n, v in vars(module).items() if isinstance(v, KernelFunction)]
        raise UsageError(f"{path} has no kernel '{name}'; it has {', '.join(known) or 'none'}")
    return kernel


def kernel_function(kernel: Any) -> Callable[..., Any]:
    """The Python function of a kernel: what ``triton.jit`` wrapped, or the function itself."""
    function = inspect.unwrap(getattr(kernel, "fn", kernel))
    if not isinstance(function, FunctionType):
        raise TypeError(f"{kernel!r} is not a kernel function")
    return function


def resolved_globals(function: Callable[..., Any], used: Iterable[str]) -> dict[str, Any]:
    """The names ``used`` that a kernel function can see, with the simulator's modules in the place of the device's."""
    names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
    resolved = {name: _resolve(names[name]) for name in used if name in names}
    return {**resolved, "__builtins__": _BUILTINS, "__name__": function.__module__}


def _resolve(value: Any) -> Any:
    """The simulator's object for one that a kernel file imported."""
    name = getattr(value, "__name__", "")
    if isinstance(value, ModuleType):
        if name == "triton":
            return SimpleNamespace(jit=_jit, cdiv=language.cdiv, language=_TL)
        if name == "triton.language":
            return _TL
        if name == PRIMITIVES or name.split(".")[0] == "triton_dist" or name.startswith("triton.language.extra"):
            return SimpleNamespace(**{**shmem.NAMES, "libshmem_device": _DL})
        return value
    if getattr(value, "is_kernel_function", False):
        return value
    if type(value).__name__ == "JITFunction":
        return KernelFunction(kernel_function(value))
    if type(value).__name__ == "constexpr":
        return value.value
    module = getattr(value, "__module__", "") or ""
    if module.split(".")[0] in _ROOTS and name:
        return vars(_TL).get(name, shmem.NAMES.get(name, value))
    return value
