import string

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.report import deserves_warning, logged, parse_warning_line, warning_line
from sglang.srt.disaggregation.reliable.room import EndedRoom, Room

# Surrogates too: a rid comes from a client.
texts = st.none() | st.text(st.characters(codec=None), max_size=20)


def a_room(*, role: Role = Role.DECODE, rid: str | None = "r") -> Room:
    room = Room(role, 17, 3, 10.0)
    room.identify(rid=rid, peer="10.0.0.7:8998", incarnation=None)
    return room


def failed(rid: str | None = "r") -> EndedRoom:
    room = a_room(rid=rid)
    room.enter(DecodePhase.WAITING, 10.02)
    room.pages, room.bytes = 4, 65536
    return room.end(Reason.PREFILL_NEVER_SENT, 40.02)


def test_the_line():
    assert warning_line(failed()) == (
        "PD room failed: role=decode room=17 generation=3 rid=r peer=10.0.0.7:8998 incarnation=- outcome=failed "
        "phase=waiting reason=prefill_never_sent pages=4 bytes=65536 resolving_s=0.020 waiting_s=30.000"
    )


def test_what_a_logger_puts_before_it_does_not_matter():
    line = "[2025-01-01 00:00:00 TP0] WARNING rid=other " + warning_line(failed())
    assert parse_warning_line(line).rid == "r"


@given(
    role=st.sampled_from(Role), rid=texts, peer=texts, incarnation=texts, reason=st.sampled_from(Reason),
    stays=st.lists(st.floats(0, 1e6), min_size=7, max_size=7),
    room=st.integers(), pages=st.integers(0), size=st.integers(0),
)  # fmt: skip
@example(Role.DECODE, "-", "", "a=b c\nPD room failed: \x00", Reason.AUX_MISSING, [0.0] * 7, 1, 0, 0)
@example(Role.DECODE, "\ud83d\ude00", "%2D", "é\u2028", Reason.AUX_MISSING, [0.0] * 7, 1, 0, 0)
def test_it_reads_back_as_what_was_written(role, rid, peer, incarnation, reason, stays, room, pages, size):
    record = Room(role, room, 1, 0.0)
    record.identify(rid, peer, incarnation)
    record.pages, record.bytes = pages, size
    now = 0.0
    for phase, seconds in zip(PHASES[role], stays, strict=False):
        now += seconds
        if seconds > 1:
            record.enter(phase, now)
    ended = record.end(reason, now + 1)
    line = warning_line(ended)
    assert len(line.splitlines()) == 1
    assert set(line) <= set(string.printable)
    assert parse_warning_line(line) == logged(ended)


@pytest.mark.parametrize(
    "line",
    ["", "rid=r", "PD room failed: ", "PD room failed: role=decode",
     warning_line(failed()).replace("phase=waiting", "phase=x"), warning_line(failed()) + " odd",
     warning_line(failed()).replace("prefill_never_sent", "because")],
)  # fmt: skip
def test_another_line_is_an_error(line):
    with pytest.raises(ValueError, match=r"."):
        parse_warning_line(line)


def test_failures_deserve_a_warning_and_aborts_do_not():
    assert deserves_warning(failed())
    assert not deserves_warning(a_room().end(Reason.CLIENT_ABORT, 11.0))
    assert not deserves_warning(a_room().end(Reason.DELIVERED, 11.0))
