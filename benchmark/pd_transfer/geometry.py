"""What is transferred: cells, the pages of each slot, and the bytes a page must hold."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

import numpy as np

Layout = Literal["scattered", "adjacent"]

LAYERS = 16
REGIONS = 2 * LAYERS
PAGE_BYTES = 4096
AUX_BYTES = 64
# Pages are drawn from a pool at least this large, so that those of a few small rooms are scattered as well.
MIN_POOL = 256
SEED = 20_26
# Odd, and with bits all over the word: neighbouring pages differ in most bytes.
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Cell:
    """``in_flight`` rooms of ``pages`` pages each; a page is ``PAGE_BYTES`` in each of ``REGIONS`` buffers.

    Written W/P, or W/P/adjacent where a room's pages follow one another on both sides.
    """

    in_flight: int
    pages: int
    layout: Layout = "scattered"

    @classmethod
    def parse(cls, text: str) -> Cell:
        """Raises ``ValueError`` for anything but W/P, W/P/scattered or W/P/adjacent with positive W and P."""
        found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)(?:/(scattered|adjacent))?", text.strip())
        if found is None:
            raise ValueError(f"{text!r} is not a cell: W/P or W/P/adjacent, for example 64/1")
        return cls(int(found[1]), int(found[2]), "adjacent" if found[3] == "adjacent" else "scattered")

    def __str__(self) -> str:
        return f"{self.in_flight}/{self.pages}" + ("/adjacent" if self.layout == "adjacent" else "")

    @property
    def pool(self) -> int:
        """Pages in each buffer."""
        return max(MIN_POOL, self.in_flight * self.pages)

    @property
    def room_bytes(self) -> int:
        return self.pages * REGIONS * PAGE_BYTES + AUX_BYTES

    def slots(self, side: int) -> np.ndarray:
        """Pages of each of the ``in_flight`` slots on a side (0 prefill, 1 decode): (in_flight, pages) of int32.

        A side gives each room in flight a slot of its own. Both sides shuffle by seeds of their own: pages that lie
        side by side on one are apart on the other; with the layout adjacent, the slots are shuffled and not the pages.
        """
        random = np.random.default_rng((SEED, side))
        wanted = self.in_flight * self.pages
        if self.layout == "scattered":
            return random.permutation(self.pool)[:wanted].astype(np.int32).reshape(self.in_flight, self.pages)
        first = random.permutation(self.in_flight)[:, None] * self.pages
        return (first + np.arange(self.pages)).astype(np.int32)


SMALLEST = Cell(1, 1)


def words(region: int, pages: np.ndarray, pool: int) -> np.ndarray:
    """What prefill's pages of a region hold: (len(pages), PAGE_BYTES / 8) of uint64, different for every page.

    The first word of a page is a stamp: prefill overwrites it with the room's number before it sends.
    """
    page = (region * pool + pages.astype(np.uint64) + 1)[:, None]
    return page * _MIX + np.arange(PAGE_BYTES // 8, dtype=np.uint64) * (_MIX >> np.uint64(7) | np.uint64(1))


def aux_words(room: int) -> np.ndarray:
    """A room's auxiliary data: AUX_BYTES / 8 of uint64, the first the room's number."""
    return np.uint64(room) + np.arange(AUX_BYTES // 8, dtype=np.uint64) * _MIX


def buffers(pool: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The KV buffers, each (pool, PAGE_BYTES) of uint8, and all their words in one array of uint64.

    They share one allocation, so that one indexing operation reaches a room's pages in all of them, and a page that no
    transfer touches lies between any two.
    """
    block = np.zeros((REGIONS, pool + 1, PAGE_BYTES), np.uint8)
    return list(block[:, :pool]), block.reshape(-1).view(np.uint64)


def stamps(slots: np.ndarray, pool: int) -> np.ndarray:
    """Where in the words of :func:`buffers` the first word of every page of a slot is: (slots, REGIONS * pages)."""
    region = np.arange(REGIONS, dtype=np.int64)[None, :, None] * (pool + 1)
    return ((region + slots[:, None, :]) * (PAGE_BYTES // 8)).reshape(len(slots), -1)
