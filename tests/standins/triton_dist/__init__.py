"""Stands in for Triton-distributed on Ascend, which knows its platform by ``npu-smi``."""

import shutil

if shutil.which("npu-smi") is None:
    raise RuntimeError("either CUDA or HIP platform is supported")
