"""Modules that kernel files import and the compilers' environment lacks, for the load of a kernel alone.

``triton_dist`` and ``triton.language.extra.cann`` (which triton-ascend 3.2.0 has not) offer the primitives that can be
lowered; any other name of theirs can be imported, and is refused where a kernel calls it. ``torch``, ``torch_npu`` and
``shmem`` are there for the imports of host code, which is not run. A module that is installed is never replaced.
Runs in the toolchain's Python.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import Any

HOST = ("torch", "torch_npu", "shmem")
CANN = "triton.language.extra.cann"


class _Finder(MetaPathFinder, Loader):
    """Comes last, so that it finds what nothing else does."""

    def __init__(self, primitives: Mapping[str, Any]) -> None:
        self.primitives = primitives

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        root = name.split(".")[0]
        if root not in (*HOST, "triton_dist") and not f"{name}.".startswith((f"{CANN}.", "triton.backends.ascend.")):
            return None
        return importlib.util.spec_from_loader(name, self, is_package=True)

    def create_module(self, spec: Any) -> ModuleType:
        """A module of exactly this type: Triton lets kernels use no other objects as modules."""
        module = ModuleType(spec.name)
        module.__path__ = []
        if spec.name.split(".")[0] in HOST:
            module.__getattr__ = _host(spec.name)  # type: ignore[method-assign]
            return module
        vars(module).update(self.primitives)
        if spec.name.endswith(".algorithm"):
            from agcli.kernels import swizzle

            vars(module).update({name: getattr(swizzle, name) for name in ("dist_swizzle2d_Nz", "gemm_swizzle2d_Nz")})
        if spec.name == "triton_dist" or spec.name.endswith(".extra"):
            vars(module)["libshmem_device"] = self.create_module(_named("libshmem_device"))
        module.__getattr__ = _unknown(spec.name, tuple(self.primitives))  # type: ignore[method-assign]
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it is complete."""


def _named(name: str) -> Any:
    return importlib.util.spec_from_loader(name, loader=None)


def _unknown(module: str, known: tuple[str, ...]) -> Callable[[str], Any]:
    """Names that can be imported, and are refused where a kernel calls them."""

    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith("lib"):  # a library such as libshmem_device, for another platform
            library = ModuleType(f"{module}.{name}")
            library.__getattr__ = _unknown(library.__name__, known)  # type: ignore[method-assign]
            return library
        from triton.language import core

        def primitive(*args: Any, _builder: Any = None, **options: Any) -> Any:
            raise ValueError(
                f"{module.rpartition('.')[2]}.{name} cannot be compiled without an NPU; the primitives that can be "
                f"are {', '.join(known)}"
            )

        return core.extern(primitive)

    return attribute


class _HostOnly:
    """Something of a host package: may be named, called and used as a decorator while a file is loaded."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> _HostOnly:
        if name.startswith("__"):
            raise AttributeError(name)
        return _HostOnly(f"{self._name}.{name}")

    def __call__(self, *args: Any, **options: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not options else self


def _host(module: str) -> Callable[[str], Any]:
    def attribute(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _HostOnly(f"{module}.{name}")

    return attribute


def provide(primitives: Mapping[str, Any]) -> None:
    """From now on, imports find the stand-ins of what is not installed."""
    sys.meta_path.append(_Finder(primitives))
    importlib.import_module(f"{CANN}.extension")  # kernels also write tl.extra.cann.extension
