"""How many of the right keys an index-K format keeps: recall of the best 512 against float64, on random vectors.

Keys and queries are quantised as DeepSeek-V4's indexer does: FP8 (e4m3) with one scale per vector, FP4 (e2m1) with a
power-of-two scale per 32 values, bf16 as it is; products and sums of quantised values are exact enough in fp32. With
the Hadamard transform, vectors go through it before they are quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from sgl_kernel_sm120.index_k.reference import hadamard

HEADS, HEAD_DIM, TOP_K = 64, 128, 512
FP8_MAX = 448.0
FP4_MAX = 6.0
FP4_EDGES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
FP4_VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
OUTLIERS, OUTLIER_FACTOR = 4, 10.0


@dataclass(frozen=True)
class Row:
    """Recall of one format: mean, and the least of any query. ``queries``: how many."""

    keys: int
    data: str
    hadamard: bool
    format: str
    queries: int
    recall: float
    least: float


def bf16(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().float()


def fp8(x: torch.Tensor) -> torch.Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / FP8_MAX
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def fp4(x: torch.Tensor) -> torch.Tensor:
    groups = x.unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / FP4_MAX)))
    scaled = groups / scale
    values = FP4_VALUES[torch.bucketize(scaled.abs(), FP4_EDGES)] * scaled.sign()
    return (values * scale).flatten(-2)


FORMATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"bf16": bf16, "fp8": fp8, "fp4": fp4}


def logits(q: torch.Tensor, keys: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``[keys]`` for one query: ``q`` ``[heads, 128]``, ``keys`` ``[keys, 128]``, ``weights`` ``[heads]``."""
    return torch.cat([torch.relu(part @ q.T) @ weights for part in keys.split(16384)])


def recall(found: torch.Tensor, truth: torch.Tensor) -> float:
    """The part of the ``truth`` that is in ``found``; both hold numbers of keys."""
    return torch.isin(found, truth).sum().item() / len(truth)


def draw(count: int, data: str, random: torch.Generator) -> torch.Tensor:
    """fp32 ``[count, 128]``: normal, or with some values of every vector ten times as large."""
    x = torch.randn(count, HEAD_DIM, generator=random)
    if data == "outliers":
        x[:, torch.arange(OUTLIERS) * (HEAD_DIM // OUTLIERS) + 3] *= OUTLIER_FACTOR
    return x


def measure(sizes: list[int], queries: int, seed: int = 0) -> Iterator[Row]:
    """Every format on every kind of data, for each number of keys."""
    for count in sizes:
        for data in ("random", "outliers"):
            random = torch.Generator().manual_seed(seed)
            keys = draw(count, data, random)
            asked = [draw(HEADS, data, random) for _ in range(queries)]
            weights = [torch.randn(HEADS, generator=random) for _ in range(queries)]
            truths = [
                logits(q.double(), keys.double(), w.double()).topk(TOP_K).indices
                for q, w in zip(asked, weights, strict=True)
            ]
            for turned in (True, False):
                for name, quantise in FORMATS.items():
                    seen = quantise(hadamard(keys) if turned else keys)
                    found = [
                        recall(logits(quantise(hadamard(q) if turned else q), seen, w).topk(TOP_K).indices, truth)
                        for q, w, truth in zip(asked, weights, truths, strict=True)
                    ]
                    yield Row(count, data, turned, name, queries, sum(found) / queries, min(found))
