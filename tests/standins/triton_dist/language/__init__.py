"""``dl`` (python/triton_dist/language/distributed_ops.py)."""

from agcli.simulator.shmem import consume_token, notify, num_ranks, rank, symm_at, wait

__all__ = ["consume_token", "notify", "num_ranks", "rank", "symm_at", "wait"]
