"""When a message is sent again."""

from sglang.srt.disaggregation.reliable.reminders import FIRST_S, LAST_S, Reminders


def times(reminders: Reminders, until: float) -> list[float]:
    """When it would be sent, looked at every millisecond."""
    return [ms / 1000 for ms in range(int(until * 1000)) if reminders.take(ms / 1000)]


def test_nothing_is_repeated_that_was_not_sent():
    assert times(Reminders(), 10) == []


def test_it_is_repeated_soon_and_then_less_and_less_often():
    reminders = Reminders()
    reminders.sent(0.0)
    found = times(reminders, 30)
    gaps = [later - earlier for earlier, later in zip([0.0, *found], found, strict=False)]
    assert gaps[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert gaps == sorted(gaps)
    assert gaps[-1] == LAST_S
    assert reminders.attempt == len(found)


def test_there_is_no_hurry_once_it_was_acknowledged():
    reminders = Reminders()
    reminders.sent(0.0)
    assert reminders.take(FIRST_S)
    reminders.heard()
    reminders.take(3 * FIRST_S)
    assert not reminders.take(3 * FIRST_S + LAST_S - 0.1)
    assert reminders.take(3 * FIRST_S + LAST_S)


def test_another_message_begins_anew():
    reminders = Reminders()
    reminders.sent(0.0)
    assert reminders.take(FIRST_S)
    reminders.sent(10.0)
    assert reminders.attempt == 0
    assert not reminders.take(10.0)
    assert reminders.take(10.0 + FIRST_S)
