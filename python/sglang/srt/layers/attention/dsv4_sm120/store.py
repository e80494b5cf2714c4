"""Storing index keys: our kernel where upstream's would finish, quantise and store them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS, as_keys
from sgl_kernel_sm120.index_k.store import store_keys
from sglang.srt.layers.attention.dsv4_sm120 import settings
from sglang.srt.layers.attention.dsv4_sm120.pool import IndexKLayoutError


def store(
    original: Callable[..., None],
    kv: torch.Tensor,
    plan: Any,
    *,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    page_size: int,
    **others: Any,
) -> None:
    """AROUND hook on ``compress_norm_rope_store``, the last step of upstream's compressor.

    Upstream tells index keys from the latent by the width of a row, 128 or 512; so do we. The hook sits here and not on
    ``forward_indexer_compressor`` because that name is an alias of a method that the latent goes through as well.

    ``kv``: fp32 or bf16 ``[rows, 128]``. ``freq_cis``: complex64 ``[positions, 32]``. ``out_loc``: int64. ``kvcache``:
    uint8 ``[pages, 16384]``.
    """
    if kv.shape[-1] != HEAD_DIM:
        original(
            kv,
            plan,
            norm_weight=norm_weight,
            norm_eps=norm_eps,
            freq_cis=freq_cis,
            out_loc=out_loc,
            kvcache=kvcache,
            page_size=page_size,
            **others,
        )
        return
    if others.get("use_fp4") or page_size != PAGE_SLOTS:
        raise IndexKLayoutError(f"index keys to store as {others} in pages of {page_size}; bf16 keys need {PAGE_SLOTS}")
    store_keys(
        as_keys(kvcache),
        kv,
        plan[1],
        norm_weight,
        norm_eps,
        torch.view_as_real(freq_cis).flatten(-2),
        out_loc,
        decode=plan.is_decode,
        launch=settings.launch(kv.device).store,
    )
