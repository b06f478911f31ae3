"""Device queries (third_party/ascend/backend/driver.py)."""

from __future__ import annotations

import os

import torch
from standin_world import AI_CORES, failing, note


class NPUUtils:
    """A singleton whose making compiles a helper into Triton's cache."""

    _instance: NPUUtils | None = None

    def __new__(cls) -> NPUUtils:
        if cls._instance is None:
            torch.npu.current_device()
            if message := failing("raises", "NPUUtils"):
                raise ValueError(message)
            note("NPUUtils", cache=os.environ.get("TRITON_CACHE_DIR"))
            cls._instance = super().__new__(cls)
        return cls._instance

    def get_aicore_num(self) -> int:
        return AI_CORES

    def get_aivector_core_num(self) -> int:
        return 2 * AI_CORES

    def get_arch(self) -> str:
        return "Ascend910B3"
