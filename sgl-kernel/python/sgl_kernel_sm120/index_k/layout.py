"""The layout of a page of bf16 index keys, and the shapes that the kernels are written for.

A page holds 64 slots of one compressed key each: 128 bf16 values, 256 bytes, no scales. Pools keep pages as rows of
bytes, ``[pages, 16384]`` uint8, since transfer and offload code moves rows of bytes; kernels see them as bf16.
"""

from __future__ import annotations

import torch

HEAD_DIM = 128
ROPE_DIM = 64  # the last values of a key or query, in pairs (real, imaginary)
PAGE_SLOTS = 64
SLOT_BYTES = HEAD_DIM * 2
PAGE_BYTES = PAGE_SLOTS * SLOT_BYTES
COMPRESS_RATIO = 4  # tokens per key


class ShapeError(ValueError):
    """A tensor has another shape, type, stride or device than an op takes; the message names it."""


def check(condition: bool, message: str) -> None:
    """Raise :class:`ShapeError` unless ``condition``."""
    if not condition:
        raise ShapeError(message)


def as_keys(pages: torch.Tensor) -> torch.Tensor:
    """A pool's rows of bytes as keys.

    ``pages``: uint8 ``[pages, 16384]``, rows contiguous. Returns a view, bf16 ``[pages, 64, 128]``. Raises
    :class:`ShapeError`.
    """
    check(
        pages.dtype == torch.uint8 and pages.dim() == 2 and pages.shape[1] == PAGE_BYTES and pages.is_contiguous(),
        f"pages must be contiguous uint8 [pages, {PAGE_BYTES}], not {pages.dtype} {list(pages.shape)}",
    )
    return pages.view(torch.bfloat16).view(pages.shape[0], PAGE_SLOTS, HEAD_DIM)


def check_rope(freqs: torch.Tensor) -> None:
    """``freqs``: fp32 ``[positions, 64]``, for each pair its cosine and sine in turn. Raises :class:`ShapeError`."""
    check(
        freqs.dtype == torch.float32 and freqs.dim() == 2 and freqs.shape[1] == ROPE_DIM and freqs.is_contiguous(),
        f"freqs must be contiguous float32 [positions, {ROPE_DIM}], not {freqs.dtype} {list(freqs.shape)}",
    )


def check_paged_query(
    q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor, page_table: torch.Tensor, lens: torch.Tensor
) -> None:
    """The arguments that both logits ops take; see there. Raises :class:`ShapeError` that names the wrong one."""
    rows, heads = q.shape[:2]
    check(
        q.dtype == torch.bfloat16 and q.dim() == 3 and q.shape[2] == HEAD_DIM and q.is_contiguous(),
        f"q must be contiguous bfloat16 [rows, heads, {HEAD_DIM}], not {q.dtype} {list(q.shape)}",
    )
    check(heads >= 16 and heads & (heads - 1) == 0, f"heads must be a power of two from 16, not {heads}")
    check(
        keys.dtype == torch.bfloat16 and tuple(keys.shape[1:]) == (PAGE_SLOTS, HEAD_DIM) and keys.is_contiguous(),
        f"keys must be contiguous bfloat16 [pages, {PAGE_SLOTS}, {HEAD_DIM}], not {keys.dtype} {list(keys.shape)}",
    )
    check(
        weights.dtype == torch.float32 and tuple(weights.shape) == (rows, heads) and weights.stride(1) == 1,
        f"weights must be float32 [{rows}, {heads}], not {weights.dtype} {list(weights.shape)}",
    )
    check(
        page_table.dtype == torch.int32
        and page_table.dim() == 2
        and page_table.shape[0] == rows
        and page_table.stride(1) == 1,
        f"page_table must be int32 [{rows}, pages], not {page_table.dtype} {list(page_table.shape)}",
    )
    check(
        lens.dtype == torch.int32 and tuple(lens.shape) == (rows,) and lens.is_contiguous(),
        f"lens must be contiguous int32 [{rows}], not {lens.dtype} {list(lens.shape)}",
    )
    devices = {tensor.device for tensor in (q, keys, weights, page_table, lens)}
    check(len(devices) == 1, f"all tensors must be on one device, not {sorted(map(str, devices))}")


def logits_out(page_table: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The tensor that logits go to: ``out`` checked, or a new one, fp32 ``[rows, pages * 64]``, not initialised."""
    rows, pages = page_table.shape
    if out is None:
        return torch.empty((rows, pages * PAGE_SLOTS), dtype=torch.float32, device=page_table.device)
    check(
        out.dtype == torch.float32
        and tuple(out.shape) == (rows, pages * PAGE_SLOTS)
        and out.stride(1) == 1
        and out.device == page_table.device,
        f"out must be float32 [{rows}, {pages * PAGE_SLOTS}], not {out.dtype} {list(out.shape)}",
    )
    return out
