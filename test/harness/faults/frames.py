"""What can be done to a control message: each maps its frames to what is sent instead; pure.

An action returns pairs of (seconds until then, frames); ``math.inf`` is until the relay is told to release, and
:data:`OVERTAKE` after the next message that goes the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Frames = list[bytes]
Action = Callable[[Frames], list[tuple[float, Frames]]]
OVERTAKE = -1.0


def drop(frames: Frames) -> list[tuple[float, Frames]]:
    return []


def duplicate(frames: Frames) -> list[tuple[float, Frames]]:
    return [(0.0, frames), (0.0, frames)]


def reorder(frames: Frames) -> list[tuple[float, Frames]]:
    return [(OVERTAKE, frames)]


def hold(frames: Frames) -> list[tuple[float, Frames]]:
    """Until :meth:`Relay.release`."""
    return [(math.inf, frames)]


def delay(seconds: float) -> Action:
    return lambda frames: [(seconds, frames)]


def corrupt(frames: Frames) -> list[tuple[float, Frames]]:
    """Every frame after the tag is as long as before, and garbage."""
    return [(0.0, [frames[0], *(b"\xff" * len(frame) for frame in frames[1:])])]


def corrupt_tag(frames: Frames) -> list[tuple[float, Frames]]:
    return [(0.0, [bytes(byte ^ 0xFF for byte in frames[0]), *frames[1:]])]


def cut_off(frames: Frames) -> list[tuple[float, Frames]]:
    """The second half of the frames is missing."""
    return [(0.0, frames[: max(1, len(frames) // 2)])]
