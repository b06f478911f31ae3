"""What the measurements of the CUDA kernel share: shapes, references, statistics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

cuda: Any = torch.cuda  # its events, streams and sleep have no types
Shape = tuple[int, int, int]
Config = dict[str, int]
SHAPES = [
    (128, 4096, 4096),
    (512, 4096, 4096),
    (1024, 4096, 4096),
    (2048, 4096, 4096),
    (4096, 4096, 4096),
    (1024, 5504, 4096),
    (4096, 5504, 4096),
    (2048, 14336, 4096),
    (4096, 14336, 8192),
    (4096, 4096, 12288),
]
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def captured_alone(call: Callable[[], object]) -> Callable[[], object]:
    """``call`` as a CUDA graph's replay."""
    call()  # compiles and allocates what a capture must not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    torch.cuda.synchronize()
    return graph.replay


def relative_error(c: torch.Tensor, gathered: torch.Tensor, b: torch.Tensor) -> float:
    """Largest error of ``c`` against the fp32 product, over the product's largest element; NaN counts as infinite."""
    reference = gathered.float() @ b.float()
    error = (c.float() - reference).abs().max() / reference.abs().max()
    return math.inf if error.isnan() else error.item()


def geomean(values: list[float]) -> float:
    """Geometric mean."""
    return math.exp(sum(math.log(v) for v in values) / len(values))


def parse_config(text: str) -> dict[str, int]:
    """``a=1,b=2`` as a dictionary."""
    return {key: int(value) for key, value in (pair.split("=") for pair in text.split(",") if pair)}
