"""The kernel through triton-ascend and AscendNPU-IR, on a machine without an NPU."""
