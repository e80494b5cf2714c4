"""Finish compressed keys and store them: RMS norm, rope, Hadamard, bf16, into pages.

One launch for a decode step or an extend batch, as its plan says (:mod:`.plans`). A row is skipped when its plan has no
finished key for it, or when the slot it should go to is negative; nothing else of the pool is touched.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sgl_kernel_sm120.index_k import plans
from sgl_kernel_sm120.index_k.launch import RowsLaunch
from sgl_kernel_sm120.index_k.layout import COMPRESS_RATIO, HEAD_DIM, PAGE_SLOTS, ROPE_DIM, check, check_rope
from sgl_kernel_sm120.index_k.rotate import rope_hadamard
from sgl_kernel_sm120.interpret import is_interpreted, to_bf16


# Numbers that change from batch to batch make no variants, which would be compiled while serving.
@triton.jit(do_not_specialize=["num_rows", "num_locs"])
def store_keys_kernel(
    kv,
    plan,
    weight,
    freqs,
    out_loc,
    keys,
    num_rows,
    num_locs,
    kv_stride,
    eps,
    DECODE: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    RATIO: tl.constexpr,
    UPCAST: tl.constexpr,
):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    live = row < num_rows
    length = tl.load(plan + row * 4, mask=live, other=-1)
    if DECODE:
        live = live & (length > 0) & (length % RATIO == 0)
        which = row
    else:
        live = live & (length != -1)
        which = tl.load(plan + row * 4 + 1, mask=live, other=0) & 0xFFFF
    slot = tl.load(out_loc + which, mask=live & (which < num_locs), other=-1)
    live = live & (slot >= 0)

    dim = tl.arange(0, HEAD_DIM)
    inside = live[:, None] & (dim >= 0)[None, :]
    x = tl.load(kv + row.to(tl.int64)[:, None] * kv_stride + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    norm = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + eps)
    x = x * norm[:, None] * tl.load(weight + dim).to(tl.float32)[None, :]
    x = rope_hadamard(x, freqs, length - RATIO, live, ROWS, HEAD_DIM, ROPE_DIM)
    # Pages follow each other without gaps, so a slot's number is its place.
    tl.store(keys + slot.to(tl.int64)[:, None] * HEAD_DIM + dim[None, :], to_bf16(x, UPCAST), mask=inside)


def store_keys(
    keys: torch.Tensor,
    kv: torch.Tensor,
    plan: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    out_loc: torch.Tensor,
    *,
    decode: bool,
    launch: RowsLaunch,
) -> None:
    """Store the finished keys of a batch.

    Args:
        keys: bf16 ``[pages, 64, 128]``, written to; slot ``s`` is ``keys[s // 64, s % 64]``.
        kv: fp32 or bf16 ``[rows, 128]``, compressed but not yet normed, values contiguous.
        plan: uint8 ``[rows, 16]``, see :mod:`.plans`; ``decode`` says which of the two.
        weight: fp32 or bf16 ``[128]`` of the norm; ``eps`` its epsilon.
        freqs: fp32 ``[positions, 64]``.
        out_loc: int64 or int32 slot numbers, one per request (decode) or token (extend); negative: do not store.

    Raises :class:`~.layout.ShapeError`.
    """
    check(
        keys.dtype == torch.bfloat16 and tuple(keys.shape[1:]) == (PAGE_SLOTS, HEAD_DIM) and keys.is_contiguous(),
        f"keys must be contiguous bfloat16 [pages, {PAGE_SLOTS}, {HEAD_DIM}], not {keys.dtype} {list(keys.shape)}",
    )
    check(
        kv.dtype in (torch.float32, torch.bfloat16) and kv.dim() == 2 and kv.shape[1] == HEAD_DIM and kv.stride(1) == 1,
        f"kv must be float32 or bfloat16 [rows, {HEAD_DIM}], not {kv.dtype} {list(kv.shape)}",
    )
    plans.check_plan(plan, kv.shape[0])
    check(
        tuple(weight.shape) == (HEAD_DIM,) and weight.is_contiguous(),
        f"weight must be [{HEAD_DIM}], not {list(weight.shape)}",
    )
    check_rope(freqs)
    check(
        out_loc.dtype in (torch.int32, torch.int64) and out_loc.dim() == 1 and out_loc.is_contiguous(),
        f"out_loc must be contiguous int32 or int64 [n], not {out_loc.dtype} {list(out_loc.shape)}",
    )
    check(
        not decode or len(out_loc) == kv.shape[0],
        f"a decode step of {kv.shape[0]} rows needs as many slots, not {len(out_loc)}",
    )
    if not kv.shape[0]:
        return
    store_keys_kernel[(triton.cdiv(kv.shape[0], launch.rows),)](
        kv,
        plan.view(torch.int32),
        weight,
        freqs,
        out_loc,
        keys,
        kv.shape[0],
        len(out_loc),
        kv.stride(0),
        eps,
        DECODE=decode,
        ROWS=launch.rows,
        HEAD_DIM=HEAD_DIM,
        ROPE_DIM=ROPE_DIM,
        RATIO=COMPRESS_RATIO,
        UPCAST=is_interpreted(store_keys_kernel),
        num_warps=launch.num_warps,
    )
