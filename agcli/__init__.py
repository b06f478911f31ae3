"""Fused AllGather+GEMM over symmetric memory: run it, prove it right on every rank, time it."""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to load than the interpreter to start

__version__ = "0.1.0"
__all__ = ["AllGatherGemm", "KernelConfig", "Problem", "__version__"]

if TYPE_CHECKING:
    from agcli.operator import AllGatherGemm
    from agcli.problem import KernelConfig, Problem


def __getattr__(name: str) -> object:
    """Load the public classes on first use: ``import agcli`` alone must not load torch."""
    if name == "AllGatherGemm":
        from agcli.operator import AllGatherGemm

        return AllGatherGemm
    if name in ("KernelConfig", "Problem"):
        from agcli import problem

        return getattr(problem, name)
    raise AttributeError(f"module 'agcli' has no attribute {name!r}")
