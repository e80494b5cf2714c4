"""What a scheduler rank says of its peers on ``/pd/peers``; pure. ``docs/status.md`` tells the schema."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sglang.srt.disaggregation.reliable.failure import Failure
from sglang.srt.disaggregation.reliable.links import LinkState
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Phase, PrefillPhase
from sglang.srt.disaggregation.reliable.reasons import Outcome
from sglang.srt.disaggregation.reliable.room import EndedRoom, RoomRecord
from sglang.srt.disaggregation.reliable.status import Moment, Speaker

# A room gets there by what its peer sent.
HEARD: Collection[Phase] = (PrefillPhase.WAITING, DecodePhase.TRANSFERRING, DecodePhase.FINISHING)

# Of upstream's ``PrefillServerInfo``.
LAYOUT = ("attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype", "kv_layout")


@dataclass
class Traffic:
    """The rooms with one peer: ``live``, and the remembered ones that ``ended``. ``heard``: when it last showed in
    one of them, in seconds of the ledger's clock."""

    live: int = 0
    ended: Counter[Outcome] = field(default_factory=lambda: Counter(dict.fromkeys(Outcome, 0)))
    failures: Counter[str] = field(default_factory=Counter)
    heard: float | None = None

    def entry(self, now: Moment) -> dict[str, Any]:
        return {
            "live_rooms": self.live,
            "recently_ended": {str(outcome): number for outcome, number in self.ended.items()},
            "recent_failures_by_reason": dict(self.failures.most_common()),
            "last_heard_at": None if self.heard is None else now.of(self.heard),
        }


@dataclass(frozen=True)
class Decode:
    """A decode rank that is registered with this prefill rank. ``info``: upstream's ``KVArgsRegisterInfo``. ``live``:
    the live rooms that it sent its metadata for."""

    info: Any
    protocol: int
    link: LinkState
    absent: bool
    live: int

    @property
    def address(self) -> str:
        return f"{self.info.endpoint}:{self.info.dst_port}"


@dataclass(frozen=True)
class PrefillRank:
    """A prefill rank that this decode rank has registered with. ``address``: ``ip:port``, for control messages."""

    address: str
    pp_rank: int | None
    absent: bool


def traffic(records: Iterable[RoomRecord]) -> dict[str, Traffic]:
    """By the peer's address, as rooms know it."""
    found: dict[str, Traffic] = {}
    for record in records:
        if record.peer is None:
            continue
        one = found.setdefault(record.peer, Traffic())
        heard = [entered for phase, entered in record.timeline if phase in HEARD]
        one.heard = max((at for at in (one.heard, *heard) if at is not None), default=None)
        if not isinstance(record, EndedRoom):
            one.live += 1
            continue
        one.ended[record.outcome] += 1
        if record.outcome is Outcome.FAILED:
            one.failures[str(record.reason)] += 1
    return found


def of_prefill(
    speaker: Speaker,
    now: Moment,
    decodes: Mapping[str, Decode],
    refused: Mapping[str, Failure],
    records: Iterable[RoomRecord],
) -> dict[str, Any]:
    """``decodes``, ``refused``: by NIXL agent. ``records``: rooms, live and ended."""
    by_peer = traffic(records)
    return {
        **speaker.head("peers", now),
        "peers": [
            _decode(agent, one, by_peer.get(one.address, Traffic()), now) for agent, one in sorted(decodes.items())
        ],
        "refused": [
            {"agent": agent, "reason": str(why.reason), "text": str(why)} for agent, why in sorted(refused.items())
        ],
    }


def of_decode(
    speaker: Speaker,
    now: Moment,
    layouts: Mapping[str, Any],
    ranks: Mapping[str, Sequence[PrefillRank]],
    records: Iterable[RoomRecord],
) -> dict[str, Any]:
    """``layouts``: upstream's ``PrefillServerInfo``; ``ranks``: those registered with; both by bootstrap address.
    ``records``: rooms, live and ended. A prefill that no more than a room names is a peer too."""
    by_peer = traffic(records)
    return {
        **speaker.head("peers", now),
        "peers": [
            {
                "address": address,
                "layout": None if (info := layouts.get(address)) is None else _layout(info),
                "ranks": [asdict(rank) for rank in ranks.get(address, ())],
                **by_peer.get(address, Traffic()).entry(now),
            }
            for address in sorted({*layouts, *ranks, *by_peer})
        ],
    }


def unknown(speaker: Speaker, now: Moment) -> dict[str, Any]:
    """With upstream's classes, which do not say."""
    return {**speaker.head("peers", now), "peers": None}


def _decode(agent: str, one: Decode, rooms: Traffic, now: Moment) -> dict[str, Any]:
    info = one.info
    return {
        "agent": agent,
        "address": one.address,
        "protocol": one.protocol,
        "absent": one.absent,
        "layout": {
            "tp_size": info.decode_tp_size,
            "tp_rank": info.decode_tp_rank,
            "dcp_size": info.dst_dcp_size,
            "dcp_rank": info.dst_dcp_rank,
            "kv_buffers": len(info.dst_kv_item_lens),
            "page_bytes": sum(info.dst_kv_item_lens),
            "memory": sorted(set(info.dst_kv_mem_kinds)),
        },
        "connection": {"closed": one.link.epoch, "whole": one.link.whole, "healing": one.link.healing},
        **rooms.entry(now),
        "live_rooms": one.live,
    }


def _layout(info: Any) -> dict[str, Any]:
    return {name: getattr(info, name) for name in LAYOUT}
