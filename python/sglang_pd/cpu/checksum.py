"""Upstream's checksum of KV on the CPU."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from typing import Any


def compute(original: Callable[..., int], computer: Any, pages: Any, state_indices: Any = None) -> int:
    """AROUND hook on ``KvChecksumComputer.compute``: Adler-32 of the pages' bytes, buffer by buffer.

    ``pages``: int64 tensor of page numbers; each buffer holds pages of its item's length. The result is above 0, which
    upstream keeps for "no checksum". It is not the number of the CUDA kernel: prefill and decode both run on a CPU.
    Raises ``ValueError`` for a model with state buffers, which a CPU does not serve over PD either.
    """
    if computer._state_data_ptrs:
        raise ValueError("the checksum on a CPU is for models without extra state buffers only")
    numbers = pages.tolist()
    digest = 1
    for address, length in zip(computer._kv_data_ptrs, computer._kv_item_lens, strict=True):
        for page in numbers:
            digest = zlib.adler32(ctypes.string_at(address + page * length, length), digest)
    return digest
