"""The index-K pool and the token pool: their layout, what PD and HiCache make of it, what they refuse."""

from __future__ import annotations

import pkgutil
from typing import Any

import torch

from harness.dsv4 import models


def layout() -> dict[str, Any]:
    """The layout of a small pool with one layer of each ratio, as its users see it."""
    models.settings()
    pool = models.small_token_pool([0, 4, 128, 4])
    index_pool = pool.index_pools[4]
    return {
        "class": type(index_pool).__name__,
        "bytes_per_token": index_pool.get_bytes_per_token(),
        "buffers": [(str(b.dtype), list(b.shape)) for b in index_pool.contiguous_page_row_buffers()],
        "kv_pages": pool.kv_pools[4].kv_buffer[0].shape[0],
        "item_lens": pool.get_contiguous_buf_infos()[2],
        "pd_kv_layout": pool.pd_kv_layout(),
    }


def draft() -> str:
    """The tag of a pool without index keys, as a draft worker has it."""
    models.settings()
    return models.small_token_pool([0], is_draft_worker=True).pd_kv_layout()


def fp4_pool() -> None:
    models.settings(enable_deepseek_v4_fp4_indexer=True)
    models.small_token_pool([0, 4, 128])


def scales(accessor: str) -> None:
    """Call an accessor of keys with scales."""
    models.settings()
    pool = models.small_token_pool([4])
    loc = torch.zeros(1, dtype=torch.int64)
    keys = torch.zeros(1, 128)
    arguments: dict[str, tuple[Any, ...]] = {
        "set_index_k_fused": (0, loc, keys),
        "set_index_k_scale_buffer": (0, loc, keys, keys),
        "get_index_k_scale_buffer": (0, loc, loc, 1, 1),
    }
    getattr(pool, accessor)(*arguments[accessor])


def low_ratio_bytes() -> int:
    """Bytes of a key in V4.1's low-ratio pools, which are FP4 whatever is asked."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4IndexerPool

    models.settings()
    pool = DeepSeekV4IndexerPool(128, 64, torch.float8_e4m3fn, 128, 1, "cpu", False, use_fp4_indexer=True)
    return pool.get_bytes_per_token()


def regions() -> list[tuple[str, int, bool]]:
    """HiCache's regions of a small pool's index keys: name, bytes of a page, whether it moves whole pages only."""
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _dsv4_indexer_regions

    models.settings()
    found = _dsv4_indexer_regions(models.small_token_pool([4, 128]), models.PAGE)
    return [(str(region.name), region.item_bytes, region.page_aligned_only) for region in found]


def wrapped(targets: list[str]) -> list[str]:
    """Those of upstream's names that are not upstream's own functions in this process."""
    return [target for target in targets if hasattr(pkgutil.resolve_name(target), "__wrapped__")]


def selected() -> list[str]:
    """The rows for bf16 index keys that belong in this process."""
    from sglang_pd import hooks

    return [row.target for row in hooks.selected() if row.where == "dsv4_bf16"]


def not_live() -> dict[str, str]:
    """Rows that belong in this process and did not take, and why."""
    from sglang_pd import hooks

    return hooks.not_live(hooks.selected())
