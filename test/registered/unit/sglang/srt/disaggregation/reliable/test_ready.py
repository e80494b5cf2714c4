"""What a rank says of itself."""

import threading
import time
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable import ready
from sglang.srt.disaggregation.reliable.control import Supervisor, ThreadState
from sglang_pd import ranks

UP = ThreadState(up=True, restarts=2, last_error="ValueError: earlier")
DOWN = ThreadState(up=False, restarts=3, last_error="ValueError: now")


@pytest.fixture(autouse=True)
def as_in_a_fresh_process(monkeypatch):
    monkeypatch.setattr(ready, "_loop_at", None)
    monkeypatch.setattr(ready, "_endpoint", None)


def test_all_well():
    said = ready.answer("decode", {"decode-control": UP}, 0.25, 20.0)
    assert said == {
        "ready": True,
        "reasons": [],
        "role": "decode",
        "loop_age_seconds": 0.25,
        "threads": {"decode-control": {"up": True, "restarts": 2, "last_error": "ValueError: earlier"}},
    }


def test_a_thread_that_is_down_is_named_with_its_error():
    said = ready.answer("prefill", {"peers": UP, "prefill-control": DOWN}, 0.0, 20.0)
    assert not said["ready"]
    assert said["reasons"] == ["control thread prefill-control is down: ValueError: now"]


@pytest.mark.parametrize(("age", "is_ready"), [(20.0, True), (20.1, False)])
def test_a_loop_that_does_not_come_round(age, is_ready):
    said = ready.answer("prefill", {}, age, 20.0)
    assert said["ready"] is is_ready
    assert said["reasons"] == ([] if is_ready else ["the scheduler's loop has not come round for 20 s"])


def test_the_age_of_the_loop_counts_from_the_last_round_or_from_the_start(monkeypatch):
    manager = SimpleNamespace()
    speak = ready.speaker("prefill", ready.watcher(manager, []))
    time.sleep(0.05)
    assert speak()["loop_age_seconds"] >= 0.05
    ready.loop_turns("scheduler", stop_at_pause=True)
    assert speak()["loop_age_seconds"] < 0.05


def test_a_thread_of_ours_that_dies_is_not_ready_until_it_runs_again():
    supervisor, deaths, back = Supervisor(backoff_s=(0.2, 0.2)), threading.Event(), threading.Event()

    def body():
        if not deaths.is_set():
            deaths.set()
            raise ValueError("dead")
        back.set()
        threading.Event().wait()

    manager = SimpleNamespace(control=supervisor, watch=SimpleNamespace(is_alive=lambda: True))
    speak = ready.speaker("decode", ready.watcher(manager, []))
    supervisor.start("control", body)
    assert deaths.wait(5)
    deadline = time.monotonic() + 5
    while (said := speak())["ready"]:
        assert time.monotonic() < deadline
    assert said["reasons"] == ["control thread control is down: ValueError: dead"]
    assert back.wait(5)
    said = speak()
    assert said["ready"]
    assert said["threads"]["control"]["restarts"] == 1


def test_the_deadline_thread_counts():
    manager = SimpleNamespace(control=Supervisor(), watch=SimpleNamespace(is_alive=lambda: False))
    assert ready.speaker("decode", ready.watcher(manager, []))()["reasons"] == [
        "control thread deadlines is down: it ended, and nothing restarts it"
    ]


def test_of_upstreams_threads_the_ones_that_matter_are_watched():
    stop = threading.Event()

    def bootstrap_thread_guarded():
        stop.wait()

    def something_else():
        return

    theirs = [threading.Thread(target=target) for target in (bootstrap_thread_guarded, something_else)]
    for thread in theirs:
        thread.start()
    theirs[1].join()
    speak = ready.speaker("prefill", ready.watcher(SimpleNamespace(), theirs))
    assert speak()["ready"]
    stop.set()
    theirs[0].join()
    assert speak()["reasons"] == [f"control thread {theirs[0].name} is down: it ended, and nothing restarts it"]


@pytest.mark.parametrize(
    ("dp", "pp", "tp", "name"),
    [(None, 0, 0, "tp0"), (None, 0, 3, "tp3"), (1, 0, 0, "dp1-tp0"), (0, 2, 1, "dp0-pp2-tp1")],
)
def test_names_tell_the_ranks_of_a_server_apart(dp, pp, tp, name):
    assert ready.rank_name(dp, pp, tp) == name


def test_a_rank_that_changes_its_role_keeps_its_port(tmp_path, monkeypatch):
    monkeypatch.setenv(ranks.VARIABLE, str(tmp_path))
    parallel = SimpleNamespace(dp_rank=None)
    monkeypatch.setattr("sglang.srt.runtime_context.get_parallel", lambda: parallel)
    seen = []
    for role in ("prefill", "decode"):
        manager = SimpleNamespace(disaggregation_mode=SimpleNamespace(value=role))
        ready.announce(manager, SimpleNamespace(tp_rank=0, pp_rank=0))
        [rank] = ranks.announced(tmp_path)
        seen.append((rank.role, ready._endpoint.routes[ready.PATH]()["role"], rank.port))
    port = ready._endpoint.port
    assert seen == [("prefill", "prefill", port), ("decode", "decode", port)]
