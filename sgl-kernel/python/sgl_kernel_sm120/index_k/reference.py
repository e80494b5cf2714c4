"""The ops in plain PyTorch, in the precision asked for: what the kernels are compared with.

float64 throughout gives the truth to which a kernel's rounding is measured. No op here is meant to be fast.
"""

from __future__ import annotations

import torch

from sgl_kernel_sm120.index_k import plans
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS, ROPE_DIM


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """The orthonormal Walsh-Hadamard transform of the last dimension (a power of two), in natural order:
    ``out[j] = sum over i of (-1)**popcount(i & j) * x[i] / sqrt(n)``. Its own inverse."""
    n = x.shape[-1]
    half = 1
    while half < n:
        low, high = x.unflatten(-1, (-1, 2, half)).unbind(-2)
        x = torch.stack([low + high, low - high], dim=-2).flatten(-3)
        half *= 2
    return x / n**0.5


def rope(x: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs ``(x[-64], x[-63]), ...`` of the last dimension.

    ``x``: ``[rows, ..., 128]``. ``freqs``: ``[positions, 64]``, cosine and sine of each pair in turn. ``positions``:
    integer ``[rows]``.
    """
    turn = freqs.to(x.dtype)[positions.long()].unflatten(-1, (-1, 2))
    turn = turn.reshape(len(x), *[1] * (x.dim() - 2), ROPE_DIM // 2, 2)
    real, imag = x[..., -ROPE_DIM:].unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = turn.unbind(-1)
    turned = torch.stack([real * cos - imag * sin, real * sin + imag * cos], dim=-1).flatten(-2)
    return torch.cat([x[..., :-ROPE_DIM], turned], dim=-1)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(x.dtype)


def finished_keys(
    kv: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    positions: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Norm, rope and Hadamard of ``kv`` ``[rows, 128]``, in ``dtype``."""
    return hadamard(rope(rms_norm(kv.to(dtype), weight, eps), freqs, positions))


def store(
    keys: torch.Tensor,
    kv: torch.Tensor,
    plan: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    freqs: torch.Tensor,
    out_loc: torch.Tensor,
    decode: bool,
) -> None:
    """What :func:`~.store.store_keys` does, for ``keys`` of any floating type."""
    valid, positions, which = plans.read(plan, decode)
    rows = torch.nonzero(valid).flatten()
    slots = out_loc[which[rows]].long()
    rows, slots = rows[slots >= 0], slots[slots >= 0]
    values = finished_keys(kv[rows], weight, eps, freqs, positions[rows])
    keys.view(-1, HEAD_DIM)[slots] = values.to(keys.dtype)


def query(
    q: torch.Tensor, freqs: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype = torch.float64
) -> torch.Tensor:
    """Rope and Hadamard of ``q`` ``[rows, heads, 128]``, in ``dtype``."""
    return hadamard(rope(q.to(dtype), freqs, positions))


def gather(keys: torch.Tensor, page_table: torch.Tensor, length: int) -> torch.Tensor:
    """The first ``length`` keys of one row's page table, ``[length, 128]``."""
    n = torch.arange(length, device=keys.device)
    return keys[page_table[n // PAGE_SLOTS].long(), n % PAGE_SLOTS]


def logits(
    q: torch.Tensor,
    keys: torch.Tensor,
    weights: torch.Tensor,
    page_table: torch.Tensor,
    lens: torch.Tensor,
    dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """``[rows, pages * 64]`` in ``dtype``, -inf past each row's length and where its table names no page."""
    rows, pages = page_table.shape
    out = torch.full((rows, pages * PAGE_SLOTS), -torch.inf, dtype=dtype, device=q.device)
    for row in range(rows):
        length = min(int(lens[row]), out.shape[1])
        named = page_table[row].repeat_interleave(PAGE_SLOTS)[:length] >= 0
        scores = torch.relu(gather(keys, page_table[row].clamp(min=0), length).to(dtype) @ q[row].to(dtype).T)
        out[row, :length] = torch.where(named, scores @ weights[row].to(dtype), -torch.inf)
    return out
