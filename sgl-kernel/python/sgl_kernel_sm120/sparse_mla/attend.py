"""Sparse attention of one row's heads over its candidates, by tiles of keys on the matrix unit.

A program takes 16 heads of a row and a share of its candidates, of the sliding window first and then of the selected
keys, and reads each key once, as ``[8, 64]``: seven tiles of FP8 values times their scale, one of bf16. Both are exact
in bf16, so the products are those of the stored values. Shares are cut from a row's true lengths at run time: the grid
depends on shapes only, and a captured graph stays valid for any lengths.

With one split the program writes the result; with more, each writes an fp32 part and its LSE, base 2, for
:mod:`.merge`. Nothing is added atomically, so that a repeated call gives the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from sgl_kernel_sm120.interpret import to_bf16

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def load_keys(pages, index, slots, units, UPCAST: tl.constexpr):
    """Keys ``[8, slots of index, 64]``, by tiles; zeros where ``index`` is below 0, whatever memory holds there.

    ``units``: stride of a page in 64 bytes, in which rows and strides are counted here: it tells the compiler how
    addresses are aligned.
    """
    tile, dim = tl.arange(0, 8), tl.arange(0, 64)
    valid = index >= 0
    safe = tl.where(valid, index, 0)
    page = safe // slots
    slot = safe - page * slots
    page = page.to(tl.int64) * units
    at = page + slot * 9
    packed = (tile < 7)[:, None] & valid[None, :]
    last = (tile == 7)[:, None] & valid[None, :]
    fp8 = pages.to(tl.pointer_type(tl.float8e4nv))
    values = tl.load(
        fp8 + (at[None, :, None] + tile[:, None, None]) * 64 + dim[None, None, :], mask=packed[:, :, None], other=0.0
    )
    exponent = tl.load(pages + (page * 64 + slots * 576 + slot * 8)[None, :] + tile[:, None], mask=packed, other=0)
    # Asked for in the shape of the rest, so that it is loaded in the same layout and only once.
    bf16 = pages.to(tl.pointer_type(tl.bfloat16))
    rope = tl.load(
        bf16 + (at[None, :, None] + tile[:, None, None]) * 32 + dim[None, None, :], mask=last[:, :, None], other=0.0
    )
    if UPCAST:
        scale = (exponent.to(tl.int32) << 23).to(tl.float32, bitcast=True)
        values, rope = values.to(tl.float32), rope.to(tl.float32)
    else:
        scale = (exponent.to(tl.int16) << 7).to(tl.bfloat16, bitcast=True)
        values = values.to(tl.bfloat16)
    return tl.where((tile < 7)[:, None, None], values * scale[:, :, None], rope)


@triton.jit(do_not_specialize=["window_slots", "window_units", "extra_slots", "extra_units", "has_extra", "heads",
                               "window_stride", "extra_stride", "window_width", "extra_width"])  # fmt: skip
def attend_kernel(
    q,
    window,
    window_indices,
    window_lens,
    extra,
    extra_indices,
    extra_lens,
    sink,
    out,
    lse,
    part_out,
    part_lse,
    scale,
    heads,
    q_row_stride,
    q_head_stride,
    window_slots,
    window_units,
    window_stride,
    window_width,
    extra_slots,
    extra_units,
    extra_stride,
    extra_width,
    has_extra,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    ROUND: tl.constexpr,
    UPCAST: tl.constexpr,
):
    # Head blocks of one row and split run side by side: what one reads of a key, the others find in the L2 cache.
    split, splits = tl.program_id(1), tl.num_programs(1)
    row = tl.program_id(2).to(tl.int64)
    head, dim = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H), tl.arange(0, 512)
    real = head < heads
    tile, within = tl.arange(0, 8), tl.arange(0, 64)
    at = row * q_row_stride + head.to(tl.int64) * q_head_stride
    at = at[None, :, None] + (tile * 64)[:, None, None] + within[None, None, :]
    query = tl.load(q + at, mask=real[None, :, None], other=0.0)
    if UPCAST:
        query = query.to(tl.float32)

    window_length = tl.maximum(tl.minimum(tl.load(window_lens + row), window_width), 0)
    extra_length = tl.maximum(tl.minimum(tl.load(extra_lens + row), extra_width), 0) * has_extra
    window_tiles = (window_length + BLOCK_T - 1) // BLOCK_T
    tiles = window_tiles + (extra_length + BLOCK_T - 1) // BLOCK_T
    first, last = tiles * split // splits, tiles * (split + 1) // splits
    window_indices += row * window_stride
    extra_indices += row * extra_stride

    # Largest score so far (times log2 e), sum of 2 ** (score - peak), and that sum weighted with the keys.
    peak = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.full((BLOCK_H,), 0.0, tl.float32)
    acc = tl.full((BLOCK_H, 512), 0.0, tl.float32)
    t = tl.arange(0, BLOCK_T)
    for tile in range(first, last):
        if tile < window_tiles:
            pages, slots, units = window, window_slots, window_units
            n = tile * BLOCK_T + t
            index = tl.load(window_indices + n, mask=n < window_length, other=-1)
        else:
            pages, slots, units = extra, extra_slots, extra_units
            n = (tile - window_tiles) * BLOCK_T + t
            index = tl.load(extra_indices + n, mask=n < extra_length, other=-1)
        keys = load_keys(pages, index, slots, units, UPCAST)
        # Each of eight warps multiplies one tile of 64 values, and the eight products are added.
        scores = tl.sum(tl.dot(query, tl.permute(keys, (0, 2, 1))), axis=0) * (scale * LOG2E)
        scores = tl.where((index >= 0)[None, :], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(weights, axis=1)
        acc *= decay[:, None]
        values = tl.reshape(tl.permute(keys, (1, 0, 2)), (BLOCK_T, 512))
        acc += tl.dot(weights if UPCAST else weights.to(tl.bfloat16), values)
        peak = higher

    seen = total > 0.0
    level = tl.where(seen, peak + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
    if splits == 1:
        # The sink takes part in the denominator only. A row that sees nothing is zero.
        rest = tl.exp2(tl.load(sink + head, mask=real, other=0.0) * LOG2E - tl.where(seen, peak, 0.0))
        result = acc / tl.where(seen, total + rest, 1.0)[:, None]
        place = (row * heads + head)[:, None] * 512 + dim[None, :]
        tl.store(out + place, to_bf16(result, UPCAST) if ROUND else result, mask=real[:, None])
        tl.store(lse + row * heads + head, level * LN2, mask=real)
    else:
        result = acc / tl.where(seen, total, 1.0)[:, None]
        slot = (row * splits + split) * heads + head
        tl.store(part_out + slot[:, None] * 512 + dim[None, :], result, mask=real[:, None])
        tl.store(part_lse + slot, level, mask=real)
