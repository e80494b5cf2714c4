"""Costs from times: the makespan model is linear in its four costs, so that least squares finds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

import torch

from sgl_kernel_sm120.sparse_mla.split import Costs, Machine, Work, terms


@dataclass(frozen=True)
class Sample:
    work: Work
    splits: int
    microseconds: float


def fit(samples: Sequence[Sample], multiprocessors: int, resident: int) -> tuple[Costs, float]:
    """The costs whose relative errors are least in the squares, none below 0; and the median relative error.

    Raises ``ValueError`` where the samples do not determine them.
    """
    machine = Machine(multiprocessors, resident)
    counts = torch.tensor([terms(one.work, one.splits, machine) for one in samples], dtype=torch.float64)
    rows = counts / torch.tensor([one.microseconds for one in samples], dtype=torch.float64)[:, None]
    ones = torch.ones(len(samples), dtype=torch.float64)
    if torch.linalg.matrix_rank(rows) < rows.shape[1]:
        raise ValueError("the samples do not determine the costs: vary rows, candidates and splits")
    kept = list(range(rows.shape[1]))
    while True:
        found = torch.linalg.lstsq(rows[:, kept], ones[:, None]).solution.flatten()
        if (found >= 0).all():
            break
        kept.remove(kept[int(found.argmin())])
    costs = torch.zeros(rows.shape[1], dtype=torch.float64)
    costs[kept] = found
    error = (rows @ costs - 1).abs().median().item()
    return Costs(**dict(zip((field.name for field in fields(Costs)), costs.tolist(), strict=True))), error


def describe(costs: Costs) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in asdict(costs).items())
