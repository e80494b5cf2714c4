"""Plans: which rows of a batch hold a finished key, and at what position. The format is upstream's.

A row is 16 bytes (``kernels/jit/include/sgl_kernel/deepseek_v4/compress_v2.cuh`` in sglang 0.5.23):

- decode: uint32 length of the sequence; the rest is no concern of the store. One row per request. The key is finished
  when the length is a multiple of 4, and its position is ``length - 4``.
- extend: uint32 length at the key's last token, uint16 number of that token in the batch, the rest no concern. One row
  per finished key, in any order, then rows with length 2**32 - 1, which are invalid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from sgl_kernel_sm120.index_k.layout import COMPRESS_RATIO, check

PLAN_BYTES = 16
INVALID = -1  # an invalid row's length, read as int32


def decode_plan(lengths: Sequence[int]) -> torch.Tensor:
    """uint8 ``[requests, 16]`` of a decode step, after which the sequences have these lengths."""
    rows = torch.zeros((len(lengths), 4), dtype=torch.int32)
    rows[:, 0] = torch.tensor(lengths, dtype=torch.int32)
    return rows.view(torch.uint8)


def extend_plan(prefixes: Sequence[int], extends: Sequence[int], padded_to: int | None = None) -> torch.Tensor:
    """uint8 ``[rows, 16]`` of an extend batch: for each request, tokens it had and tokens it gets.

    ``padded_to``: add invalid rows up to so many, as under graph capture.
    """
    rows, token = [], 0
    for prefix, extend in zip(prefixes, extends, strict=True):
        for position in range(prefix, prefix + extend):
            if (position + 1) % COMPRESS_RATIO == 0:
                rows.append([position + 1, token & 0xFFFF, 0, 0])
            token += 1
    rows += [[INVALID, 0, 0, 0]] * ((padded_to or len(rows)) - len(rows))
    return torch.tensor(rows, dtype=torch.int32).view(-1, 4).view(torch.uint8)


def check_plan(plan: torch.Tensor, rows: int) -> None:
    """Raise :class:`~.layout.ShapeError` unless ``plan`` is uint8 ``[rows, 16]``."""
    check(
        plan.dtype == torch.uint8 and tuple(plan.shape) == (rows, PLAN_BYTES) and plan.is_contiguous(),
        f"plan must be contiguous uint8 [{rows}, {PLAN_BYTES}], not {plan.dtype} {list(plan.shape)}",
    )


def read(plan: torch.Tensor, decode: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A plan's rows as (has a key to store: bool, position: int64, number of the slot to store at: int64)."""
    words = plan.view(torch.int32).view(-1, 4).to(torch.int64)
    length = words[:, 0]
    position = length - COMPRESS_RATIO
    if decode:
        return (length % COMPRESS_RATIO == 0) & (length > 0), position, torch.arange(len(words), device=plan.device)
    return length != INVALID, position, words[:, 1] & 0xFFFF
