"""The indexer's queries: upstream's projection, then our kernel instead of the one that quantises to FP8."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sgl_kernel_sm120.index_k.query import prepare_query
from sglang.srt.layers.attention.dsv4_sm120 import settings


def compute_q(
    original: Callable[..., Any],
    indexer: Any,
    q_lora: torch.Tensor,
    positions: torch.Tensor,
    weight: torch.Tensor,
    q_lora_quant: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """AROUND hook on ``C4Indexer.compute_q``.

    Returns bf16 queries ``[rows, heads, 128]`` and fp32 weights ``[rows, heads, 1]``: upstream's shapes, and no scale
    of the queries in the weights, since there is none.
    """
    q, _ = indexer.wq_b(q_lora if q_lora_quant is None else q_lora_quant)
    q, weights = prepare_query(
        q.view(-1, indexer.n_local_heads, indexer.head_dim),
        weight,
        indexer.weight_scale,
        torch.view_as_real(indexer.freqs_cis).flatten(-2),
        positions,
        launch=settings.launch(q.device).query,
    )
    return q, weights.unsqueeze(-1)
