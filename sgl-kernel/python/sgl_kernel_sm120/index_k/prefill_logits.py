"""Logits of many query rows per request, rows beside each other sharing the keys they read; and the chunks of rows.

A program takes a few rows and a run of pages. Rows of one request name the same pages, so a block of keys is read once
and multiplied with the heads of all rows at once. Where neighbours belong to different requests the program goes row by
row. It finds out from the page table alone, so no list of requests is needed and any mix of rows is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from sgl_kernel_sm120.index_k.launch import PrefillLaunch
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS, check_paged_query, logits_out
from sgl_kernel_sm120.interpret import is_interpreted

PAGES = 16  # pages that a program scores its rows against


# Numbers that change from batch to batch make no variants, which would be compiled while serving.
@triton.jit(do_not_specialize=["num_rows"])
def prefill_logits_kernel(
    q,
    keys,
    weights,
    page_table,
    lens,
    out,
    num_rows,
    weights_stride,
    table_stride,
    out_stride,
    width,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    PAGES: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    PAGE_SLOTS: tl.constexpr,
    UPCAST: tl.constexpr,
):
    start = tl.program_id(0).to(tl.int64) * ROWS
    row = start + tl.arange(0, ROWS)
    live = row < num_rows
    length = tl.minimum(tl.load(lens + row, mask=live, other=0), width)
    longest = tl.max(length, axis=0)
    first_page = tl.program_id(1) * PAGES
    if first_page * PAGE_SLOTS < longest:
        lead = start + tl.argmax(length, axis=0)
        run = first_page + tl.arange(0, PAGES)
        has = run[None, :] * PAGE_SLOTS < length[:, None]
        named = tl.load(page_table + row[:, None] * table_stride + run[None, :], mask=has, other=-1)
        led = tl.load(page_table + lead * table_stride + run, mask=run * PAGE_SLOTS < longest, other=-1)
        strangers = tl.sum(tl.sum((has & (named != led[None, :])).to(tl.int32), axis=1), axis=0)

        head, dim = tl.arange(0, ROWS * HEADS), tl.arange(0, HEAD_DIM)  # head: of all rows, one row after the other
        inside = start + head // HEADS < num_rows
        at = start * HEADS * HEAD_DIM + head * HEAD_DIM
        query = tl.load(q + at[:, None] + dim[None, :], mask=inside[:, None], other=0.0)
        weight = tl.load(weights + (start + head // HEADS) * weights_stride + head % HEADS, mask=inside, other=0.0)
        if UPCAST:
            query = query.to(tl.float32)
        first = first_page * (PAGE_SLOTS // BLOCK_KEYS)
        last = tl.minimum(first + PAGES * (PAGE_SLOTS // BLOCK_KEYS), tl.cdiv(longest, BLOCK_KEYS))
        # Usual: all rows take their keys from one row's pages. Else: each row in turn, its logits alone written.
        turns = tl.where(strangers == 0, 1, ROWS)
        for turn in range(0, turns):
            source = tl.where(strangers == 0, lead, start + turn)
            write = live & ((strangers == 0) | (row == source))
            readable = tl.max(tl.where(write, length, 0), axis=0)
            table = page_table + source * table_stride
            page = tl.load(table + first_page, mask=first_page * PAGE_SLOTS < readable, other=-1)
            for block in range(first, tl.minimum(last, tl.cdiv(readable, BLOCK_KEYS))):
                after = (block + 1) * BLOCK_KEYS
                following = tl.load(table + after // PAGE_SLOTS, mask=after < readable, other=-1)
                n = block * BLOCK_KEYS + tl.arange(0, BLOCK_KEYS)
                place = page.to(tl.int64) * (PAGE_SLOTS * HEAD_DIM) + block * BLOCK_KEYS % PAGE_SLOTS * HEAD_DIM
                slot = tl.arange(0, BLOCK_KEYS) * HEAD_DIM
                valid = (n < readable) & (page >= 0)
                key = tl.load(keys + place + slot[:, None] + dim[None, :], mask=valid[:, None], other=0.0)
                if UPCAST:
                    key = key.to(tl.float32)
                score = tl.maximum(tl.dot(query, tl.trans(key)), 0.0) * weight[:, None]
                logit = tl.sum(tl.reshape(score, (ROWS, HEADS, BLOCK_KEYS)), axis=1)
                tl.store(
                    out + row[:, None] * out_stride + n[None, :],
                    tl.where(page >= 0, logit, float("-inf")),
                    mask=write[:, None] & (n[None, :] < length[:, None]),
                )
                page = following


def prefill_logits(
    q: torch.Tensor,
    keys: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lens: torch.Tensor,
    *,
    launch: PrefillLaunch,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of each row over the keys that its page table names: arguments, result and errors as those of
    :func:`~.decode_logits.decode_logits`. Fast where neighbouring rows have the same table, right in any case."""
    check_paged_query(q, keys, weights, page_table, lens)
    out = logits_out(page_table, out)
    rows, heads = q.shape[:2]
    if not out.numel():
        return out
    grid = (triton.cdiv(rows, launch.rows), triton.cdiv(page_table.shape[1], PAGES))
    prefill_logits_kernel[grid](
        q,
        keys,
        weights,
        page_table,
        lens,
        out,
        rows,
        weights.stride(0),
        page_table.stride(0),
        out.stride(0),
        out.shape[1],
        HEADS=heads,
        ROWS=launch.rows,
        PAGES=PAGES,
        BLOCK_KEYS=launch.block_keys,
        HEAD_DIM=HEAD_DIM,
        PAGE_SLOTS=PAGE_SLOTS,
        UPCAST=is_interpreted(prefill_logits_kernel),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out


def row_chunks(rows: int, width: int, budget_bytes: int, multiple: int = 1) -> Iterator[slice]:
    """Slices of the rows such that one slice's logits, fp32 ``[slice, width]``, take at most ``budget_bytes``.

    A slice has a ``multiple`` of rows where the budget allows, and one row at least, whatever the budget. ``width`` is
    in keys.
    """
    fit = max(1, budget_bytes // (4 * max(width, 1)))
    step = fit // multiple * multiple or fit
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
