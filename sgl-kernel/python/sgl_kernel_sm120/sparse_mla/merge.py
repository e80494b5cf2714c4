"""The parts of a row's splits made one: weighted by their LSE, the sink in the denominator."""

from __future__ import annotations

import triton
import triton.language as tl

from sgl_kernel_sm120.interpret import to_bf16
from sgl_kernel_sm120.sparse_mla.attend import LN2, LOG2E


@triton.jit(do_not_specialize=["heads", "splits"])
def merge_kernel(
    part_out,
    part_lse,
    sink,
    out,
    lse,
    heads,
    splits,
    MAX_SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    ROUND: tl.constexpr,
    UPCAST: tl.constexpr,
):
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    dim = tl.arange(0, 512)
    first = row * splits * heads + head
    n = tl.arange(0, MAX_SPLITS)
    levels = tl.load(part_lse + first + n * heads, mask=n < splits, other=float("-inf"))
    peak = tl.max(levels, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(tl.exp2(levels - base), axis=0)
    acc = tl.full((512,), 0.0, tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        at = first + split * heads
        weights = tl.exp2(tl.load(part_lse + at, mask=split < splits, other=float("-inf")) - base)
        parts = tl.load(part_out + at[:, None] * 512 + dim[None, :], mask=(split < splits)[:, None], other=0.0)
        acc += tl.sum(weights[:, None] * parts, axis=0)
    seen = total > 0.0
    rest = tl.exp2(tl.load(sink + head) * LOG2E - base)
    result = acc / tl.where(seen, total + rest, 1.0)
    tl.store(out + (row * heads + head) * 512 + dim, to_bf16(result, UPCAST) if ROUND else result)
    level = tl.where(seen, base + tl.log2(tl.where(seen, total, 1.0)), float("-inf"))
    tl.store(lse + row * heads + head, level * LN2)
