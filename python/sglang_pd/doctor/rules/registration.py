"""A decode that does not get to know a prefill rank: its bootstrap server is silent, or does not know the rank."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_pd.doctor.case import Case
from sglang_pd.doctor.finding import Finding, Severity, Support
from sglang_pd.doctor.view import View
from sglang_pd.doctor.words import by_number, counted, seconds

RULE = "registration"
# Both phases take milliseconds.
LATE_S = 2.0
RECENT_S = 120.0
PHASES = frozenset({"resolving", "bootstrapping"})
REASONS = frozenset(
    {"bootstrap_unreachable", "bootstrap_rejected", "registration_timeout", "registration_failed", "dp_rank_unresolved"}
)


def look(case: Case) -> Iterator[Finding]:
    for decode in case.decodes:
        late = [room for room in decode.live if room.phase in PHASES and room.phase_seconds > LATE_S]
        failed = decode.failed(REASONS, RECENT_S)
        by_peer: dict[str, list] = {}
        for room in [*late, *failed]:
            by_peer.setdefault(room.peer or "?", []).append(room)
        for address, rooms in by_peer.items():
            yield _finding(case, decode, address, rooms)


def _finding(case: Case, decode: View, address: str, of: list) -> Finding:
    prefill = case.server_at(decode, address)
    live = [room for room in of if room.live]
    failed = [room for room in of if not room.live]
    evidence, against = [], []
    if live:
        oldest = max(room.phase_seconds for room in live)
        evidence.append(
            f"{counted(len(live), 'room')} of {decode.name} do not get to a rank, for up to {seconds(oldest)}"
        )
    if failed:
        counts: dict[str, int] = {}
        for room in failed:
            counts[room.reason or "?"] = counts.get(room.reason or "?", 0) + 1
        evidence.append(f"rooms failed within {RECENT_S:.0f} s: {by_number(counts)}")
    if prefill is not None:
        reasons = [one for one in prefill.ready_reasons if "bootstrap" in one]
        evidence += [f"{prefill.name} says: {one}" for one in reasons]
        if not prefill.answers:
            evidence.append(f"{prefill.name} does not answer at all")
        elif not reasons and not prefill.ready_reasons:
            against.append(f"{prefill.name} is ready, and its bootstrap server answers it")
    else:
        evidence.append(f"no prefill that was looked at has its bootstrap server at {address}")
    rooms, total = case.refs(of)
    name = prefill.name if prefill else f"a prefill at {address}"
    return Finding(
        RULE,
        Severity.FAULT if live else Severity.WARNING,
        Support.LIKELY if not against else Support.POSSIBLE,
        f"{decode.name} → {name} (bootstrap, {address})",
        f"{decode.name} cannot find or register with {name}",
        tuple(evidence),
        tuple(against),
        (
            f"on the machine of {decode.name}: curl http://{address}/health; are host and port the prefill's?",
            "a host that only prefill's machine knows (127.0.0.1) does not work from another: see --host",
        ),
        min((room.started_at for room in of), default=None),
        rooms,
        total,
    )
