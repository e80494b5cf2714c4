"""Prepare the indexer's queries: rope, Hadamard, bf16; and the weights of their heads.

The transform is orthonormal and the keys went through it too, so logits are what they would be without it. It spreads
outliers over all values of a key, which matters to formats with fewer bits, and keeps keys alike across formats.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sgl_kernel_sm120.index_k.launch import RowsLaunch
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, ROPE_DIM, check, check_rope
from sgl_kernel_sm120.index_k.rotate import rope_hadamard
from sgl_kernel_sm120.interpret import is_interpreted, to_bf16


# Numbers that change from batch to batch make no variants, which would be compiled while serving.
@triton.jit(do_not_specialize=["num_rows"])
def prepare_query_kernel(
    q,
    weight,
    freqs,
    positions,
    q_out,
    weight_out,
    num_rows,
    q_stride,
    weight_stride,
    scale,
    HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    UPCAST: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # a head of a token
    live = row < num_rows
    token, head = row // HEADS, row % HEADS
    dim = tl.arange(0, HEAD_DIM)
    inside = live[:, None] & (dim >= 0)[None, :]
    at = token * q_stride + head * HEAD_DIM
    x = tl.load(q + at[:, None] + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    position = tl.load(positions + token, mask=live, other=0)
    x = rope_hadamard(x, freqs, position, live, ROWS, HEAD_DIM, ROPE_DIM)
    tl.store(q_out + row[:, None] * HEAD_DIM + dim[None, :], to_bf16(x, UPCAST), mask=inside)
    w = tl.load(weight + token * weight_stride + head, mask=live, other=0.0).to(tl.float32)
    tl.store(weight_out + row, w * scale, mask=live)


def prepare_query(
    q: torch.Tensor,
    weight: torch.Tensor,
    scale: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    *,
    launch: RowsLaunch,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and weights as the logits kernels take them.

    Args:
        q: bf16 or fp32 ``[rows, heads, 128]``, heads and values contiguous.
        weight: bf16 or fp32 ``[rows, heads]``, as projected; ``scale`` multiplies it.
        freqs: fp32 ``[positions, 64]``.
        positions: int32 or int64 ``[rows]``.

    Returns bf16 ``[rows, heads, 128]`` and fp32 ``[rows, heads]``. Raises :class:`~.layout.ShapeError`.
    """
    check(
        q.dim() == 3 and q.shape[2] == HEAD_DIM and q.stride(2) == 1 and q.stride(1) == HEAD_DIM,
        f"q must be [rows, heads, {HEAD_DIM}] with contiguous heads, not {list(q.shape)} of strides {q.stride()}",
    )
    rows, heads = q.shape[:2]
    check(
        tuple(weight.shape) == (rows, heads) and weight.stride(1) == 1,
        f"weight must be [{rows}, {heads}], not {list(weight.shape)}",
    )
    check(
        positions.dtype in (torch.int32, torch.int64) and tuple(positions.shape) == (rows,),
        f"positions must be int32 or int64 [{rows}], not {positions.dtype} {list(positions.shape)}",
    )
    check_rope(freqs)
    q_out = torch.empty((rows, heads, HEAD_DIM), dtype=torch.bfloat16, device=q.device)
    weight_out = torch.empty((rows, heads), dtype=torch.float32, device=q.device)
    if rows:
        prepare_query_kernel[(triton.cdiv(rows * heads, launch.rows),)](
            q,
            weight,
            freqs,
            positions,
            q_out,
            weight_out,
            rows * heads,
            q.stride(0),
            weight.stride(0),
            scale,
            HEADS=heads,
            ROWS=launch.rows,
            HEAD_DIM=HEAD_DIM,
            ROPE_DIM=ROPE_DIM,
            UPCAST=is_interpreted(prepare_query_kernel),
            num_warps=launch.num_warps,
        )
    return q_out, weight_out
