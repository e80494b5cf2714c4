"""What threads are doing."""

import subprocess
import threading

import pytest

from sglang.srt.disaggregation.reliable import watchdog_stacks
from sglang.srt.disaggregation.reliable.watchdog_stacks import NEAR, Frame, Place, place_of

HERE = Frame("/a/sglang/srt/managers/scheduler.py", 7, "event_loop_normal")
COLLECTIVE = Frame("/a/torch/distributed/distributed_c10d.py", 7, "all_reduce")
GPU = Frame("/a/torch/cuda/streams.py", 7, "synchronize")


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        ([HERE], Place.ELSEWHERE),
        ([], Place.ELSEWHERE),
        ([COLLECTIVE, HERE], Place.COLLECTIVE),
        ([Frame("/a/sglang/srt/distributed/parallel_state.py", 7, "broadcast"), HERE], Place.COLLECTIVE),
        ([GPU, HERE], Place.GPU),
        ([GPU, COLLECTIVE, HERE], Place.COLLECTIVE),
        ([HERE] * NEAR + [COLLECTIVE], Place.ELSEWHERE),
    ],
)
def test_place(frames, place):
    assert place_of(frames) is place


def waits_here(event):
    event.wait(30)


def test_every_thread_is_there_with_where_it_is():
    event = threading.Event()
    thread = threading.Thread(target=waits_here, args=(event,), name="waiter", daemon=True)
    thread.start()
    try:
        stacks = watchdog_stacks.read()
    finally:
        event.set()
        thread.join()
    assert [stack.main for stack in stacks].count(True) == 1
    assert stacks[0].main
    [waiter] = [stack for stack in stacks if stack.thread == "waiter"]
    assert waiter.daemon
    functions = [frame.function for frame in waiter.frames]
    assert functions.index("wait") < functions.index("waits_here")
    line = waiter.frames[functions.index("waits_here")].line
    assert f"waits_here ({__file__}:{line})" in waiter.entry()["frames"]


def test_the_main_thread_alone():
    stack = watchdog_stacks.read_main()
    assert stack.main
    assert "test_the_main_thread_alone" in [frame.function for frame in stack.frames]


def deep(levels):
    return deep(levels - 1) if levels else watchdog_stacks.read_main()


def test_the_innermost_frames_are_kept():
    frames = deep(200).frames
    assert len(frames) == watchdog_stacks.MOST_FRAMES
    assert frames[0].function == "read_main"


def test_py_spy_shows_this_process_where_it_is_there():
    if watchdog_stacks.find() is None:
        pytest.skip("needs py-spy")
    text, problem = watchdog_stacks.native()
    if text is None:
        pytest.skip(f"needs the right to trace: {problem}")
    assert "test_py_spy_shows_this_process_where_it_is_there" in text


def test_without_py_spy_it_says_so(monkeypatch):
    monkeypatch.setattr(watchdog_stacks, "find", lambda: None)
    assert watchdog_stacks.native() == (None, "there is no py-spy here (pip install py-spy)")


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("#!/bin/sh\necho cannot >&2\necho trace >&2\nexit 1\n", "py-spy failed: trace"),
        ("#!/bin/sh\nexit 1\n", "py-spy failed: it said nothing"),
        ("#!/bin/sh\nexec sleep 60\n", "py-spy did not end within 0.2 s"),
    ],
)
def test_what_py_spy_fails_with_is_told(monkeypatch, tmp_path, script, problem):
    tool = tmp_path / "py-spy"
    tool.write_text(script)
    tool.chmod(0o755)
    monkeypatch.setattr(watchdog_stacks, "find", lambda: str(tool))
    assert watchdog_stacks.native(0.2) == (None, problem)


def test_one_that_cannot_be_started_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(watchdog_stacks, "find", lambda: str(tmp_path))
    text, problem = watchdog_stacks.native()
    assert text is None
    assert problem.startswith("py-spy could not be started: ")


def test_a_process_that_may_be_traced_by_its_children_is_asked_for():
    """Whatever the kernel says to it, the call itself must not fail."""
    watchdog_stacks._allow_children_to_trace()
    assert subprocess.run(["true"], check=True).returncode == 0
