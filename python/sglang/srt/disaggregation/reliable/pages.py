"""Which entries of a prepared descriptor list stand for which pages; pure.

A prepared list has ``regions`` blocks (a layer's K or V each) of ``slots`` entries, one a page.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int32]


def join(parts: Sequence[Indices]) -> Indices:
    """The pages of several chunks as one list."""
    return np.asarray(parts[0], np.int32) if len(parts) == 1 else np.concatenate(parts).astype(np.int32, copy=False)


def entries(pages: Indices, regions: int, slots: int) -> Indices:
    """Entries of ``pages`` (int32, ``[n]``) in every region, ``[regions * n]``: region by region, so that pages which
    follow each other in memory do so in the list, and NIXL writes them as one."""
    starts = np.arange(regions, dtype=np.int32) * np.int32(slots)
    return (starts[:, None] + pages[None, :]).ravel()
