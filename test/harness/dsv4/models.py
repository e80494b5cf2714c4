"""DeepSeek-V4-Flash as far as pools and sizing know it, and the settings that its classes read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

# 43 layers: 2 with a sliding window only, then 21 of ratio 4 and 20 of ratio 128 in turn.
RATIOS = [0, 0, *([4, 128] * 20), 4]
PAGE = 256
CONTEXT = 131072


def settings(**fields: Any) -> Any:
    """Publish the settings that upstream's classes read, as a server would before it builds them."""
    from sglang.srt.runtime_context import get_context, get_parallel

    override = get_context().override_server_args(device="cpu", page_size=PAGE, **fields).install()
    get_parallel().override_permanently(tp_rank=0, tp_size=1, attn_cp_size=1, attn_dp_size=1, pp_size=1)
    return override


def configurator(max_running_requests: int, **fields: Any) -> Any:
    """Upstream's ``DSV4PoolConfigurator`` for the model, one rank; ``fields``: further settings."""
    from sglang.srt.model_executor.pool_configurator import DSV4PoolConfigurator
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    settings(max_running_requests=max_running_requests, chunked_prefill_size=8192, **fields)
    model = SimpleNamespace(
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        index_head_dim=128,
        context_len=CONTEXT,
        compress_ratios=RATIOS,
        window_size=128,
        hf_config=SimpleNamespace(kv_source_layer_ids=[]),
    )
    return DSV4PoolConfigurator(
        SimpleNamespace(
            kv_cache_dtype_str="fp8_e4m3",
            model_config=model,
            layer_info=SimpleNamespace(start_layer=0, end_layer=len(RATIOS)),
            pp_size=1,
            attn_dp_size=1,
            page_size=PAGE,
            sliding_window_size=128,
            spec_algorithm=SpeculativeAlgorithm.NONE,
        )
    )


def token_pool(
    sizes: dict[str, int], max_running_requests: int, device: str, ratios: list[int] | None = None, **others: Any
) -> Any:
    """Upstream's ``DeepSeekV4TokenToKVPool``; on the device "meta" its buffers have shapes and no memory.

    ``sizes``: ``swa``, ``c4``, ``c128``, ``c4_state``, ``c128_state``.
    """
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    ratios = ratios or RATIOS
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=max_running_requests,
        swa_size=sizes["swa"],
        c4_size=sizes["c4"],
        c128_size=sizes["c128"],
        c4_state_pool_size=sizes["c4_state"],
        c128_state_pool_size=sizes["c128_state"],
        page_size=PAGE,
        swa_page_size=PAGE,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=len(ratios),
        device=device,
        enable_memory_saver=False,
        compression_ratios=ratios,
        full_size=sizes["c4"] * 4,
        **others,
    )


def small_token_pool(ratios: list[int], pages: int = 24, **others: Any) -> Any:
    """A pool in memory, with ``pages`` pages of 64 index keys."""
    sizes = {"swa": PAGE, "c4": pages * 64, "c128": pages * 2, "c4_state": 64, "c128_state": 128}
    return token_pool(sizes, 4, "cpu", ratios, **others)


def buffers(pool: Any) -> list[torch.Tensor]:
    """Every buffer that a pool allocates."""
    found = [*pool.swa_kv_pool.kv_buffer]
    for kv_pool in pool.kv_pools.values():
        found += kv_pool.kv_buffer
    for index_pool in pool.index_pools.values():
        found += index_pool.index_k_with_scale_buffer
    for state in [*pool.compress_state_pools, *pool.indexer_compress_state_pools]:
        if state is not None:
            found.append(state.kv_score_buffer.kv_score)
    return found
