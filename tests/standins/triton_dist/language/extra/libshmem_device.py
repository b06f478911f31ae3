"""The proxy: names of all platforms, whether this one has them or not."""

from agcli.simulator.shmem import barrier_all, fence, getmem, putmem, quiet

__all__ = ["barrier_all", "fence", "getmem", "putmem", "quiet"]
