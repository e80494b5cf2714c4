"""Waiting for NIXL transfers: what came of them, and by when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

from sglang.srt.disaggregation.reliable.failure import failure
from sglang.srt.disaggregation.reliable.nixl_errors import failure_of
from sglang.srt.disaggregation.reliable.reasons import Reason

# After an error in one transfer of a batch, its siblings get this long to end, in seconds: the room is lost anyway.
SETTLE_S = 5.0
# NIXL's query also drives the transfer: asked without a pause, one of milliseconds is done a third sooner. A longer one
# must not take a core.
SPIN_S = 0.02
PAUSE_S = (0.0002, 0.002)

Condition = Literal["running", "ended", "lost"]


class TransferError(RuntimeError):
    """A batch of transfers did not succeed; the message is the room's reason."""


class TransferStalledError(TransferError):
    """Transfers were still running when their time was up: the peer has stopped, or the way to it is lost."""


def await_done(state_of: Callable[[Any], str], handles: Iterable[Any], timeout_s: float) -> None:
    """Wait until NIXL reports every transfer done, at most ``timeout_s`` seconds; ``state_of`` is its query.

    Raises :class:`TransferStalledError` when the time is up, :class:`TransferError` when NIXL reports an error, with
    NIXL's own as its cause where it raised one. Others of the batch may still be running then.
    """
    running, start, pause = list(handles), time.monotonic(), PAUSE_S[0]
    while True:
        running = [handle for handle in running if not _done(state_of, handle)]
        if not running:
            return
        waited = time.monotonic() - start
        if waited > timeout_s:
            text = f"{len(running)} writes to decode were not done after {timeout_s:g} s: it hangs or is unreachable"
            raise TransferStalledError(failure(Reason.TRANSFER_TIMEOUT, text))
        if waited > SPIN_S:
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_S[1])
        else:
            time.sleep(0)


def settled(state_of: Callable[[Any], str], handles: Iterable[Any], timeout_s: float = SETTLE_S) -> bool:
    """Whether every transfer has ended, done or failed, within ``timeout_s`` seconds. A lost one never does."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = {condition(state_of, handle) for handle in handles}
        if not found - {"ended"}:
            return True
        if "lost" in found or time.monotonic() > deadline:
            return False
        time.sleep(PAUSE_S[0])


def condition(state_of: Callable[[Any], str], handle: Any) -> Condition:
    """How NIXL sees the transfer. "lost": NIXL cannot say, which proves neither that it writes nor that it does not."""
    try:
        return "ended" if state_of(handle) in ("DONE", "ERR") else "running"
    except Exception:  # noqa: BLE001 (NIXL's errors have no common base; each means the same here)
        return "lost"


def _done(state_of: Callable[[Any], str], handle: Any) -> bool:
    try:
        state = state_of(handle)
    except Exception as error:
        raise TransferError(failure_of(error)) from error
    if state == "ERR":
        raise TransferError(failure(Reason.NIXL_BACKEND, "NIXL reports that a write to decode failed"))
    return state == "DONE"
