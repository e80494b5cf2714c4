"""Pages persisted by HiCache's file storage, and who finds them."""

from __future__ import annotations

import torch


def _storage(folder: str):
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile, HiCacheStorageConfig

    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=True,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="deepseek-ai/DeepSeek-V4-Flash",
    )
    return HiCacheFile(config, folder)


def persist(folder: str, item_bytes: int) -> bool:
    return _storage(folder).set("page", torch.full((item_bytes,), 7, dtype=torch.uint8))


def find(folder: str, item_bytes: int) -> bool:
    """Whether the page is found, and its bytes are those that were persisted."""
    storage = _storage(folder)
    if not storage.exists("page"):
        return False
    read = storage.get("page", torch.zeros(item_bytes, dtype=torch.uint8))
    return read is not None and bool((read == 7).all())
