import pytest

from sglang.srt.disaggregation.reliable.phases import DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.query import LIMIT, BadQueryError, parameters, room_query
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.search import RoomFilter, State


def test_nothing_asked_is_every_room_up_to_the_usual_limit():
    query = room_query("", Role.DECODE)
    assert (query.wanted, query.limit, query.given) == (RoomFilter(), LIMIT, {})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("room=17", RoomFilter(room=17)),
        (f"room={2**63 - 1}", RoomFilter(room=2**63 - 1)),
        ("rid=a%2Bb%20c", RoomFilter(rid="a+b c")),
        ("peer=10.0.0.7:8998", RoomFilter(peer="10.0.0.7:8998")),
        ("phase=waiting", RoomFilter(phase=DecodePhase.WAITING)),
        ("reason=peer_lost", RoomFilter(reason=Reason.PEER_LOST)),
        ("state=live", RoomFilter(state=State.LIVE)),
        ("state=ended&room=0", RoomFilter(state=State.ENDED, room=0)),
    ],
)
def test_each_filter(text, wanted):
    assert room_query(text, Role.DECODE).wanted == wanted


def test_the_limit_has_bounds():
    assert [room_query(f"limit={limit}", Role.DECODE).limit for limit in (1, 1000)] == [1, 1000]


def test_phases_are_those_of_the_role():
    assert room_query("phase=bootstrapping", Role.PREFILL).wanted.phase is PrefillPhase.BOOTSTRAPPING
    with pytest.raises(BadQueryError) as bad:
        room_query("phase=resolving", Role.PREFILL)
    phases = "bootstrapping, waiting, transferring"
    assert str(bad.value) == f"phase='resolving' is not valid; allowed: the phases of prefill: {phases}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("room=", "room='' is not valid; allowed: a whole number from 0"),
        ("room=-1", "room='-1' is not valid; allowed: a whole number from 0"),
        ("room=1e3", "room='1e3' is not valid; allowed: a whole number from 0"),
        ("room=%C2%B2", "room='²' is not valid; allowed: a whole number from 0"),
        ("limit=0", "limit='0' is not valid; allowed: a whole number from 1 to 1000"),
        ("limit=1001", "limit='1001' is not valid; allowed: a whole number from 1 to 1000"),
        ("rid=", "rid='' is not valid; allowed: any text but none"),
        ("state=dead", "state='dead' is not valid; allowed: live, ended"),
        ("x=1", "no parameter 'x'; allowed: room, rid, peer, phase, reason, state, limit"),
        ("room=1&room=2", "room is given twice, '1' and '2'; allowed: once"),
    ],
)
def test_a_bad_filter_names_what_was_given_and_what_is_allowed(text, said):
    with pytest.raises(BadQueryError) as bad:
        room_query(text, Role.DECODE)
    assert str(bad.value) == said


def test_an_unknown_reason_is_told_them_all():
    with pytest.raises(BadQueryError) as bad:
        room_query("reason=bad_luck", Role.DECODE)
    assert str(bad.value) == f"reason='bad_luck' is not valid; allowed: {', '.join(Reason)}"


@pytest.mark.parametrize("text", ["rid=%FF", "&".join(f"x{i}=1" for i in range(1000))])
def test_what_is_no_query_string(text):
    with pytest.raises(BadQueryError, match="is no query string"):
        room_query(text, Role.DECODE)


@pytest.mark.parametrize("text", ["room=" + "9" * 5000, "rid=1&" + "y" * 5000 + "=1", "room=" + "x" * 5000])
def test_an_error_does_not_repeat_a_flood(text):
    with pytest.raises(BadQueryError) as bad:
        room_query(text, Role.DECODE)
    assert len(str(bad.value)) < 300


def test_a_path_that_takes_none():
    assert parameters("", allowed=()) == {}
    with pytest.raises(BadQueryError, match="no parameter 'a'; allowed: none"):
        parameters("a=1", allowed=())
