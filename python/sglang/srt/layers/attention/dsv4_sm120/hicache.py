"""Index-K pages in HiCache: moved whole, and never read from storage that another layout was written to."""

from __future__ import annotations

import dataclasses
from typing import Any

STORAGE_TAG = "index_k_bf16"
# Storage backends that put the model's name, and with it our tag, into the keys of what they persist.
NAMED_STORAGE = ("file", "mooncake", "nixl", "seaweedfs")


def whole_pages(regions: list[Any], kvcache: Any, page_size: int) -> list[Any]:
    """AFTER hook on ``_dsv4_indexer_regions``: bf16 pages may only move whole.

    The copy of single tokens knows the main KV's rows, 576 bytes and 8 of scales, and would scatter a bf16 page.
    """
    return [dataclasses.replace(region, page_aligned_only=True) for region in regions]


def name_storage(result: None, config: Any) -> None:
    """AFTER hook on ``HiCacheStorageConfig.__post_init__``: pages persisted with bf16 index keys have names of their
    own, so that a server finds nothing, rather than something else, where another layout was persisted."""
    if STORAGE_TAG not in (config.model_name or ""):
        config.model_name = f"{config.model_name}-{STORAGE_TAG}" if config.model_name else STORAGE_TAG


def storage_problem(backend: str | None) -> str | None:
    """Why ``--hicache-storage-backend`` ``backend`` cannot persist pages with bf16 index keys; None if it can."""
    if backend is None or backend in NAMED_STORAGE:
        return None
    return (
        f"--hicache-storage-backend {backend}: its keys do not name the model, so pages persisted with FP8 index keys "
        f"would be taken for bf16 ones; allowed: {', '.join(NAMED_STORAGE)}"
    )
