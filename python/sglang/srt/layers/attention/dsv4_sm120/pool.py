"""The layout of the C4 index-K pool: 64 slots of 128 bf16 values per page and no scales, in upstream's buffers.

Upstream keeps the buffers as rows of bytes, ``[pages, page_bytes]`` uint8, which transfer and offload code rely on;
that stays. All that changes there is the number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_BYTES, PAGE_SLOTS, SLOT_BYTES, as_keys

RATIO = 4
# What PD peers compare; a refusal shows both sides' tags, and this one says which variable it is about.
PD_TAG = "index_k:bf16(SGLANG_DSV4_BF16_INDEX_K=1)"


class IndexKLayoutError(RuntimeError):
    """The pool is not in the layout of bf16 index keys, or something asked it for another layout."""


def bytes_per_token(original: Callable[..., int], index_head_dim: int, use_fp4_indexer: bool) -> int:
    """AROUND hook on ``get_dsv4_indexer_bytes_per_token``: bytes of one key, for the pool and for who sizes it.

    The low-ratio pools of V4.1 ask for FP4 whatever the variable says, and get it.
    """
    return original(index_head_dim, use_fp4_indexer) if use_fp4_indexer else index_head_dim * 2


def check_pool(result: None, pool: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``DeepSeekV4TokenToKVPool.__init__``: the start-up assertion. Raises :class:`IndexKLayoutError`.

    A draft's pool has no index keys.
    """
    index_pool = pool.index_pools.get(RATIO)
    if index_pool is None:
        return
    per_token = index_pool.get_bytes_per_token()
    if per_token != SLOT_BYTES or index_pool.page_size != PAGE_SLOTS or index_pool.index_head_dim != HEAD_DIM:
        raise IndexKLayoutError(
            f"the C4 index-K pool has {per_token} bytes per key, pages of {index_pool.page_size} and keys of "
            f"{index_pool.index_head_dim} values; bf16 index keys need {SLOT_BYTES}, {PAGE_SLOTS} and {HEAD_DIM}"
        )
    for buffer in index_pool.index_k_with_scale_buffer:
        if buffer.dtype != torch.uint8 or buffer.dim() != 2 or buffer.shape[1] != PAGE_BYTES:
            raise IndexKLayoutError(
                f"an index-K buffer is {buffer.dtype} {list(buffer.shape)}, not uint8 [pages, {PAGE_BYTES}]"
            )


def keys_of(token_to_kv_pool: Any, layer_id: int) -> torch.Tensor:
    """A layer's index keys, bf16 ``[pages, 64, 128]``, once its transfer from the host is done."""
    return as_keys(token_to_kv_pool.get_index_k_with_scale_buffer(layer_id=layer_id))


def pd_layout(layout: str, pool: Any) -> str:
    """AFTER hook on ``DeepSeekV4TokenToKVPool.pd_kv_layout``: the tag that a peer without bf16 keys does not have.

    A draft's pool has no index keys, and no tag.
    """
    return f"{layout},{PD_TAG}" if RATIO in pool.compression_ratios else layout


def refuse_scales(original: Callable[..., Any], *args: Any, **kwargs: Any) -> NoReturn:
    """AROUND hook on the accessors that write or read keys with scales: they would corrupt bf16 pages."""
    raise IndexKLayoutError(f"{original.__qualname__} is for FP8 index keys with scales; this pool holds bf16 keys")
