"""The decodes that are registered with a prefill rank: who they are, and why one is not."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.disaggregation.nixl.conn import KVArgsRegisterInfo

from sglang.srt.disaggregation.reliable import configuration, stamps, wire
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.layout import page_differences
from sglang.srt.disaggregation.reliable.outbox import endpoint
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.stamps import STOCK, Stamp

logger = logging.getLogger(__name__)


class IncompatibleError(ValueError):
    """A decode is configured differently; the message names what differs."""


@dataclass(frozen=True)
class _Known:
    """``since``: when it registered last, in monotonic seconds."""

    stamp: Stamp
    address: str
    ipv6: bool
    since: float


class Peers:
    """Decodes by their NIXL agent. ``manager`` is prefill's ``ReliableKVManager``. For the control threads."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._known: dict[str, _Known] = {}
        # The last frame of each message to an address where a peer of ours listens.
        self._stamps: dict[str, bytes] = {}
        self._refused: dict[str, Failure] = {}

    def register(self, message: wire.Registration, stamp: Stamp, frames: Sequence[bytes]) -> bool:
        """Take a decode in; returns whether it was. Its rooms get the reason where not."""
        manager = self._manager
        address, ipv6 = endpoint(message.sender.ip, message.sender.port)
        try:
            # First: a loss that was found before this is not that of the process which registers.
            manager.outbox.connect(address, ipv6)
            info = KVArgsRegisterInfo.from_zmq(frames[1:])
            self._check(info, configuration.find(frames))
            manager._add_remote_peer(info)
        except Exception as error:
            # NIXL's and upstream's errors have no common base. Whatever it is, it is this peer's alone.
            logger.exception("decode %s at %s is not taken in", message.agent, message.sender)
            manager.decode_kv_args_table.pop(message.agent, None)
            manager.transport.links.refuse(message.agent)
            transport = type(error).__name__.startswith("nixl")
            reason = Reason.REGISTRATION_FAILED if transport else Reason.PEER_INCOMPATIBLE
            self._refused[message.agent] = failure(reason, f"prefill refused this decode's registration: {error}")
            return False
        self._refused.pop(message.agent, None)
        self._known[message.agent] = _Known(stamp, address, ipv6, time.monotonic())
        if stamp.protocol:
            self._stamps[address] = stamps.stamp(to=stamp.sender)
        return True

    def refusal(self, agent: str) -> Failure | None:
        """Why rooms of this decode cannot be served; None where it is registered."""
        if agent in self._manager.decode_kv_args_table:
            return None
        unknown = failure(Reason.REGISTRATION_FAILED, "prefill knows no registration of this decode")
        return self._refused.get(agent, unknown)

    def refusals(self) -> dict[str, Failure]:
        """The decodes that were not taken in, by agent, and why."""
        return dict(self._refused)

    def protocol(self, agent: str) -> int:
        """The version of our own messages that it understands; 0 for a stock upstream."""
        return self._stamp(agent).protocol

    def incarnation(self, agent: str) -> str | None:
        """Which life of its process it is; None where it does not tell."""
        return self._stamp(agent).sender

    def of_ours(self) -> dict[str, bool]:
        """Where peers of ours listen, and whether that is an IPv6 address."""
        return {known.address: known.ipv6 for known in list(self._known.values()) if known.stamp.protocol}

    def stamped(self, address: str, frames: list[bytes]) -> list[bytes]:
        """The message to ``address`` with its stamp, where a peer of ours listens."""
        stamp = self._stamps.get(address)
        return frames if stamp is None else [*frames, stamp]

    def _stamp(self, agent: str) -> Stamp:
        known = self._known.get(agent)
        return STOCK if known is None else known.stamp

    def endpoints(self) -> list[tuple[str, int]]:
        return [(peer.endpoint, peer.dst_port) for peer in list(self._manager.decode_kv_args_table.values())]

    def at(self, address: str, until: float = math.inf) -> set[str]:
        """The agents that listen at ``address`` (``tcp://host:port``) and registered up to a monotonic time."""
        known = list(self._known.items())
        return {agent for agent, one in known if one.address == address and one.since <= until}

    def forget(self, agents: set[str]) -> None:
        """Give back everything that is kept for these."""
        for agent in agents:
            self._manager.decode_kv_args_table.pop(agent, None)
            self._manager.transport.forget(agent)
            self._refused.pop(agent, None)
            known = self._known.pop(agent, None)
            if known is not None and not self.at(known.address):
                self._stamps.pop(known.address, None)

    def _check(self, info: KVArgsRegisterInfo, theirs: configuration.Configuration | None) -> None:
        manager = self._manager
        if theirs is not None:
            found = configuration.differences(configuration.of(manager), theirs, not manager.is_mla_backend)
            if found:
                raise IncompatibleError("; ".join(found))
            return
        same_heads = info.decode_tp_size == manager.attn_tp_size or manager.is_mla_backend
        if not same_heads or manager.requires_dcp_relayout(info.dst_dcp_size, info.dst_dcp_rank):
            return
        kinds = list(zip(manager.kv_args.kv_data_mem_kinds, info.dst_kv_mem_kinds, strict=False))
        differences = page_differences(manager.kv_args.kv_item_lens, info.dst_kv_item_lens, kinds)
        if differences:
            raise IncompatibleError("; ".join(differences))
