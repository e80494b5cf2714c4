"""When a peer that answers nothing counts as stopped."""

from sglang.srt.disaggregation.reliable.pulse import EVERY_S, Pulse

TIMEOUT_S = 5.0


def silent_at(answers: set[int], until: int, pulse: Pulse | None = None) -> list[int]:
    """The looks, one a second, at which the peer "a" is told to be silent; it answers after those in ``answers``."""
    pulse, told = pulse or Pulse(TIMEOUT_S), []
    for look in range(until):
        fallen, still = pulse.look(["a"], look * EVERY_S)
        assert not (fallen and still)
        told += [look] if fallen or still else []
        if look in answers:
            pulse.heard("a", look * EVERY_S + 0.1)
    return told


def test_a_peer_that_answers_is_not_silent():
    assert silent_at(set(range(30)), 30) == []


def test_one_that_never_answered_is_silent_after_the_time():
    assert silent_at(set(), 9) == [6, 7, 8]


def test_one_that_goes_on_is_not_silent_any_more():
    assert silent_at({0, 10, 11, 12}, 14) == [6, 7, 8, 9, 10]


def test_it_falls_silent_once_and_is_silent_still():
    pulse = Pulse(TIMEOUT_S)
    looks = [pulse.look(["a", "b"], float(now)) for now in range(7) if pulse.heard("b", float(now)) is None]
    assert looks[-1] == (["a"], [])
    assert pulse.is_silent("a")
    assert not pulse.is_silent("b")
    assert pulse.look(["a"], 7.0) == ([], ["a"])


def test_who_was_stopped_itself_blames_nobody():
    pulse = Pulse(TIMEOUT_S)
    assert pulse.look(["a"], 0.0) == ([], [])
    assert pulse.look(["a"], 60.0) == ([], [])
    assert silent_at(set(), 1, pulse) == []


def test_a_peer_that_left_is_forgotten():
    pulse = Pulse(TIMEOUT_S)
    pulse.look(["a"], 0.0)
    pulse.look([], 1.0)
    pulse.heard("a", 1.0)
    for now in range(2, 8):
        assert pulse.look(["a"], float(now)) == ([], [])
