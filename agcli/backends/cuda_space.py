"""What ``tune`` may vary of the CUDA kernel: tiles, ring depth, split of K, pushes and their pace, chunks. Pure."""

from __future__ import annotations

from typing import Any

from agcli.backends.cuda_tuning import CudaConfig, choose
from agcli.errors import UsageError
from agcli.problem import Problem
from agcli.tune_space import spread
from agcli.tuned import Choice

AXES: dict[str, tuple[int, ...]] = {
    "block_n": (64, 128, 256),
    "block_m": (64, 128),
    "stages": (3, 4, 5, 6),
    "split_k": (1, 2),
    "push_percent": (0, 30, 60, 100),
    "chunk_k": (512, 1024, 2048, 4096),
    "chunk_m": (128, 256, 512),
    "group_m": (4, 8, 16),
    "push_warps": (1, 2),
    "push_m": (16, 32),
    "epilogue_parts": (1, 2, 4),
    "block_k": (64, 128),
}


def candidates(problem: Problem) -> list[Choice]:
    """What ``CudaConfig`` allows, each configuration once; the first is what ``choose`` takes by itself."""
    seen = {choose(problem)}

    def allowed(setting: dict[str, Any]) -> bool:
        config = _chosen(problem, setting)
        if config is None or config in seen:
            return False
        seen.add(config)
        return True

    return [Choice(extra=setting) for setting in spread(AXES, allowed)]


def _chosen(problem: Problem, setting: dict[str, Any]) -> CudaConfig | None:
    try:
        return choose(problem, **setting)
    except UsageError:
        return None
