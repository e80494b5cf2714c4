"""Sizes for a budget, and what the pool of those sizes really allocates."""

from __future__ import annotations

from typing import Any

from harness.dsv4 import models


def allocated(
    budgets: list[int], max_running_requests: int, unfixed: bool = False, swa_ratio: float | None = None
) -> list[dict[str, Any]]:
    """For each budget in bytes: ``budget``, ``tokens``, ``allocated`` bytes, ``by_kind`` as our sizing predicts them,
    ``per_token`` bytes as upstream's sizing prices a token.

    ``swa_ratio``: size the sliding window by ``--swa-full-tokens-ratio``, and not by the number of requests.
    ``unfixed``: a configurator that was not told of the larger keys, as one is whose ``__init__`` ran before the hook.
    """
    from sglang.srt.layers.attention.dsv4_sm120.sizing import pool_bytes

    ratio: dict[str, Any] = {}
    if swa_ratio is not None:
        ratio = {"swa_full_tokens_ratio": swa_ratio, "_swa_full_tokens_ratio_explicitly_set": True}
    configurator = models.configurator(max_running_requests, **ratio)
    calculate = configurator.calculate_pool_sizes
    if unfixed:
        configurator.indexer_bytes_per_token = 132
        configurator.bytes_per_full_token = configurator._get_bytes_per_full_token()
        plain = type(configurator).calculate_pool_sizes.__wrapped__
        calculate = lambda budget, page: plain(configurator, budget, page)  # noqa: E731
    found = []
    for budget in budgets:
        config = calculate(budget, models.PAGE)
        config.max_running_requests = min(max_running_requests, config.max_total_num_tokens // 2)
        config = configurator.finalize_with_max_running_requests(config)
        pool = models.token_pool(
            {
                "swa": config.swa_max_total_num_tokens,
                "c4": config.c4_max_total_num_tokens,
                "c128": config.c128_max_total_num_tokens,
                "c4_state": config.c4_state_pool_size,
                "c128_state": config.c128_state_pool_size,
            },
            config.max_running_requests,
            "meta",
        )
        found.append(
            {
                "budget": budget,
                "tokens": config.max_total_num_tokens,
                "allocated": sum(buffer.nbytes for buffer in models.buffers(pool)),
                "by_kind": pool_bytes(configurator, config, config.max_running_requests),
                "per_token": configurator.bytes_per_full_token,
            }
        )
    return found
