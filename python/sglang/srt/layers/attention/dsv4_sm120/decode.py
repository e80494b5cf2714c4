"""Sparse attention in upstream's backend: our kernel where it was chosen, upstream's function elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from sgl_kernel_sm120.sparse_mla.decode import sparse_decode
from sgl_kernel_sm120.sparse_mla.layout import Candidates, as_pages
from sglang.srt.layers.attention.dsv4_sm120 import backend, decode_settings

# Whether the rows that are being attended to are decode's; upstream's function below the backend is not told.
_decoding: ContextVar[bool] = ContextVar("decoding", default=False)


def mark_mode(
    original: Callable[..., Any], backend_object: Any, q: Any, k: Any, v: Any, layer: Any, forward_batch: Any,
    *args: Any, **kwargs: Any,
) -> Any:  # fmt: skip
    """AROUND hook on ``DeepseekV4AttnBackend._forward_attention``: note whether it is decode (drafts and their
    verification included) for :func:`attend`."""
    token = _decoding.set(not forward_batch.forward_mode.is_extend_without_speculative())
    try:
        return original(backend_object, q, k, v, layer, forward_batch, *args, **kwargs)
    finally:
        _decoding.reset(token)


def native_heads(original: Callable[..., int], layer: Any, num_tokens: int) -> int:
    """AROUND hook on ``_kernel_num_heads``: our kernel takes a rank's heads as they are, where upstream pads to 64."""
    if backend.is_ours(decode_settings.word(), num_tokens, decode=False):
        return layer.n_local_heads
    return original(layer, num_tokens)


def attend(original: Callable[..., Any], **kwargs: Any) -> Any:
    """AROUND hook on ``flash_mla_with_kvcache_sm120``.

    ``q``: bf16 ``[rows, 1, heads, 512]``. Returns bf16 ``[rows, 1, heads, 512]`` and None, as upstream's FlashInfer
    path. Nothing here reads a tensor's values or keeps one: under graph capture it is two launches, whose shapes follow
    from the batch size.
    """
    q = kwargs["q"]
    if not backend.is_ours(decode_settings.word(), q.shape[0], _decoding.get()):
        return original(**kwargs)
    q = q.squeeze(1)
    heads = q.shape[1]
    window = _candidates(kwargs["k_cache"], kwargs["indices"], kwargs["topk_length"])
    extra = None
    if kwargs.get("extra_k_cache") is not None:
        extra = _candidates(kwargs["extra_k_cache"], kwargs["extra_indices_in_kvcache"], kwargs["extra_topk_length"])
    widths = (window.width,) if extra is None else (window.width, extra.width)
    out, _ = sparse_decode(
        q,
        window,
        extra,
        kwargs["attn_sink"][:heads],
        kwargs["softmax_scale"],
        launch=decode_settings.launch(),
        splits=decode_settings.splits(q.shape[0], heads, widths, q.device),
    )
    return out.unsqueeze(1), None


def _candidates(view: torch.Tensor, indices: torch.Tensor, lens: torch.Tensor) -> Candidates:
    pages, slots = as_pages(view)
    return Candidates(pages, slots, indices.squeeze(1), lens)
