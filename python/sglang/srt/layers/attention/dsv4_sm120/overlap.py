"""Overlap of DeepSeek-V4's attention on side streams: whether, for which batches, on which streams.

Upstream forks under graph capture: the window's store, the compressor and the indexer run beside the queries, and in
the indexer queries and head weights beside the keys. That is kept as it is; what is added is the choice.

| ``SGLANG_OPT_USE_MULTI_STREAM_OVERLAP`` | |
|---|---|
| 1 | on, for decode and the verification of drafts, up to ``SGLANG_PD_OVERLAP_MAX_ROWS`` rows |
| 0 | everything on one stream, the shared experts as well, which upstream leaves on theirs |
| not set | 0 where one of our kernels is on, else upstream's own behaviour |

``docs/overlap.md`` says what of this is proven, and how.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch

from sglang.srt.layers.attention.dsv4_sm120.overlap_settings import VARIABLE, chosen_by, is_on, max_rows

logger = logging.getLogger(__name__)
# As upstream hands them to a layer: the first three of its five, and the last two to the indexer.
STREAMS = ("window store", "compressor", "indexer", "index queries", "index weights")
SHARED_WORKSPACE = "flashinfer_cutlass"


class SharedWorkspaceError(RuntimeError):
    """A GEMM of a layer that overlaps works in memory that all streams of the process share."""


def overlaps(rows: int, prefill: bool) -> bool:
    """Whether a batch of ``rows`` rows forks. A prefill's kernels fill the GPU one by one, and its rows are many."""
    return is_on() and not prefill and rows <= max_rows()


def settle(result: None, layer: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``MQALayer.__init__``: no side streams where overlap is off.

    Raises :class:`SharedWorkspaceError` where it is on and cannot be.
    """
    if not is_on():
        layer.alt_streams = layer.alt_streams_indexer = None
        if layer.indexer is not None:
            layer.indexer.alt_streams = None
    elif layer.alt_streams is not None:
        check_workspaces(layer)
    if layer.layer_id == 0:
        logger.info("%s", describe(layer.alt_streams is not None))


def settle_experts(result: None, layer: Any, *args: Any, **kwargs: Any) -> None:
    """AFTER hook on ``DeepseekV4DecoderLayerBase.__init__``: shared experts have no stream of their own where overlap
    is off. Expert parallelism that overlaps communication does so by flags of its own, and keeps it."""
    if not is_on() and not layer.mlp._enable_a2a_moe:
        layer.mlp.alt_stream = None


def prepare(
    original: Callable[..., torch.Tensor],
    layer: Any,
    x: torch.Tensor,
    positions: torch.Tensor,
    forward_batch: Any,
    *args: Any,
    **kwargs: Any,
) -> torch.Tensor:
    """AROUND hook on ``MQALayer._forward_prepare_multi_stream``: a batch that does not fork runs the same kernels in
    the same order of launches, all on the current stream."""
    if overlaps(x.shape[0], forward_batch.forward_mode.is_extend_without_speculative()):
        return original(layer, x, positions, forward_batch, *args, **kwargs)
    with _on_one_stream(layer):
        return original(layer, x, positions, forward_batch, *args, **kwargs)


@contextlib.contextmanager
def _on_one_stream(layer: Any) -> Iterator[None]:
    """Every side stream of ``layer`` is the current one: to wait for it is no wait."""
    here = torch.cuda.current_stream()
    kept, layer.alt_streams = layer.alt_streams, [here] * len(layer.alt_streams)
    indexer = layer.indexer
    if indexer is not None:
        indexer_kept, indexer.alt_streams = indexer.alt_streams, [here] * len(indexer.alt_streams)
    try:
        yield
    finally:
        layer.alt_streams = kept
        if indexer is not None:
            indexer.alt_streams = indexer_kept


def check_workspaces(layer: Any) -> None:
    """Raise :class:`SharedWorkspaceError` for a projection whose GEMM has one workspace per process."""
    for name, module in layer.named_modules():
        backend = getattr(getattr(module, "quant_method", None), "mxfp8_dense_backend", None)
        if getattr(backend, "value", backend) == SHARED_WORKSPACE:
            raise SharedWorkspaceError(
                f"{VARIABLE}=1: {name} of layer {layer.layer_id} multiplies by FlashInfer's CUTLASS kernels, whose "
                f"workspace all streams share; choose another --fp8-gemm-backend or set {VARIABLE}=0"
            )


def state() -> dict[str, Any]:
    """For status: whether batches overlap, who chose, up to how many rows, on which streams."""
    return {
        "overlap": is_on(),
        "chosen_by": chosen_by(),
        "max_rows": max_rows() if is_on() else 0,
        "streams": list(STREAMS) if is_on() else [],
    }


def describe(has_streams: bool) -> str:
    """One line for the log."""
    if not is_on():
        return f"DeepSeek-V4 attention runs on one stream ({chosen_by()})"
    if not has_streams:
        return f"DeepSeek-V4 attention runs on one stream: no side streams here ({chosen_by()})"
    streams = ", ".join(STREAMS)
    return f"DeepSeek-V4 attention overlaps in graphs of up to {max_rows()} rows ({chosen_by()}): main, {streams}"
