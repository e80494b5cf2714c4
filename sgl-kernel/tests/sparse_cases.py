"""Inputs for the sparse decode: paged FP8 KV whose unused bytes are all 0xFF, a NaN, and what a result may be."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sgl_kernel_sm120.sparse_mla import reference
from sgl_kernel_sm120.sparse_mla.decode import sparse_decode
from sgl_kernel_sm120.sparse_mla.launch import AttendLaunch
from sgl_kernel_sm120.sparse_mla.layout import HEAD_DIM, Candidates, page_bytes

WINDOW, C4, C128 = 256, 64, 2  # slots of a page
SCALE = HEAD_DIM**-0.5
TOLERANCE = 1e-5


@dataclass
class Case:
    q: torch.Tensor
    window: Candidates
    extra: Candidates | None
    sink: torch.Tensor

    @property
    def args(self) -> tuple:
        return self.q, self.window, self.extra, self.sink, SCALE


def candidates(lens: list[int], width: int, slots: int, random: torch.Generator, holes: float = 0.0) -> Candidates:
    """Rows of so many candidates, scrambled over pages; past its length a row names slots whose bytes are NaN.

    ``holes``: the part of the indices that are -1.
    """
    rows = len(lens)
    used = sum(lens)
    pages = torch.full((-(-(used + rows + 1) // slots), page_bytes(slots)), 255, dtype=torch.uint8)
    order = torch.randperm(len(pages) * slots, generator=random)
    reference.store(pages, slots, order[:used], torch.randn(used, HEAD_DIM, generator=random) * 2)
    indices = order[used : used + rows].int()[:, None].repeat(1, width)
    start = 0
    for row, length in enumerate(lens):
        indices[row, :length] = order[start : start + length].int()
        start += length
    indices[torch.rand(indices.shape, generator=random) < holes] = -1
    return Candidates(pages, slots, indices, torch.tensor(lens, dtype=torch.int32))


def case(
    window: list[int],
    extra: list[int] | None = None,
    *,
    slots: int = C4,
    width: int = 512,
    heads: int = 16,
    holes: float = 0.0,
    seed: int = 0,
) -> Case:
    """Rows with so many candidates in the window and, with ``extra``, in the other cache."""
    random = torch.Generator().manual_seed(seed)
    return Case(
        torch.randn(len(window), heads, HEAD_DIM, generator=random).bfloat16(),
        candidates(window, 128, WINDOW, random, holes),
        None if extra is None else candidates(extra, width, slots, random, holes),
        torch.randn(heads, generator=random) * 2,
    )


def run(one: Case, splits: int, block_t: int = 32, tolerance: float = TOLERANCE) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in fp32 and the LSE, both within tolerance of float64."""
    out = torch.full(one.q.shape, torch.nan)
    found, lse = sparse_decode(*one.args, launch=AttendLaunch(block_t=block_t), splits=splits, out=out)
    assert found is out
    exact, level = reference.attend(*one.args)
    assert (found.double() - exact).abs().max() <= tolerance
    assert torch.equal(lse.isinf(), level.isinf())
    seen = level.isfinite()
    assert torch.allclose(lse[seen].double(), level[seen], rtol=1e-6, atol=tolerance)
    return found, lse
