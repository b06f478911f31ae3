"""Which problems to time: lists on the command line, a file, or projections of well-known models. Pure.

Legend: M, N and K are per rank: A ``[M, K]``, B ``[K, N]``, C ``[W*M, N]``. In a column-parallel layer M is the
tokens of one rank's sequence shard, K the hidden size, and N the rank's share of the output features.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agcli.errors import UsageError
from agcli.problem import cdiv

Sizes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # M, N, K
PRESET_M = (128, 512, 2048, 8192)  # tokens of one rank: a decode batch to a long prefill
ACCELERATOR_SIZES: Sizes = ((512, 1024, 2048, 4096), (4096,), (4096,))
EMULATION_SIZES: Sizes = ((128, 256), (256,), (256,))


@dataclass(frozen=True)
class Shape:
    """One problem, per rank, and what it stands for ("" if nobody named it)."""

    m: int
    n: int
    k: int
    name: str = ""

    @property
    def text(self) -> str:
        """``MxNxK``, in one word so that a report can be searched for it."""
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True)
class Model:
    """The sizes of a transformer that decide its column-parallel projections.

    ``mlp_inputs`` counts the matrices that read the layer's input: 2 for a gated MLP (gate and up, multiplied as one),
    1 otherwise. ``heads`` is 0 where the attention input is not one column-parallel product.
    """

    hidden: int
    ffn: int
    mlp_inputs: int
    heads: int
    kv_heads: int
    head_dim: int
    source: str

    def projections(self, world: int) -> dict[str, tuple[int, int]]:
        """``(N, K)`` of each projection on one of ``world`` ranks.

        Heads and features that do not divide are rounded up: the rank with the most decides the time. With more ranks
        than KV heads, each rank keeps a copy of one, as serving frameworks do. Llama-3-70B on 8 ranks: qkv is
        (64/8 + 2 * 8/8) * 128 = 1280 columns.
        """
        found = {}
        if self.heads:
            found["qkv"] = (cdiv(self.heads, world) + 2 * cdiv(self.kv_heads, world)) * self.head_dim, self.hidden
        found["mlp"] = self.mlp_inputs * cdiv(self.ffn, world), self.hidden
        return found


_LLAMA3 = "Llama 3 paper (arXiv 2407.21783), table 3"
MODELS: dict[str, Model] = {
    "llama-2-7b": Model(4096, 11008, 2, 32, 32, 128, "config.json of meta-llama/Llama-2-7b-hf"),
    "llama-3-8b": Model(4096, 14336, 2, 32, 8, 128, _LLAMA3),
    "llama-3-70b": Model(8192, 28672, 2, 64, 8, 128, _LLAMA3),
    "llama-3-405b": Model(16384, 53248, 2, 128, 8, 128, _LLAMA3),
    "qwen2.5-7b": Model(3584, 18944, 2, 28, 4, 128, "config.json of Qwen/Qwen2.5-7B"),
    "qwen2.5-72b": Model(8192, 29568, 2, 64, 8, 128, "config.json of Qwen/Qwen2.5-72B"),
    "qwen3-32b": Model(5120, 25600, 2, 64, 8, 128, "config.json of Qwen/Qwen3-32B"),
    "deepseek-v3": Model(7168, 18432, 2, 0, 0, 0, "config.json of deepseek-ai/DeepSeek-V3 (its dense layers)"),
    "gpt-3-175b": Model(12288, 49152, 1, 96, 96, 128, "GPT-3 paper (arXiv 2005.14165), table 2.1; MLP is 4 x hidden"),
}


def preset_names(world: int = 1) -> list[str]:
    """All that ``--preset`` takes, but for ``all``: ``model`` and ``model/projection``."""
    names = []
    for model, sizes in MODELS.items():
        names += [model, *(f"{model}/{part}" for part in sizes.projections(world))]
    return names


def preset_shapes(names: Sequence[str], world: int, m_values: Sequence[int] = PRESET_M) -> list[Shape]:
    """The shapes of presets on one of ``world`` ranks, each with every M. Raises UsageError for a name nobody knows."""
    if "all" in names:
        names = list(MODELS)
    shapes = []
    for name in names:
        model, _, wanted = name.lower().partition("/")
        parts = MODELS[model].projections(world) if model in MODELS else {}
        if not parts or (wanted and wanted not in parts):
            raise UsageError(f"unknown preset '{name}'; known are all, {', '.join(preset_names())} (--preset)")
        for part, (n, k) in parts.items():
            if wanted in ("", part):
                shapes += [Shape(m, n, k, f"{model}/{part}") for m in m_values]
    return unique(shapes)


def grid(m: Sequence[int], n: Sequence[int], k: Sequence[int]) -> list[Shape]:
    """Every combination, M fastest, so that neighbours in a table differ by M."""
    return unique([Shape(m_, n_, k_) for k_, n_, m_ in itertools.product(k, n, m)])


def unique(shapes: Sequence[Shape]) -> list[Shape]:
    """``shapes`` in order, without repetitions."""
    return list(dict.fromkeys(shapes))


def parse_sizes(text: str, option: str) -> list[int]:
    """``"1024,4096"`` as integers. Raises UsageError naming ``option``; ranges are the problem's to judge."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} takes whole numbers separated by commas, got '{text}'") from None


def read_shapes(path: Path) -> list[Shape]:
    """The shapes of a file: a line each, ``M N K [name]``, separated by blanks, commas, semicolons or ``x``.

    ``#`` begins a comment, and a heading ``m,n,k,name`` is allowed, so that a CSV file will do. The name may hold
    blanks. Raises UsageError with file and line.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise UsageError(f"cannot read {path}: {e} (--shapes)") from e
    shapes = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if text and not (number == 1 and re.match(r"(?i)m[\s,;]+n[\s,;]+k\b", text)):
            shapes.append(_parse_line(text, f"{path}:{number}"))
    if not shapes:
        raise UsageError(f"{path} holds no shape; a line is 'M N K [name]' (--shapes)")
    return unique(shapes)


def _parse_line(text: str, where: str) -> Shape:
    found = re.fullmatch(r"(\d+)(?:[\s,;]+|\s*x\s*)(\d+)(?:[\s,;]+|\s*x\s*)(\d+)(?:[\s,;]+(.*))?", text)
    if not found:
        raise UsageError(f"{where}: expected 'M N K [name]', got '{text}' (--shapes)")
    m, n, k, name = found.groups()
    if 0 in (int(m), int(n), int(k)):
        raise UsageError(f"{where}: M, N and K must be at least 1, got '{text}' (--shapes)")
    return Shape(int(m), int(n), int(k), (name or "").strip())
