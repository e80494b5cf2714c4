"""The sparse decode's scratch, set aside before the KV pools are sized."""

from __future__ import annotations

from typing import Any

from sglang.srt.layers.attention.dsv4_sm120.decode_settings import scratch_bytes


def reserve(configurator: Any, available_bytes: int, page_size: int) -> tuple[tuple[Any, int, int], dict[str, Any]]:
    """BEFORE hook on ``DSV4PoolConfigurator.calculate_pool_sizes``: its arguments, with less memory.

    Raises ``RuntimeError`` where nothing is left.
    """
    scratch = scratch_bytes()
    if available_bytes <= scratch:
        raise RuntimeError(
            f"{available_bytes} bytes leave no room for the KV pools beside {scratch} bytes of partial attention "
            "results (SGLANG_SM120_MMA_TARGET_CTAS): lower that, or raise --mem-fraction-static"
        )
    return (configurator, available_bytes - scratch, page_size), {}
