"""Inputs for the index-K kernels: paged keys whose every unused slot is NaN, and what a result may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sgl_kernel_sm120.index_k import reference
from sgl_kernel_sm120.index_k.layout import HEAD_DIM, PAGE_SLOTS

TOLERANCE = 1e-4
UNTOUCHED = 12345.0


@dataclass
class Paged:
    """Arguments of a logits op."""

    q: torch.Tensor
    keys: torch.Tensor
    weights: torch.Tensor
    page_table: torch.Tensor
    lens: torch.Tensor

    @property
    def args(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.keys, self.weights, self.page_table, self.lens


def paged(lens: list[int], requests: list[int] | None = None, heads: int = 64, spare: int = 1, seed: int = 0) -> Paged:
    """Rows of these lengths, each with the pages of its request (by default one of its own).

    Pages are scrambled over the pool. A slot that no row reaches is NaN, and a table's entry that no row needs is -1;
    ``spare`` such entries are at the end of each table.
    """
    random = torch.Generator().manual_seed(seed)
    requests = list(range(len(lens))) if requests is None else requests
    width = -(-max(lens) // PAGE_SLOTS) + spare
    count = (max(requests) + 1) * width
    tables = torch.randperm(count, generator=random).view(-1, width)
    table = tables[torch.tensor(requests)].to(torch.int32)
    keys = torch.full((count, PAGE_SLOTS, HEAD_DIM), torch.nan, dtype=torch.bfloat16)
    longest = {request: max(n for n, r in zip(lens, requests, strict=True) if r == request) for request in requests}
    for request, length in longest.items():
        n = torch.arange(length)
        keys[tables[request, n // PAGE_SLOTS], n % PAGE_SLOTS] = torch.randn(
            length, HEAD_DIM, generator=random
        ).bfloat16()
    needed = -(-torch.tensor(lens) // PAGE_SLOTS)
    table[torch.arange(width)[None, :] >= needed[:, None]] = -1
    return Paged(
        torch.randn(len(lens), heads, HEAD_DIM, generator=random).bfloat16(),
        keys,
        torch.randn(len(lens), heads, generator=random) * (heads * HEAD_DIM) ** -0.5,
        table,
        torch.tensor(lens, dtype=torch.int32),
    )


def blank(case: Paged) -> torch.Tensor:
    """A result to write to, marked everywhere."""
    return torch.full((len(case.lens), case.page_table.shape[1] * PAGE_SLOTS), UNTOUCHED)


def check_logits(case: Paged, out: torch.Tensor) -> float:
    """Each row within tolerance of float64 up to its length and untouched past it; returns the largest error."""
    expected = reference.logits(*case.args)
    worst = 0.0
    for row, length in enumerate(case.lens.tolist()):
        found, wanted = out[row, :length].double(), expected[row, :length]
        assert torch.equal(found.isinf(), wanted.isinf())
        error = (found - wanted).abs().nan_to_num(0.0 if wanted.isinf().any() else torch.inf)
        worst = max(worst, error.max().item() if length else 0.0)
        assert worst <= TOLERANCE
        assert (out[row, length:] == UNTOUCHED).all()
    return worst


def check_rounded(found: torch.Tensor, exact: torch.Tensor) -> None:
    """``found`` (bf16) is the rounding, to nearest even, of something within tolerance of ``exact`` (float64)."""
    low, high = ((exact + step).float().bfloat16() for step in (-TOLERANCE, TOLERANCE))
    assert bool(((low <= found) & (found <= high)).all())


def freqs(positions: int = 2048) -> torch.Tensor:
    """fp32 ``[positions, 64]``: cosine and sine in turn, as rope makes them."""
    angles = torch.arange(positions)[:, None] * 10000.0 ** (-torch.arange(32) / 32)[None, :]
    return torch.stack([angles.cos(), angles.sin()], dim=-1).flatten(1)
