"""What seeded defects use: memory that is kept for the process, and upstream's functions, looked up when called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def scratch_of(name: str) -> Callable[..., torch.Tensor]:
    """Memory that is made when it is first asked for and kept for the process, whoever asks."""
    made: dict[str, torch.Tensor] = {}

    def get(*shape: int, **kwargs: Any) -> torch.Tensor:
        if name not in made:
            made[name] = torch.empty(1 << 20, **kwargs)
        count = 1
        for one in shape:
            count *= one
        return made[name][:count].view(shape)

    return get


class UpstreamsIndexer:
    """Upstream's module, imported when it is used."""

    def __getattr__(self, name: str) -> Any:
        from sglang.srt.layers.attention.dsv4 import indexer

        return getattr(indexer, name)


def split_pages(pages: torch.Tensor, size: int) -> torch.Tensor:
    from sglang.kernels.ops.attention.flash_mla_sm120 import _split_kv_pages_to_64

    return _split_kv_pages_to_64(pages.view(len(pages), size, 1, -1) if pages.dim() == 4 else pages, size)
