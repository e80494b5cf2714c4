"""Scoring keys and choosing the best: upstream's preparation, our logits, upstream's top-k.

Upstream's method views the pool as FP8 or FP4 pages in the middle, so it is replaced as a whole; what is left of it
here is the order of its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from sgl_kernel_sm120.index_k.decode_logits import decode_logits
from sgl_kernel_sm120.index_k.prefill_logits import prefill_logits, row_chunks
from sglang.srt.layers.attention.dsv4_sm120 import settings
from sglang.srt.layers.attention.dsv4_sm120.pool import keys_of
from sglang.srt.layers.attention.dsv4_sm120.topk import choose, plan_of


def forward_c4_indexer(
    original: Callable[..., None],
    backend: Any,
    x: torch.Tensor,
    q_lora: torch.Tensor,
    c4_indexer: Any,
    forward_batch: Any,
    alt_streams: Any = None,
    enable_multi_stream: bool = False,
    q_lora_ready: Any = None,
    skip_compressor: bool = False,
    q_lora_quant: Any = None,
) -> None:
    """AROUND hook on ``C4IndexerBackendMixin.forward_c4_indexer``: fills ``c4_sparse_page_indices`` of the backend's
    metadata with the slots of each row's best keys, -1 where it has fewer."""
    if forward_batch.forward_mode.is_idle():
        return
    core, indexed = backend.forward_metadata.core_metadata, backend.forward_metadata.indexer_metadata
    rows = min(x.shape[0], q_lora.shape[0], core.positions.shape[0])
    shared = {
        "x": x[:rows],
        "q_lora": q_lora[:rows],
        "c4_indexer": c4_indexer,
        "positions": core.positions[:rows],
        "forward_batch": forward_batch,
    }
    if enable_multi_stream:
        q, weights = backend._forward_prepare_multi_stream(**shared, alt_streams=alt_streams, q_lora_ready=q_lora_ready)
    else:
        q, weights = backend._forward_prepare_normal(
            **shared, skip_compressor=skip_compressor, q_lora_quant=q_lora_quant if len(q_lora) == rows else None
        )
    if backend.debug_use_external_c4_sparse_indices:
        return

    lens = _fitted(indexed.compressed_seq_lens.reshape(-1), rows, 1).to(torch.int32)
    table = _fitted(indexed.page_table, rows, 0)
    slots = _fitted(core.c4_sparse_page_indices, rows, -1)
    raw, capturer = _raw_indices(core, slots)
    keys = keys_of(backend.token_to_kv_pool, c4_indexer.layer_id)
    launch = settings.launch(q.device)
    decode = forward_batch.forward_mode.is_decode()
    for part in row_chunks(rows, indexed.max_compressed_seq_len, settings.scratch_bytes(), launch.prefill.rows):
        plan = plan_of(backend, indexed, lens, part)
        query = (q[part], keys, weights[part].squeeze(-1), table[part], lens[part])
        if decode:
            scores = decode_logits(*query, launch=launch.decode, multiprocessors=settings.multiprocessors(q.device))
        else:
            scores = prefill_logits(*query, launch=launch.prefill)
        choose(backend, indexed, scores, lens, table, slots, raw, part, plan)
        del scores  # before the next part allocates its own
    if capturer is not None:
        layer = backend.token_to_kv_pool.layer_mapping[c4_indexer.layer_id].compress_layer_id
        capturer.capture(layer, raw)


def _fitted(tensor: torch.Tensor, rows: int, value: int) -> torch.Tensor:
    """``tensor`` cut to so many rows, or with rows of ``value`` added: a captured graph pads batches."""
    missing = rows - tensor.shape[0]
    return tensor[:rows] if missing <= 0 else F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, missing), value=value)


def _raw_indices(core: Any, slots: torch.Tensor) -> tuple[torch.Tensor | None, Any]:
    """Where positions of the chosen keys go beside their slots, if anybody asked; and upstream's recorder of them."""
    from sglang.srt.state_capturer.indexer_topk import get_global_indexer_capturer

    capturer = get_global_indexer_capturer()
    if core.c4_sparse_raw_indices is not None:
        return core.c4_sparse_raw_indices, capturer
    return (None if capturer is None else torch.empty_like(slots)), capturer
