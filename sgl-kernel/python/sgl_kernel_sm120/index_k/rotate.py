"""Device functions: rope of the last 64 values and Hadamard of all 128, for a block of rows held in registers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rope_hadamard(x, freqs, position, live, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr):
    """Rotate and transform rows.

    ``x``: fp32 ``[ROWS, HEAD_DIM]``. ``freqs``: pointer to fp32 ``[positions, ROPE_DIM]``, cosine and sine in turn.
    ``position``: int ``[ROWS]``, read where ``live``. Returns fp32 ``[ROWS, HEAD_DIM]`` (see
    ``reference.hadamard(reference.rope(...))``); rows that are not live hold anything.
    """
    pairs: tl.constexpr = HEAD_DIM // 2
    plain: tl.constexpr = (HEAD_DIM - ROPE_DIM) // 2  # pairs that are not rotated: cosine 1, sine 0
    even, odd = tl.split(tl.reshape(x, (ROWS, pairs, 2)))
    pair = tl.arange(0, pairs)
    turned = live[:, None] & (pair >= plain)[None, :]
    at = freqs + position.to(tl.int64)[:, None] * ROPE_DIM + (2 * (pair - plain))[None, :]
    cos = tl.load(at, mask=turned, other=1.0)
    sin = tl.load(at + 1, mask=turned, other=0.0)
    x = _butterfly(even * cos - odd * sin, even * sin + odd * cos, ROWS, HEAD_DIM)
    # Each butterfly combines the lowest bit of the index and puts it on top; after seven, all bits are in their place.
    for _ in tl.static_range(6):
        low, high = tl.split(tl.reshape(x, (ROWS, pairs, 2)))
        x = _butterfly(low, high, ROWS, HEAD_DIM)
    return x * (HEAD_DIM**-0.5)


@triton.jit
def _butterfly(low, high, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """``[low + high, low - high]``, one after the other: two ``[ROWS, HEAD_DIM / 2]`` to ``[ROWS, HEAD_DIM]``."""
    return tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (ROWS, HEAD_DIM))
