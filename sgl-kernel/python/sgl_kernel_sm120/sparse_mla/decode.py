"""Sparse attention of decode rows: one launch over window and selected keys, and a merge where they are split."""

from __future__ import annotations

import torch

from sgl_kernel_sm120.interpret import is_interpreted
from sgl_kernel_sm120.sparse_mla.attend import attend_kernel
from sgl_kernel_sm120.sparse_mla.launch import MAX_SPLITS, AttendLaunch
from sgl_kernel_sm120.sparse_mla.layout import BLOCK_H, HEAD_DIM, Candidates, check, check_query
from sgl_kernel_sm120.sparse_mla.merge import merge_kernel

MERGE_WARPS = 4
MERGE_SPLITS = 8  # parts that are on their way at a time


def sparse_decode(
    q: torch.Tensor,
    window: Candidates,
    extra: Candidates | None,
    sink: torch.Tensor,
    scale: float,
    *,
    launch: AttendLaunch,
    splits: int,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each row over its candidates, a row being one token of a request.

    Args:
        q: bf16 ``[rows, heads, 512]``; any number of heads, computed by 16.
        window: the sliding window's candidates; extra: the selected keys', None where a layer has none.
        sink: fp32 ``[heads]``, a score (natural) that takes part in the softmax and has no value; -inf for none.
        scale: of the scores.
        splits: programs that a row's candidates are divided among, from 1; see :mod:`.split`.

    Returns bf16 ``[rows, heads, 512]`` (or ``out``, bf16 or fp32) and fp32 LSE ``[rows, heads]``, natural and without
    the sink. A row without candidates is zero and its LSE is -inf. More than one split takes
    :func:`~.split.scratch_bytes` of memory for the time of the call, from the allocator of the current stream: under
    graph capture that is the graph's own pool. Raises :class:`~.layout.ShapeError`.
    """
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device) if out is None else out
    check_query(q, window, extra, sink, out)
    check(1 <= splits <= MAX_SPLITS, f"splits must be 1 to {MAX_SPLITS}, not {splits}")
    rows, heads = q.shape[:2]
    lse = torch.empty((rows, heads), dtype=torch.float32, device=q.device)
    if not rows:
        return out, lse
    part_out, part_lse = out, lse  # not written to
    if splits > 1:
        part_out = torch.empty((rows, splits, heads, HEAD_DIM), dtype=torch.float32, device=q.device)
        part_lse = torch.empty((rows, splits, heads), dtype=torch.float32, device=q.device)
    selected = window if extra is None else extra
    rounded, upcast = out.dtype == torch.bfloat16, is_interpreted(attend_kernel)
    attend_kernel[(-(-heads // BLOCK_H), splits, rows)](
        q,
        window.pages,
        window.indices,
        window.lens,
        selected.pages,
        selected.indices,
        selected.lens,
        sink,
        out,
        lse,
        part_out,
        part_lse,
        scale,
        heads,
        q.stride(0),
        q.stride(1),
        window.slots,
        window.pages.shape[1] // 64,
        window.indices.stride(0),
        window.width,
        selected.slots,
        selected.pages.shape[1] // 64,
        selected.indices.stride(0),
        selected.width,
        int(extra is not None),
        BLOCK_T=launch.block_t,
        BLOCK_H=BLOCK_H,
        ROUND=rounded,
        UPCAST=upcast,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if splits > 1:
        merge_kernel[(heads, rows)](
            part_out,
            part_lse,
            sink,
            out,
            lse,
            heads,
            splits,
            MAX_SPLITS=MAX_SPLITS,
            BLOCK_S=MERGE_SPLITS,
            ROUND=rounded,
            UPCAST=upcast,
            num_warps=MERGE_WARPS,
        )
    return out, lse
