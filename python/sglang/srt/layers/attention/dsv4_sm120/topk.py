"""Upstream's top-k over a part of the rows, by whichever of its implementations the server was started with."""

from __future__ import annotations

from typing import Any

import torch


def choose(
    backend: Any,
    indexed: Any,
    scores: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    raw: torch.Tensor | None,
    part: slice,
) -> None:
    """Write the slots (and positions, with ``raw``) of each row's best keys.

    ``scores``: fp32 ``[part, width]``, of which ``[row, :lens[row]]`` counts. ``lens``, ``table``, ``slots``, ``raw``:
    of all rows. ``indexed``: upstream's ``PagedIndexerMetadata``.
    """
    from sglang.srt.layers.attention.dsv4 import indexer as upstream

    kind = backend.dsa_topk_backend
    chosen = (
        scores,
        lens[part],
        table[part],
        slots[part],
        indexed.compressed_page_size,
    )
    positions = None if raw is None else raw[part]
    if kind.is_torch():
        upstream.topk_transform_pytorch_vectorized(*chosen, positions)
    elif kind.is_flashinfer():
        backend.flashinfer_topk_transform(*chosen, positions)
    elif kind.should_use_topk_v2():
        # The plan that comes with the metadata is for all rows at once.
        whole = part.start == 0 and part.stop == len(lens) == len(indexed.compressed_seq_lens)
        plan = indexed.topk_metadata if whole else upstream.plan_topk_v2(lens[part])
        upstream.topk_transform_paged_v2(*chosen, plan, positions)
    else:
        upstream.topk_transform_paged(*chosen, positions)
