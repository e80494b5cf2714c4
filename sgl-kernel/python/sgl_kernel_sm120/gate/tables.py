"""The tables of configurations, by name. A kernel's table covers every launch that its launch module lets through."""

from __future__ import annotations

from collections.abc import Callable

from sgl_kernel_sm120.gate.config import KernelConfig
from sgl_kernel_sm120.index_k.configs import configs as index_k
from sgl_kernel_sm120.sparse_mla.configs import configs as sparse_mla

TABLES: dict[str, Callable[[], list[KernelConfig]]] = {"index_k": index_k, "sparse_mla": sparse_mla}
