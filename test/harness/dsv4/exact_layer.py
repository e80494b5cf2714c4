"""DeepSeek-V4's attention layer from its definition, in float64 and for one token at a time: no pools, pages or plans.

Only what the pools store is rounded, as their format says: the latent to FP8 by tiles and bf16, nothing else.
"""

from __future__ import annotations

from typing import Any

import torch

WINDOW, TOP_K = 128, 512


def stored(keys: torch.Tensor) -> torch.Tensor:
    """Keys ``[n, 512]`` as they are read back: 7 tiles of 64 values in FP8 with a power of two each, then bf16."""
    tiles = keys[:, :448].view(-1, 7, 64)
    scale = 2.0 ** torch.ceil(torch.log2(tiles.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448))
    packed = (tiles / scale).to(torch.float8_e4m3fn).double() * scale
    return torch.cat([packed.flatten(1), keys[:, 448:].bfloat16().double()], dim=1)


def turned(rows: torch.Tensor, positions: torch.Tensor, freqs: torch.Tensor) -> torch.Tensor:
    """The last 64 values as 32 complex numbers, each turned by its angle at the row's position."""
    pairs = torch.view_as_complex(rows[..., -64:].unflatten(-1, (32, 2)).contiguous())
    angle = freqs.to(torch.complex128)[positions]
    pairs = pairs * angle.view(len(rows), *[1] * (rows.dim() - 2), 32)
    return torch.cat([rows[..., :-64], torch.view_as_real(pairs).flatten(-2)], dim=-1)


def hadamard(size: int) -> torch.Tensor:
    bits = torch.arange(size)
    common = bits[:, None] & bits[None, :]
    parity = torch.stack([common >> n & 1 for n in range(size.bit_length())]).sum(0) % 2
    return (1.0 - 2.0 * parity.double()) / size**0.5


def compressed(compressor: Any, x: torch.Tensor) -> torch.Tensor:
    """Keys ``[len(x) // ratio, head_dim]`` of a sequence's inputs ``[n, hidden]``: normed and turned, not rounded.

    A block's key is the mean of its tokens' values, weighted per dimension; with ratio 4 those of the block before take
    part by a second set of values and scores.
    """
    ratio, dim = compressor.ratio, compressor.head_dim
    blocks = len(x) // ratio
    if not blocks:
        return torch.zeros(0, dim, dtype=torch.float64)
    projected = (x.double() @ compressor.wkv_gate.weight.double().T)[: blocks * ratio]
    bias = compressor.ape.double().view(-1, dim)
    if ratio == 4:
        before_values, values, before_scores, scores = projected.view(blocks, 4, 4, dim).unbind(2)
        before_values, before_scores = (one.roll(1, 0) for one in (before_values, before_scores + bias[:4]))
        before_scores[0] = -torch.inf
        values, scores = torch.cat([before_values, values], 1), torch.cat([before_scores, scores + bias[4:]], 1)
    else:
        values, scores = projected.view(blocks, ratio, 2, dim).unbind(2)
        scores = scores + bias
    keys = (torch.softmax(scores, 1) * values).sum(1)
    norm = compressor.norm
    keys = keys / (keys.square().mean(-1, keepdim=True) + norm.variance_epsilon).sqrt() * norm.weight.double()
    return turned(keys, torch.arange(blocks) * ratio, compressor.freqs_cis)


def index_keys(indexer: Any, x: torch.Tensor) -> torch.Tensor:
    """The indexer's keys ``[len(x) // 4, 128]`` of a sequence's inputs, not rounded."""
    return compressed(indexer.compressor, x) @ hadamard(128)


def index_scores(
    indexer: Any, keys: torch.Tensor, x: torch.Tensor, q_lora: torch.Tensor, position: int
) -> torch.Tensor:
    """Scores of ``keys`` for the token at ``position``, whose inputs ``x`` and ``q_lora`` are."""
    query = (q_lora.double() @ indexer.wq_b.weight.double().T).view(1, indexer.n_heads, 128)
    query = turned(query, torch.tensor([position]), indexer.freqs_cis)[0] @ hadamard(128)
    weights = x.double() @ indexer.weights_proj.weight.double().T * indexer.weight_scale
    return torch.relu(keys @ query.T) @ weights


def attention(q: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """``q``: ``[heads, 512]``. ``keys``: as stored. ``sink``: ``[heads]``."""
    scores = torch.cat([q.double() @ keys.T * 512**-0.5, sink.double()[:, None]], dim=1)
    return torch.softmax(scores, dim=1)[:, :-1] @ keys
