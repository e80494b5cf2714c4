"""Whether the process at the other end answers: a stopped one keeps its connections, and only this tells.

Each side asks every peer of ours once a second, and a control thread answers: a scheduler that is busy does not matter.
A peer that is silent for ``SGLANG_PD_SILENCE_TIMEOUT`` has stopped or is out of reach, and its rooms end. It may come
back: nothing that is kept for it is given up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from sglang.srt.disaggregation.reliable import stamps, wire
from sglang.srt.disaggregation.reliable.outbox import PeerUnreachableError, endpoint

logger = logging.getLogger(__name__)

# How often peers are asked, in seconds.
EVERY_S = 1.0


class Pulse:
    """Who has answered when; pure. Times are monotonic seconds; ``timeout_s``: after so long, a peer is silent."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._heard: dict[str, float] = {}
        self._looked: float | None = None
        self._silent: set[str] = set()

    def heard(self, address: str, now: float) -> None:
        if address in self._heard:
            self._heard[address] = now

    def is_silent(self, address: str) -> bool:
        return address in self._silent

    def look(self, addresses: Iterable[str], now: float) -> tuple[list[str], list[str]]:
        """The peers that have fallen silent since the last look, and those that are silent still.

        Whoever looks late was held up itself, and can have heard nobody: everybody gets the time anew.
        """
        late = self._looked is not None and now - self._looked > 2 * EVERY_S
        self._looked = now
        self._heard = {address: now if late else self._heard.get(address, now) for address in addresses}
        silent = {address for address, at in self._heard.items() if now - at > self.timeout_s}
        fallen, still = sorted(silent - self._silent), sorted(silent & self._silent)
        self._silent = silent
        return fallen, still


def listen_for_ever(manager: Any) -> None:
    """The thread for it on either side; ``manager`` is its ``ReliableKVManager``."""
    control, pulse = manager._role_control, manager.pulse
    while True:
        time.sleep(EVERY_S)
        peers = control.peers_of_ours()
        fallen, still = pulse.look(peers, time.monotonic())
        for address in fallen:
            logger.warning("%s has not answered for %g s: it has stopped, or is out of reach", address, pulse.timeout_s)
        for address in (*fallen, *still):
            control.silent(address, f"{address} has not answered for {pulse.timeout_s:g} s")
        here = wire.Address(manager.local_ip, manager.rank_port)
        for address, ipv6 in peers.items():
            _send(manager, address, wire.Ping(here, address).frames(), ipv6)


def answer(manager: Any, ping: wire.Ping) -> None:
    """Runs on the control thread."""
    address, ipv6 = endpoint(ping.sender.ip, ping.sender.port)
    _send(manager, address, wire.Pong(ping.address).frames(), ipv6)


def _send(manager: Any, address: str, frames: list[bytes], ipv6: bool) -> None:
    try:
        # Whoever listens there: a process that took another's place is found out by its stamp.
        manager.outbox.send(address, [*frames, stamps.stamp(to=None)], ipv6)
    except PeerUnreachableError as error:
        logger.debug("%s", error)
