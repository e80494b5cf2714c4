"""How often an answer is made anew."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sglang_pd.ration import Ration


def test_who_asks_now_and_then_always_gets_a_new_one():
    ration = Ration(rate=2.0, burst=5.0)
    assert all(ration.take(second / 2) for second in range(100))


def test_a_few_at_once_do_too_and_a_crowd_does_not():
    ration = Ration(rate=2.0, burst=5.0)
    assert [ration.take(0.0) for _ in range(7)] == [True] * 5 + [False] * 2
    assert [ration.take(0.5) for _ in range(2)] == [True, False]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=300))
def test_in_the_long_run_it_is_the_rate(pauses):
    ration, now, made = Ration(rate=2.0, burst=5.0), 0.0, 0
    for pause in pauses:
        now += pause
        made += ration.take(now)
    assert made <= 5 + 2 * now + 1
