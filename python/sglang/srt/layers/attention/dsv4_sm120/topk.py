"""Upstream's top-k over a part of the rows, by whichever of its implementations the server was started with."""

from __future__ import annotations

from typing import Any

import torch


def plan_of(backend: Any, indexed: Any, lens: torch.Tensor, part: slice) -> torch.Tensor | None:
    """How upstream's second top-k divides the rows of ``part``; None for the others, which need no plan.

    To be asked for before the scores are computed: that top-k reads its plan before it waits for the launch before it.
    """
    from sglang.srt.layers.attention.dsv4 import indexer as upstream

    if not backend.dsa_topk_backend.should_use_topk_v2():
        return None
    # The plan that comes with the metadata is for all rows at once.
    whole = part.start == 0 and part.stop == len(lens) == len(indexed.compressed_seq_lens)
    return indexed.topk_metadata if whole else upstream.plan_topk_v2(lens[part])


def choose(
    backend: Any,
    indexed: Any,
    scores: torch.Tensor,
    lens: torch.Tensor,
    table: torch.Tensor,
    slots: torch.Tensor,
    raw: torch.Tensor | None,
    part: slice,
    plan: torch.Tensor | None,
) -> None:
    """Write the slots (and positions, with ``raw``) of each row's best keys.

    ``scores``: fp32 ``[part, width]``, of which ``[row, :lens[row]]`` counts. ``lens``, ``table``, ``slots``, ``raw``:
    of all rows. ``indexed``: upstream's ``PagedIndexerMetadata``. ``plan``: by :func:`plan_of`.
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
        upstream.topk_transform_paged_v2(*chosen, plan, positions)
    else:
        upstream.topk_transform_paged(*chosen, positions)
