"""Upstream's prefill role on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def send_cached_prefix_chunk(original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """AROUND hook: send a cached prefix early without a CUDA event.

    The event orders the send after the forward pass that may still write those pages on another stream. On the CPU a
    forward pass has ended when it returns, so there is nothing to wait for; upstream takes that path when
    ``enable_overlap`` is off.
    """
    overlap = scheduler.enable_overlap
    scheduler.enable_overlap = False
    try:
        original(scheduler, *args, **kwargs)
    finally:
        scheduler.enable_overlap = overlap
