"""Waiting for transfers, with transfers that do as they are told."""

import time

import pytest

from sglang.srt.disaggregation.reliable.handles import (
    TransferError,
    TransferStalledError,
    await_done,
    condition,
    settled,
)


class Disconnected(Exception):
    pass


def scripted(**scripts: list):
    """Each handle's states in turn, the last for ever; an exception is raised."""

    def state_of(handle: str) -> str:
        script = scripts[handle]
        state = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(state, Exception):
            raise state
        return state

    return state_of


def test_waits_for_every_transfer():
    scripts = {"a": ["PROC", "DONE"], "b": ["PROC"] * 200 + ["DONE"]}
    await_done(scripted(**scripts), ["a", "b"], timeout_s=5)
    assert scripts == {"a": ["DONE"], "b": ["DONE"]}


def test_nothing_to_wait_for():
    await_done(scripted(), [], timeout_s=5)


def test_a_stalled_transfer_ends_the_wait_in_time():
    start = time.monotonic()
    with pytest.raises(TransferStalledError, match=r"1 writes .* 0\.1 s"):
        await_done(scripted(a=["DONE"], b=["PROC"]), ["a", "b"], timeout_s=0.1)
    assert 0.1 <= time.monotonic() - start < 1


def test_an_error_is_not_waited_out():
    with pytest.raises(TransferError, match="failed"):
        await_done(scripted(a=["PROC"], b=["ERR"]), ["a", "b"], timeout_s=60)


def test_the_true_cause_is_kept():
    with pytest.raises(TransferError, match="Disconnected: gone") as raised:
        await_done(scripted(a=["PROC", Disconnected("gone")]), ["a"], timeout_s=60)
    assert isinstance(raised.value.__cause__, Disconnected)


@pytest.mark.parametrize(
    ("state", "seen"), [("PROC", "running"), ("DONE", "ended"), ("ERR", "ended"), (Disconnected(), "lost")]
)
def test_only_an_end_proves_that_nothing_is_written(state, seen):
    assert condition(scripted(a=[state]), "a") == seen
    assert settled(scripted(a=[state], b=["DONE"]), ["a", "b"], timeout_s=0.01) is (seen == "ended")


def test_a_lost_transfer_is_not_waited_for():
    start = time.monotonic()
    assert not settled(scripted(a=[Disconnected()], b=["PROC"]), ["a", "b"], timeout_s=60)
    assert time.monotonic() - start < 1
