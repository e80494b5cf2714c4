"""What the query string of a request asks for; pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar
from urllib.parse import parse_qsl

from sglang.srt.disaggregation.reliable.phases import PHASES, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.search import RoomFilter, State

# Rooms listed where nothing is said, and at most.
LIMIT, MOST = 100, 1000
ROOM_PARAMETERS = ("room", "rid", "peer", "phase", "reason", "state", "limit")

# An error repeats no more of what was given.
_SHOWN = 100

T = TypeVar("T", bound=StrEnum)


class BadQueryError(ValueError):
    """A query string asks for what there is not; the message names what was given and what is allowed."""


@dataclass(frozen=True)
class RoomQuery:
    """Rooms that are ``wanted``, at most ``limit``; ``given``: the parameters as they came."""

    wanted: RoomFilter
    limit: int
    given: dict[str, str]


def parameters(text: str, allowed: Collection[str]) -> dict[str, str]:
    """The parameters of a query string, by name; raises :class:`BadQueryError` unless each is allowed, and once."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=2 * len(ROOM_PARAMETERS))
    except ValueError as error:
        raise BadQueryError(f"{_short(text)} is no query string: {error}") from None
    found: dict[str, str] = {}
    for name, value in pairs:
        if name not in allowed:
            raise BadQueryError(f"no parameter {_short(name)}; allowed: {', '.join(allowed) or 'none'}")
        if name in found:
            raise BadQueryError(f"{name} is given twice, {_short(found[name])} and {_short(value)}; allowed: once")
        found[name] = value
    return found


def room_query(text: str, role: Role) -> RoomQuery:
    """What a query string asks a rank of this role to list; raises :class:`BadQueryError`."""
    given = parameters(text, ROOM_PARAMETERS)
    phases = {str(phase): phase for phase in PHASES[role]}
    phase = given.get("phase")
    if phase is not None and phase not in phases:
        raise _bad("phase", phase, f"the phases of {role}: {', '.join(phases)}")
    limit = _number(given, "limit", 1, MOST)
    wanted = RoomFilter(
        room=_number(given, "room", 0, None),
        rid=_text(given, "rid"),
        peer=_text(given, "peer"),
        phase=None if phase is None else phases[phase],
        reason=_member(given, "reason", Reason),
        state=_member(given, "state", State),
    )
    return RoomQuery(wanted, LIMIT if limit is None else limit, given)


def _number(given: dict[str, str], name: str, low: int, high: int | None) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    # No number that is meant is as long as this, and longer ones take their time.
    if value.isascii() and value.isdigit() and len(value) < _SHOWN:
        number = int(value)
        if low <= number and (high is None or number <= high):
            return number
    raise _bad(name, value, f"a whole number from {low}" + ("" if high is None else f" to {high}"))


def _text(given: dict[str, str], name: str) -> str | None:
    value = given.get(name)
    if value == "":
        raise _bad(name, value, "any text but none")
    return value


def _member(given: dict[str, str], name: str, kind: type[T]) -> T | None:
    value = given.get(name)
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise _bad(name, value, ", ".join(kind)) from None


def _bad(name: str, value: str, allowed: str) -> BadQueryError:
    return BadQueryError(f"{name}={_short(value)} is not valid; allowed: {allowed}")


def _short(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")
