"""The one line that is logged for a room that failed, and how to read it back; pure.

    PD room failed: role=decode room=17 rid=a1 peer=10.0.0.7:8998 ... bootstrapping_s=0.020 waiting_s=30.000

Fields are separated by a blank, and none contains one: text is percent-encoded where it is not plain. ``-`` is a value
that is not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from sglang.srt.disaggregation.reliable.phases import PHASES, Phase, Role
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.room import EndedRoom

MARK = "PD room failed: "
UNKNOWN = "-"
PLAIN = "-_.~:/@[]+,"
SECONDS = "_s"


@dataclass(frozen=True)
class LoggedRoom:
    """What the line says of a room. ``phase_seconds``: the phases it went through, in order, to the millisecond."""

    role: Role
    room: int
    generation: int
    rid: str | None
    peer: str | None
    incarnation: str | None
    outcome: Outcome
    phase: Phase
    reason: Reason
    pages: int
    bytes: int
    phase_seconds: dict[Phase, float]


def deserves_warning(record: EndedRoom) -> bool:
    """A room that failed does. One that somebody aborted is as it was wanted."""
    return record.outcome is Outcome.FAILED


def logged(record: EndedRoom) -> LoggedRoom:
    return LoggedRoom(
        role=record.role,
        room=record.room,
        generation=record.generation,
        rid=record.rid,
        peer=record.peer,
        incarnation=record.incarnation,
        outcome=record.outcome,
        phase=record.phase,
        reason=record.reason,
        pages=record.pages,
        bytes=record.bytes,
        phase_seconds={phase: round(seconds, 3) for phase, seconds in record.phase_seconds().items()},
    )


def warning_line(record: EndedRoom) -> str:
    """The line, without what a logger puts before it. Its fields keep their names and order."""
    fields = vars(logged(record))
    phase_seconds: dict[Phase, float] = fields["phase_seconds"]
    plain = [f"{name}={_encode(value)}" for name, value in fields.items() if name != "phase_seconds"]
    return MARK + " ".join(plain + [f"{phase}{SECONDS}={seconds:.3f}" for phase, seconds in phase_seconds.items()])


def parse_warning_line(line: str) -> LoggedRoom:
    """What a logged line says; anything may stand before the mark. Raises ``ValueError`` for another line."""
    _, mark, text = line.partition(MARK)
    if not mark:
        raise ValueError(f"not the line of a failed room: {line!r}")
    values = dict(field.split("=", 1) for field in text.split())
    try:
        role = Role(values["role"])
        phases = {str(phase): phase for phase in PHASES[role]}
        return LoggedRoom(
            role=role,
            room=int(values["room"]),
            generation=int(values["generation"]),
            rid=_decode(values["rid"]),
            peer=_decode(values["peer"]),
            incarnation=_decode(values["incarnation"]),
            outcome=Outcome(values["outcome"]),
            phase=phases[values["phase"]],
            reason=Reason(values["reason"]),
            pages=int(values["pages"]),
            bytes=int(values["bytes"]),
            phase_seconds={
                phase: float(values[name + SECONDS]) for name, phase in phases.items() if name + SECONDS in values
            },
        )
    except KeyError as error:
        raise ValueError(f"the line of a failed room without {error}: {line!r}") from None


def _encode(value: object) -> str:
    if value is None:
        return UNKNOWN
    text = str(value)
    # A lone "-" is text too, and must not read as unknown.
    return "%2D" if text == UNKNOWN else quote(text, safe=PLAIN, errors="surrogatepass")


def _decode(text: str) -> str | None:
    return None if text == UNKNOWN else unquote(text, errors="surrogatepass")
