"""Supervised threads and message counters."""

import threading

import pytest

from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor, worth_a_line


def test_a_thread_that_dies_is_started_again():
    supervisor = Supervisor(backoff_s=(0.0, 0.0))
    lives, done = [], threading.Event()

    def body() -> None:
        lives.append(threading.current_thread())
        if len(lives) < 4:
            raise SystemExit(f"death {len(lives)}")
        done.set()
        threading.Event().wait()

    supervisor.start("body", body)
    assert done.wait(5)
    state = supervisor.states()["body"]
    assert (state.up, state.restarts, state.last_error) == (True, 3, "SystemExit: death 3")
    assert all(thread.daemon and thread.name == "body" for thread in lives)


def test_a_dead_thread_is_not_up_until_it_runs_again():
    supervisor = Supervisor(backoff_s=(60.0, 60.0))
    died = threading.Event()

    def body() -> None:
        died.set()

    supervisor.start("body", body)
    assert died.wait(5)
    for _ in range(500):
        if not supervisor.thread_up("body"):
            break
        threading.Event().wait(0.01)
    assert not supervisor.thread_up("body")
    assert supervisor.states()["body"].last_error == "returned"


def test_a_name_is_used_once():
    supervisor = Supervisor()
    supervisor.start("body", threading.Event().wait)
    with pytest.raises(ValueError, match="body"):
        supervisor.start("body", threading.Event().wait)


def test_messages_are_counted_by_kind_and_result():
    counters = MessageCounters()
    threads = [
        threading.Thread(target=lambda: [counters.count("status", "handled") for _ in range(1000)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.count("status", "stale") == 1
    assert counters.snapshot() == {("status", "handled"): 4000, ("status", "stale"): 1}


def test_a_flood_is_logged_a_few_times():
    assert [count for count in range(1, 1000) if worth_a_line(count)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
