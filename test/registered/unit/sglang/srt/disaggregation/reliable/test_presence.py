"""When a peer counts as gone."""

import pytest

from sglang.srt.disaggregation.reliable.presence import ATTEMPTS, GRACE_S, Event, Presence

UP, DOWN, REFUSED = Event.UP, Event.DOWN, Event.REFUSED


def lost(*events: tuple[Event, float], at: float) -> dict[str, float]:
    presence = Presence()
    for event, when in events:
        presence.note("a", event, when)
    return presence.take_lost(at)


REFUSALS = tuple((REFUSED, 0.1 * number) for number in range(ATTEMPTS))


@pytest.mark.parametrize(
    ("events", "at", "gone"),
    [
        (((UP, 0.0),), 100.0, False),
        (((UP, 0.0), (DOWN, 1.0)), 100.0, False),
        (((DOWN, 0.0), *REFUSALS), GRACE_S, True),
        (((DOWN, 0.0), *REFUSALS), GRACE_S - 0.01, False),
        (((DOWN, 0.0), *REFUSALS[1:]), GRACE_S, False),
        (REFUSALS, GRACE_S, True),
        (((DOWN, 0.0), *REFUSALS, (UP, 0.4)), 100.0, False),
        (((DOWN, 0.0), *REFUSALS, (UP, 0.4), (DOWN, 1.0)), 100.0, False),
    ],
)
def test_gone_is_refused_and_stays_so(events: tuple[tuple[Event, float], ...], at: float, gone: bool):
    assert lost(*events, at=at) == ({"a": events[0][1] if events[0][0] is not UP else events[1][1]} if gone else {})


def test_each_loss_is_told_once():
    presence = Presence()
    for event, when in REFUSALS:
        presence.note("a", event, when)
    assert presence.take_lost(GRACE_S) == {"a": 0.0}
    assert presence.take_lost(GRACE_S) == {}
    assert not presence.is_absent("a")


def test_others_stay():
    presence = Presence()
    for event, when in REFUSALS:
        presence.note("a", event, when)
    presence.note("b", DOWN, 0.0)
    assert presence.take_lost(GRACE_S) == {"a": 0.0}
    assert presence.is_absent("b")
