"""The same attention in PyTorch, of any precision: what tests and benchmarks compare with."""

from __future__ import annotations

import torch

from sgl_kernel_sm120.sparse_mla.layout import (
    HEAD_DIM,
    ROW_BYTES,
    SCALE_BYTES,
    TILE,
    TILES,
    Candidates,
)


def dequantise(pages: torch.Tensor, slots: int, index: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Keys ``[..., 512]`` of slots ``index`` (int64, 0 or more) of ``pages`` (uint8 ``[pages, stride]``)."""
    page, slot = (index // slots).flatten(), (index % slots).flatten()
    data = torch.arange(ROW_BYTES, device=pages.device) + (slot * ROW_BYTES)[:, None]
    row = pages[page[:, None], data]
    exponents = torch.arange(TILES, device=pages.device) + (slots * ROW_BYTES + slot * SCALE_BYTES)[:, None]
    scale = torch.exp2(pages[page[:, None], exponents].to(dtype) - 127)
    packed = row[:, : TILES * TILE].contiguous().view(torch.float8_e4m3fn).to(dtype)
    packed = (packed.view(-1, TILES, TILE) * scale[:, :, None]).flatten(1)
    rope = row[:, TILES * TILE :].contiguous().view(torch.bfloat16).to(dtype)
    return torch.cat([packed, rope], dim=1).view(*index.shape, HEAD_DIM)


def store(pages: torch.Tensor, slots: int, index: torch.Tensor, keys: torch.Tensor) -> None:
    """Quantise ``keys`` (``[n, 512]``) and store them in slots ``index`` (int64 ``[n]``) of ``pages``.

    A tile's scale is the smallest power of two that brings its largest value to at most 448, as upstream's store.
    """
    page, slot = index // slots, index % slots
    tiles = keys[:, : TILES * TILE].float().view(-1, TILES, TILE)
    exponent = torch.ceil(torch.log2(tiles.abs().amax(-1).clamp(min=1e-4) / 448))
    packed = (tiles * torch.exp2(-exponent)[:, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    rope = keys[:, TILES * TILE :].bfloat16().contiguous()
    row = torch.cat([packed.flatten(1).view(torch.uint8), rope.view(torch.uint8)], dim=1)
    pages[page[:, None], torch.arange(ROW_BYTES) + (slot * ROW_BYTES)[:, None]] = row
    scales = torch.arange(TILES) + (slots * ROW_BYTES + slot * SCALE_BYTES)[:, None]
    pages[page[:, None], scales] = (exponent + 127).to(torch.uint8)


def attend(
    q: torch.Tensor,
    window: Candidates,
    extra: Candidates | None,
    sink: torch.Tensor,
    scale: float,
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What :func:`~.decode.sparse_decode` computes, in ``dtype``: ``[rows, heads, 512]`` and LSE ``[rows, heads]``."""
    outs, levels = [], []
    for row in range(q.shape[0]):
        keys = torch.cat([_keys(one, row, dtype) for one in (window, extra) if one is not None])
        scores = q[row].to(dtype) @ keys.T * scale
        level = torch.logsumexp(scores, dim=-1) if len(keys) else q.new_full(q.shape[1:2], -torch.inf, dtype=dtype)
        weights = torch.exp(scores - torch.logaddexp(level, sink.to(dtype))[:, None]) if len(keys) else scores
        outs.append(weights @ keys)
        levels.append(level)
    return torch.stack(outs), torch.stack(levels)


def _keys(one: Candidates, row: int, dtype: torch.dtype) -> torch.Tensor:
    index = one.indices[row, : max(0, int(one.lens[row]))].long()
    return dequantise(one.pages, one.slots, index[index >= 0], dtype)
