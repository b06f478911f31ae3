"""Stands in for ``import shmem``: the names of ``_pyshmem``, and both spellings of the last one."""

from standin_world import setting

from shmem import _pyshmem
from shmem._pyshmem import (
    InitAttr,
    InitStatus,
    OpEngineType,
    OptionalAttr,
    aclshmem_create_tensor,
    aclshmem_free_tensor,
    aclshmem_get_unique_id,
    aclshmem_info_get_version,
    aclshmem_init,
    aclshmem_init_using_unique_id,
    aclshmem_ptr,
    aclshmemx_init_status,
    my_pe,
    pe_count,
    set_conf_store_tls,
    set_conf_store_tls_key,
)

if setting("old_finalize", False):
    aclshmem_finialize = _pyshmem.aclshmem_finalize
else:
    aclshmem_finalize = _pyshmem.aclshmem_finalize

__all__ = [
    "InitAttr",
    "InitStatus",
    "OpEngineType",
    "OptionalAttr",
    "aclshmem_create_tensor",
    "aclshmem_free_tensor",
    "aclshmem_get_unique_id",
    "aclshmem_info_get_version",
    "aclshmem_init",
    "aclshmem_init_using_unique_id",
    "aclshmem_ptr",
    "aclshmemx_init_status",
    "my_pe",
    "pe_count",
    "set_conf_store_tls",
    "set_conf_store_tls_key",
]
