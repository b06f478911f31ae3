"""Sub-core queries (triton-ascend 3.2.1 and newer)."""

from agcli.simulator.shmem import sub_vec_id, sub_vec_num

__all__ = ["sub_vec_id", "sub_vec_num"]
