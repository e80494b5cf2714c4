"""NIXL's connections to decodes, and how a broken one is made anew.

After a disconnect NIXL keeps the peer's metadata, and adding it again does nothing: only removing the peer, adding it
and preparing its descriptors again heals (seen with NIXL 1.5.1). What was posted before may be lost; nothing posted
before is written afterwards, because its connection is gone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.environ import envs

from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.workers import Workers, count_of

logger = logging.getLogger(__name__)


class PeerForgottenError(RuntimeError):
    """The peer's registration is gone: there is nothing to connect to."""

    reason = Reason.PEER_LOST


class PeerAbsentError(RuntimeError):
    """The peer's control connection broke as well, and was refused since: its process is gone, or about to be."""

    reason = Reason.PEER_DISCONNECTED


@dataclass
class _Link:
    """``epoch`` counts the connections closed. ``whole``: there is one. ``healing``: one broke, and nothing has been
    written since."""

    epoch: int = 0
    whole: bool = True
    healing: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class LinkState:
    """What is known of a connection; see :class:`_Link`."""

    epoch: int
    whole: bool
    healing: bool


class Links:
    """Every method names peers by their NIXL agent. ``manager`` is prefill's ``ReliableKVManager``. Any thread may
    call."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._links: dict[str, _Link] = {}
        # Connections to peers that may have lived on, closed so far. NIXL leaves the sockets of such a one open.
        self.closed = 0
        self._stuck: list[Any] = []
        self._workers = Workers(manager.agent, count_of(manager.agent, envs.SGLANG_DISAGGREGATION_NIXL_BACKEND.get()))
        # Their connections within this process are made now, and not when a peer is lost.
        self._workers.work()
        manager.control.start("nixl-workers", self._workers.run)

    def epoch(self, agent: str) -> int:
        """Which connection a write posted now will use; connects where the last one was closed.

        Raises NIXL's error, :class:`PeerAbsentError` or :class:`PeerForgottenError`.
        """
        peer, link = self._peer(agent), self._link(agent)
        with link.lock:
            if not link.whole:
                self._connect(peer)
                link.whole = True
            return link.epoch

    def state(self, agent: str) -> LinkState:
        """As it is now; waits for nobody, also while the connection is being made."""
        link = self._links.get(agent) or _Link()
        return LinkState(link.epoch, link.whole, link.healing)

    def close(self, agent: str, epoch: int) -> None:
        """The connection of ``epoch`` is broken: close it, unless that was done. What was in flight over it is over."""
        link = self._link(agent)
        with link.lock:
            if link.epoch != epoch:
                return
            if not link.healing:
                logger.warning("the connection to decode %s broke", agent)
            link.epoch += 1
            link.whole, link.healing = False, True
            self.closed += 1
            self.disconnect(agent)

    def disconnect(self, agent: str) -> None:
        """Drop the connection and everything prepared for it."""
        manager = self._manager
        for prepared in (manager.prep_handles, manager.prep_handles_slice_dst, manager._prepared_state_plans):
            prepared.pop(agent, None)
        manager.agent.remove_remote_agent(agent)

    def is_healing(self, agents: Iterable[str]) -> bool:
        """Whether a connection to one of these peers broke, and nothing has been written since."""
        return any(self._link(agent).healing for agent in agents)

    def refuse(self, agent: str) -> None:
        """The peer is not taken in after all."""
        self.closed += 1
        self.forget(agent)

    def forget(self, agent: str) -> None:
        """The peer is gone for good."""
        self.disconnect(agent)
        self._links.pop(agent, None)
        self._workers.close_old_connections()

    def wrote(self, agents: Iterable[str]) -> None:
        """A write to these peers arrived: where the connection was broken, it is healed now."""
        self._healed(agents, "healed")

    def gave_up(self, agents: Iterable[str]) -> None:
        """A room failed because the connection to these peers stayed broken."""
        self._healed(agents, "failed")

    def abandon(self, handles: list[Any]) -> None:
        """Release handles of writes that ended with their connection; NIXL may still hold on to one for a while."""
        waiting, self._stuck = [*self._stuck, *handles], []
        for handle in waiting:
            try:
                handle.release()
            except Exception:  # noqa: BLE001 (NIXL's errors have no common base; each means that it still runs)
                self._stuck.append(handle)

    def _connect(self, peer: Any) -> None:
        address, _ = endpoint(peer.endpoint, peer.dst_port)
        if self._manager.outbox.is_absent(address):
            # UCX leaves a descriptor behind each time a connection is refused.
            raise PeerAbsentError(f"decode {address} does not listen")
        peer.kv_xfer_segments = None
        self._manager.agent.add_remote_agent(peer.agent_metadata)
        self._manager._prepare_payload_xfer(peer)
        self._manager._prepare_state_xfer(peer)

    def _peer(self, agent: str) -> Any:
        peer = self._manager.decode_kv_args_table.get(agent)
        if peer is None:
            raise PeerForgottenError(f"decode {agent} is not registered any more")
        return peer

    def _healed(self, agents: Iterable[str], result: str) -> None:
        for agent in agents:
            link = self._link(agent)
            if link.healing:
                link.healing = False
                logger.warning("the connection to decode %s: %s", agent, result)
                self._manager.reconnects.count(result)
                self._workers.close_old_connections()

    def _link(self, agent: str) -> _Link:
        return self._links.setdefault(agent, _Link())
