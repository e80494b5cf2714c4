"""NIXL's worker threads, and how to have them close the connections of a peer that is gone.

With ``num_threads`` (upstream: 8 on prefill) each worker has a connection of its own to every decode, and works only
while a transfer needs it. So it does not finish closing the connections of a peer that was removed, and their
descriptors stay until it next has something to do (seen with NIXL 1.5.1 over TCP: one socket a worker, each time).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

# NIXL gives at least every so many descriptors of a transfer to another worker.
SPLIT = 1024
HOST_MEMORY = "DRAM"
# When the workers look, after a peer was disconnected: pauses before each time, in seconds.
CLOSING_S = (0.1, 0.9)


class Workers:
    """``agent`` is the NIXL agent whose workers these are; ``count``: how many, 0 for none."""

    def __init__(self, agent: Any, count: int) -> None:
        self._agent = agent
        self._count = count
        self._lists: tuple[Any, Any] | None = None
        self._wanted = threading.Event()

    def close_old_connections(self) -> None:
        """A peer was disconnected: have the thread that runs :meth:`run` make the workers notice."""
        self._wanted.set()

    def run(self) -> None:
        """For a thread of its own; does not return."""
        while True:
            self._wanted.wait()
            self._wanted.clear()
            # Some of it takes a while, and a worker that is looked at too early has nothing to close yet.
            for pause_s in CLOSING_S:
                time.sleep(pause_s)
                self.work()

    def work(self) -> None:
        """Give every worker something to do, a transfer of single bytes within this process; blocks for milliseconds.

        An error is logged: what it would have cleaned up stays until the next transfer.
        """
        if self._count == 0:
            return
        try:
            here, there = self._prepared()
            every = np.arange(self._count * SPLIT, dtype=np.int32)
            handle = self._agent.make_prepped_xfer("WRITE", here, every, there, every)
            state = self._agent.transfer(handle)
            while state == "PROC":
                state = self._agent.check_xfer_state(handle)
            handle.release()
        except Exception:
            # NIXL's errors have no common base.
            logger.exception("NIXL's workers could not be made to close old connections")

    def _prepared(self) -> tuple[Any, Any]:
        if self._lists is None:
            size = self._count * SPLIT
            # A byte between any two, or NIXL would take them for one block.
            self._scratch = np.zeros((2, 2 * size), np.uint8)
            start = self._scratch.ctypes.data
            self._agent.register_memory([(start, self._scratch.nbytes, 0, "")], HOST_MEMORY)
            self._lists = (self._list("", start, size), self._list(self._agent.name, start + 2 * size, size))
        return self._lists

    def _list(self, owner: str, start: int, size: int) -> Any:
        return self._agent.prep_xfer_dlist(owner, np.array([(start, 1, 0, 2, size)], np.uint64), HOST_MEMORY)


def count_of(agent: Any, backend: str) -> int:
    """How many worker threads the agent's backend has."""
    return int(agent.get_backend_params(backend).get("num_threads", 0))
