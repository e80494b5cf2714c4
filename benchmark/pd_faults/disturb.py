"""Random faults of the library for a soak, and the reasons that each may give to a request it meets."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.faults import frames, signals
from harness.faults.nixl_calls import Answer, Delay, Raise
from harness.faults.site import DEADLINES_S, Site, address
from harness.managers import send_frames
from sglang.srt.disaggregation.reliable.reasons import Reason

TIMEOUTS = {
    Reason.METADATA_TIMEOUT,
    Reason.SEND_TIMEOUT,
    Reason.TRANSFER_TIMEOUT,
    Reason.PREFILL_NEVER_SENT,
    Reason.REGISTRATION_TIMEOUT,
    Reason.ALLOCATION_TIMEOUT,
    Reason.AUX_MISSING,
}
ABORTS = {Reason.PREFILL_ABORT, Reason.DECODE_ABORT}
GONE = {
    Reason.PEER_LOST,
    Reason.PEER_REPLACED,
    Reason.PEER_DISCONNECTED,
    Reason.PEER_FAILED,
    Reason.CONTROL_SEND_FAILED,
    Reason.REGISTRATION_FAILED,
    Reason.BOOTSTRAP_UNREACHABLE,
    Reason.BOOTSTRAP_REJECTED,
    Reason.NIXL_BACKEND,
    Reason.NIXL_NOT_FOUND,
    Reason.NIXL_CANCELLED,
}
ANY_END = frozenset(TIMEOUTS | GONE | ABORTS)
LOST = frozenset(TIMEOUTS | ABORTS | {Reason.REGISTRATION_FAILED})
# What one side found, and what the other makes of it.
INVALID = frozenset({Reason.NIXL_INVALID, Reason.PEER_FAILED})
BROKEN = frozenset({Reason.PEER_DISCONNECTED, Reason.NIXL_BACKEND, Reason.NIXL_CANCELLED, Reason.PEER_FAILED})
SHORT_S = 0.3
LONG_S = max(DEADLINES_S.values()) + 0.4
KINDS = ("registration", "metadata", "abort", "status", "delivered", "abort_ack", "ping", "pong")


@dataclass(frozen=True)
class Disturbance:
    """``start`` begins it and returns what ends it, or None where it is over at once; ``seconds`` lie between the two.
    ``reasons``: what requests that it meets may end with; none is needed where they have to succeed."""

    name: str
    start: Callable[[Site, random.Random], Callable[[], None] | None]
    seconds: float = 0.0
    reasons: frozenset[Reason] = frozenset()


def _kill(side: str, same_ports: bool) -> Callable[[Site, random.Random], None]:
    def start(site: Site, _: random.Random) -> None:
        site.kill(side)
        site.replace(side, same_ports)

    return start


def _stop(side: str) -> Callable[[Site, random.Random], Callable[[], None]]:
    def start(site: Site, _: random.Random) -> Callable[[], None]:
        role = site.role(side)
        site.standing.add(role)
        signals.stop(role.pid)

        def end() -> None:
            signals.go_on(role.pid)
            site.standing.discard(role)

        return end

    return start


def _sever(site: Site, _: random.Random) -> None:
    site.prefill.call("sever", site.data_connections(site.decode))


def _break(site: Site, chance: random.Random) -> None:
    if chance.random() < 0.5:
        site.relay.break_to_prefill()
    else:
        site.relay.break_to_decode(address(site.decode))


def _foreign(site: Site, chance: random.Random) -> None:
    role = chance.choice(site.roles)
    send_frames(role.address, [b"GET / HTTP/1.1\r\n\r\n"], [b""], [b"NixlMsgGuard"], [chance.randbytes(40)])


def _spoil(action: frames.Action, times: int = 1) -> Callable[[Site, random.Random], Callable[[], None]]:
    def start(site: Site, chance: random.Random) -> Callable[[], None]:
        for kind in KINDS:
            site.relay.rule(kind, action, times=chance.randint(0, times))
        return site.relay.clear

    return start


def _inject(method: str, effect: object, times: int) -> Callable[[Site, random.Random], Callable[[], None]]:
    def start(site: Site, _: random.Random) -> Callable[[], None]:
        prefill = site.prefill
        prefill.call("inject", method, effect, 1, times)

        def end() -> None:
            prefill.call("heal")

        return end

    return start


DISTURBANCES = (
    *(
        Disturbance(f"kill {side}{', same ports' * same}", _kill(side, same), reasons=ANY_END)
        for side in ("prefill", "decode")
        for same in (False, True)
    ),
    *(Disturbance(f"stop {side} briefly", _stop(side), SHORT_S) for side in ("prefill", "decode")),
    *(Disturbance(f"stop {side} too long", _stop(side), LONG_S, ANY_END) for side in ("prefill", "decode")),
    Disturbance("sever the data connection", _sever),
    Disturbance("break control connections", _break, reasons=LOST),
    Disturbance("foreign traffic", _foreign),
    Disturbance("delay messages", _spoil(frames.delay(SHORT_S), 3), SHORT_S),
    Disturbance("duplicate messages", _spoil(frames.duplicate, 3), SHORT_S),
    Disturbance("reorder messages", _spoil(frames.reorder, 3), SHORT_S),
    Disturbance("drop messages", _spoil(frames.drop), SHORT_S, LOST),
    Disturbance("corrupt messages", _spoil(frames.corrupt), SHORT_S, LOST),
    Disturbance("NIXL disconnects", _inject("transfer", Raise("nixlRemoteDisconnectError"), 2), SHORT_S),
    Disturbance(
        "NIXL refuses",
        _inject("transfer", Raise("nixlInvalidParamError"), 2),
        SHORT_S,
        INVALID,
    ),
    Disturbance("NIXL is slow", _inject("check_xfer_state", Delay(0.02), 20), SHORT_S),
    Disturbance("NIXL answers ERR", _inject("check_xfer_state", Answer("ERR"), 2), SHORT_S, BROKEN),
)


@contextlib.contextmanager
def during(site: Site, disturbance: Disturbance, chance: random.Random) -> Iterator[float]:
    """The disturbance, from its start to its end; yields when (monotonic) it is to end."""
    end = disturbance.start(site, chance)
    try:
        yield time.monotonic() + disturbance.seconds
    finally:
        if end is not None:
            end()
