"""What the DeepSeek-V4 pools allocate, to the byte, and sizes at which that fits the budget.

Upstream prices a token and divides. Its price leaves out the pages that each pool reserves beyond its size, some 15 MB
for DeepSeek-V4-Flash, so that its pools exceed their budget by that. With bf16 index keys the sizes are chosen by what
the pools really allocate, and the memory for the indexer's scores is set aside before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_kernel_sm120.index_k.layout import PAGE_SLOTS
from sglang.srt.layers.attention.dsv4_sm120.settings import scratch_bytes


def pool_bytes(configurator: Any, config: Any, max_running_requests: int) -> dict[str, int]:
    """Bytes of each kind of buffer that ``DeepSeekV4TokenToKVPool`` allocates.

    Args:
        configurator: upstream's ``DSV4PoolConfigurator``, on CUDA, of a model with compress ratios 0, 4 and 128.
        config: the ``MemoryPoolConfig`` it made.
        max_running_requests: per worker, which the request-scoped state is allocated for.
    """
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import _num_dsv4_physical_kv_pages
    from sglang.srt.model_executor.pool_configurator import _get_dsv4_compress_state_dtype_sizes

    page = configurator.page_size
    c4, c128 = configurator.num_layers(4), configurator.num_layers(128)
    c4_state, c128_state = _get_dsv4_compress_state_dtype_sizes()

    def paged(size: int, ratio: int, layers: int) -> int:
        slots = page // ratio if ratio else page
        pages = _num_dsv4_physical_kv_pages(size, slots, page)
        return layers * pages * round(slots * configurator._get_paged_kv_bytes_per_token(ratio))

    def state(size: int, ratio: int, head_dim: int, item: int, layers: int) -> int:
        rows = -(-(size + configurator.ring_sizes[ratio] + 1) // ratio) * ratio
        return layers * rows * 2 * (2 if ratio == 4 else 1) * head_dim * item

    index_pages = _num_dsv4_physical_kv_pages(config.c128_max_total_num_tokens * 32, PAGE_SLOTS, page)
    found = {
        "swa": paged(config.swa_max_total_num_tokens, 0, configurator.num_layers_total),
        "c4": paged(config.c4_max_total_num_tokens, 4, c4),
        "c128": paged(config.c128_max_total_num_tokens, 128, c128),
        "index_k": c4 * index_pages * PAGE_SLOTS * configurator.indexer_bytes_per_token,
    }
    if c4:
        size = config.c4_state_pool_size
        found["c4_state"] = state(size, 4, configurator.attn_head_dim, c4_state, c4)
        found["index_state"] = state(size, 4, configurator.indexer_head_dim, c4_state, c4)
    if c128:
        size = configurator._get_num_req_slots(max_running_requests) * configurator.ring_sizes[128]
        found["c128_state"] = state(size, 128, configurator.attn_head_dim, c128_state, c128)
    return found


def fit(original: Callable[..., Any], configurator: Any, available_bytes: int, page_size: int) -> Any:
    """AROUND hook on ``DSV4PoolConfigurator.calculate_pool_sizes``: the largest sizes whose pools and scratch fit.

    Raises ``RuntimeError`` where not even a page of tokens does.
    """
    budget = available_bytes - scratch_bytes()
    requests = configurator._resolve_max_running_requests_per_worker(available_bytes)
    per_page = configurator.bytes_per_full_token * page_size
    config = original(configurator, max(budget, 0), page_size)
    while True:
        # A draft's pools are upstream's estimate: a share of the target's.
        over = sum(pool_bytes(configurator, config, requests).values()) * configurator._spec_infl - budget
        if over <= 0:
            return config
        tokens = config.max_total_num_tokens - page_size * max(1, int(over / per_page))
        if tokens <= 0:
            raise RuntimeError(
                f"{available_bytes / (1 << 30):.2f} GiB leave no room for the KV pools beside "
                f"{scratch_bytes() / (1 << 30):.2f} GiB of index scores (SGLANG_DSV4_BF16_INDEX_K_LOGITS_MIB): lower "
                "that or --max-running-requests, or raise --mem-fraction-static"
            )
        config = configurator.calculate_pool_sizes_from_max_tokens(tokens, page_size)
