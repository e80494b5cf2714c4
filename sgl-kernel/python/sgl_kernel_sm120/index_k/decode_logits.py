"""Logits of one query row per request over its paged keys, the keys split over programs.

Memory decides the time: each key is 256 bytes and read once. With few requests a row alone does not fill the GPU, so
every row's keys are divided among ``splits`` programs, by its length at run time: the grid depends on shapes only, and
a captured graph stays valid for any lengths.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sgl_kernel_sm120.index_k.launch import DecodeLaunch
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS, check_paged_query, logits_out
from sgl_kernel_sm120.interpret import is_interpreted


@triton.jit
def decode_logits_kernel(
    q,
    keys,
    weights,
    page_table,
    lens,
    out,
    weights_stride,
    table_stride,
    out_stride,
    width,
    HEADS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SLOTS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64)
    length = tl.minimum(tl.load(lens + row), width)
    blocks = tl.cdiv(length, BLOCK_KEYS)
    share = tl.cdiv(blocks, tl.num_programs(0))
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, blocks)

    head, dim, slot = tl.arange(0, HEADS), tl.arange(0, HEAD_DIM), tl.arange(0, BLOCK_KEYS)
    query = tl.load(q + row * HEADS * HEAD_DIM + head[:, None] * HEAD_DIM + dim[None, :])
    weight = tl.load(weights + row * weights_stride + head)
    if UPCAST:
        query = query.to(tl.float32)
    table = page_table + row * table_stride
    page = tl.load(table + first * BLOCK_KEYS // PAGE_SLOTS, mask=first < last, other=-1)
    for block in range(first, last):
        # The page of the next block is asked for now, so that no load of keys waits for a load of its page.
        following = tl.load(table + (block + 1) * BLOCK_KEYS // PAGE_SLOTS, mask=block + 1 < last, other=-1)
        n = block * BLOCK_KEYS + slot
        place = page.to(tl.int64) * (PAGE_SLOTS * HEAD_DIM) + block * BLOCK_KEYS % PAGE_SLOTS * HEAD_DIM
        # A slot past the length may hold anything, NaN included: it is neither read nor written.
        valid = (n < length) & (page >= 0)
        key = tl.load(keys + place + (slot * HEAD_DIM)[:, None] + dim[None, :], mask=valid[:, None], other=0.0)
        if UPCAST:
            key = key.to(tl.float32)
        score = tl.maximum(tl.dot(query, tl.trans(key)), 0.0)
        logit = tl.sum(score * weight[:, None], axis=0)
        tl.store(out + row * out_stride + n, tl.where(page >= 0, logit, float("-inf")), mask=n < length)
        page = following


def splits_for(rows: int, width: int, multiprocessors: int, launch: DecodeLaunch) -> int:
    """Programs per row: enough that all rows together come to ``launch.programs`` per multiprocessor, and no more than
    there are blocks of keys in ``width``."""
    wanted = triton.cdiv(multiprocessors * launch.programs, rows)
    return max(1, min(wanted, triton.cdiv(width, launch.block_keys)))


def decode_logits(
    q: torch.Tensor,
    keys: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lens: torch.Tensor,
    *,
    launch: DecodeLaunch,
    multiprocessors: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of each row over the keys that its page table names.

    Args:
        q: bf16 ``[rows, heads, 128]``, contiguous; heads a power of two from 16.
        keys: bf16 ``[pages, 64, 128]``.
        weights: fp32 ``[rows, heads]``.
        page_table: int32 ``[rows, n]``; key ``i`` of a row is ``keys[page_table[row, i // 64], i % 64]``. A page of -1
            has no keys: its logits are -inf.
        lens: int32 ``[rows]``, keys of each row, 0 allowed; more than ``64 * n`` is cut.
        multiprocessors: of the GPU, which the splits are made for.

    Returns fp32 ``[rows, 64 * n]``, of which only ``[row, :lens[row]]`` is written; the rest is what it was. Raises
    :class:`~.layout.ShapeError`.
    """
    check_paged_query(q, keys, weights, page_table, lens)
    out = logits_out(page_table, out)
    rows, heads = q.shape[:2]
    if not out.numel():
        return out
    grid = (splits_for(rows, out.shape[1], multiprocessors, launch), rows)
    decode_logits_kernel[grid](
        q,
        keys,
        weights,
        page_table,
        lens,
        out,
        weights.stride(0),
        page_table.stride(0),
        out.stride(0),
        out.shape[1],
        HEADS=heads,
        BLOCK_KEYS=launch.block_keys,
        HEAD_DIM=HEAD_DIM,
        PAGE_SLOTS=PAGE_SLOTS,
        UPCAST=is_interpreted(decode_logits_kernel),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out
