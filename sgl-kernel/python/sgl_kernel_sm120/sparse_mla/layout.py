"""A page of DeepSeek-V4's FP8 + rope KV, and the lists of candidates that a row attends to.

A page of ``slots`` slots holds their data first, 576 bytes each, and then their scales, 8 bytes each:

    data    448 FP8 (e4m3) values in 7 tiles of 64, then 64 bf16 values that carry the rope
    scales  7 exponents, one per tile (2 ** (byte - 127)), and a byte of padding

and is padded to a multiple of 576 bytes: 256 slots for the sliding window, 64 for C4, 2 (1728 bytes) for C128. Pages
are therefore addressed by their stride. A key is its own value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sgl_kernel_sm120.index_k.layout import ShapeError, check
from sgl_kernel_sm120.sparse_mla.shape import BLOCK_H, HEAD_DIM

TILE = 64  # values that share a scale
TILES = 7  # of FP8 values; the eighth tile is bf16
ROW_BYTES = 576
SCALE_BYTES = 8
SLOT_BYTES = ROW_BYTES + SCALE_BYTES

__all__ = ["BLOCK_H", "HEAD_DIM", "Candidates", "ShapeError", "as_pages", "check_query", "page_bytes"]


def page_bytes(slots: int) -> int:
    """Bytes of a page of ``slots`` slots, padding included."""
    return -(-slots * SLOT_BYTES // ROW_BYTES) * ROW_BYTES


def as_pages(view: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Pages with their padding, from the view that upstream hands its kernels.

    ``view``: one byte per element, ``[pages, slots, 1, 584]``, of which only the stride of the first dimension is true.
    Returns uint8 ``[pages, stride]`` of the same memory, and the slots of a page. Raises :class:`ShapeError`.
    """
    check(
        view.dim() == 4 and view.element_size() == 1 and tuple(view.shape[2:]) == (1, SLOT_BYTES),
        f"KV must be [pages, slots, 1, {SLOT_BYTES}] of bytes, not {view.dtype} {list(view.shape)}",
    )
    stride = view.stride(0)
    return view.as_strided((view.shape[0], stride), (stride, 1)).view(torch.uint8), view.shape[1]


@dataclass(frozen=True)
class Candidates:
    """What each row may attend to in one cache.

    Args:
        pages: uint8 ``[pages, stride]``, 16-byte aligned, the stride a multiple of 64.
        slots: of a page.
        indices: int32 ``[rows, width]``, rows contiguous: slots over all pages; below 0 there is none.
        lens: int32 ``[rows]``: only the first so many of a row's indices count; more than ``width`` is cut.

    Raises :class:`ShapeError` that names the wrong one.
    """

    pages: torch.Tensor
    slots: int
    indices: torch.Tensor
    lens: torch.Tensor

    def __post_init__(self) -> None:
        pages, indices, lens = self.pages, self.indices, self.lens
        check(
            pages.dtype == torch.uint8 and pages.dim() == 2 and pages.is_contiguous(),
            f"pages must be contiguous uint8 [pages, stride], not {pages.dtype} {list(pages.shape)}",
        )
        check(
            pages.shape[1] % 64 == 0 and pages.shape[1] >= self.slots * SLOT_BYTES,
            f"a page of {self.slots} slots has {pages.shape[1]} bytes, not {page_bytes(self.slots)}",
        )
        check(pages.data_ptr() % 16 == 0, "pages must be aligned to 16 bytes")
        check(
            indices.dtype == torch.int32 and indices.dim() == 2 and indices.stride(1) == 1,
            f"indices must be int32 [rows, width], not {indices.dtype} {list(indices.shape)}",
        )
        check(
            lens.dtype == torch.int32 and tuple(lens.shape) == (indices.shape[0],) and lens.is_contiguous(),
            f"lens must be contiguous int32 [{indices.shape[0]}], not {lens.dtype} {list(lens.shape)}",
        )

    @property
    def width(self) -> int:
        return self.indices.shape[1]


def check_query(
    q: torch.Tensor, window: Candidates, extra: Candidates | None, sink: torch.Tensor, out: torch.Tensor
) -> None:
    """Raise :class:`ShapeError` unless the arguments of a decode fit each other; see there."""
    check(
        q.dtype == torch.bfloat16
        and q.dim() == 3
        and q.shape[2] == HEAD_DIM
        and q.stride(2) == 1
        and q.stride(0) % 16 == q.stride(1) % 16 == q.data_ptr() % 16 == 0,
        f"q must be bfloat16 [rows, heads, {HEAD_DIM}] with aligned rows, not {q.dtype} {list(q.shape)}",
    )
    rows, heads = q.shape[:2]
    lists = [one for one in (window, extra) if one is not None]
    for one in lists:
        check(one.lens.shape[0] == rows, f"candidates of {one.lens.shape[0]} rows, q has {rows}")
    check(
        sink.dtype == torch.float32 and tuple(sink.shape) == (heads,) and sink.is_contiguous(),
        f"sink must be contiguous float32 [{heads}], not {sink.dtype} {list(sink.shape)}",
    )
    check(
        out.dtype in (torch.bfloat16, torch.float32) and out.shape == q.shape and out.is_contiguous(),
        f"out must be contiguous bfloat16 or float32 {list(q.shape)}, not {out.dtype} {list(out.shape)}",
    )
    tensors = [q, sink, out, *(t for one in lists for t in (one.pages, one.indices, one.lens))]
    devices = {tensor.device for tensor in tensors}
    check(len(devices) == 1, f"all tensors must be on one device, not {sorted(map(str, devices))}")
