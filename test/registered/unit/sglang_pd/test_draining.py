"""The end of a server on SIGTERM: what it still does, how long, and what it says to those it does not finish."""

import asyncio
import time
from http import HTTPStatus
from typing import Any

import pytest
import sglang.srt.managers.io_struct  # noqa: F401 (which a server has loaded by then)

from sglang_pd import draining

GRACE_S, TIMEOUT_S = 0.3, 0.8


class TokenizerManager:
    """Upstream's as far as the end goes; ``ended`` is when its own way of ending began."""

    def __init__(self, *rids: str) -> None:
        self.gracefully_exit = False
        self.rid_to_state: dict[str, Any] = dict.fromkeys(rids)
        self.aborted: list[str] = []
        self.answers: dict[str, Any] = {}
        self.ended: float | None = None

    def abort_request(self, rid: str) -> None:
        self.aborted.append(rid)

    def _handle_abort_req(self, abort: Any) -> None:
        del self.rid_to_state[abort.rid]
        self.answers[abort.rid] = abort.finished_reason

    async def sigterm_watchdog(self) -> None:
        assert not self.rid_to_state
        self.ended = time.monotonic()


@pytest.fixture(autouse=True)
def settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_PD_DRAIN_GRACE", str(GRACE_S))
    monkeypatch.setenv("SGLANG_PD_DRAIN_TIMEOUT", str(TIMEOUT_S))
    monkeypatch.setattr(draining, "serves_pd", lambda: True)
    monkeypatch.setattr(draining, "LOOK_S", 0.01)


def seconds_to_end(manager: TokenizerManager, meanwhile: Any = None) -> float:
    async def run() -> float:
        drained = asyncio.create_task(draining.drain(TokenizerManager.sigterm_watchdog, manager))
        await asyncio.sleep(0.05)
        assert manager.ended is None
        assert not drained.done()
        begin, manager.gracefully_exit = time.monotonic(), True
        if meanwhile is not None:
            asyncio.get_running_loop().call_later(*meanwhile)
        await drained
        assert manager.ended is not None
        return manager.ended - begin

    return asyncio.run(run())


def test_an_idle_server_stays_until_the_gateway_has_noticed():
    assert GRACE_S <= seconds_to_end(TokenizerManager()) < TIMEOUT_S


def test_it_ends_when_the_last_request_has():
    manager = TokenizerManager("a")
    seconds = seconds_to_end(manager, (GRACE_S + 0.2, manager.rid_to_state.clear))
    assert GRACE_S + 0.2 <= seconds < TIMEOUT_S
    assert not manager.answers


def test_what_does_not_end_is_handed_back_in_time():
    manager = TokenizerManager("a", "b")
    assert TIMEOUT_S <= seconds_to_end(manager) < TIMEOUT_S + 0.5
    assert manager.aborted == ["a", "b"]
    assert {answer["status_code"] for answer in manager.answers.values()} == {HTTPStatus.SERVICE_UNAVAILABLE}


def test_a_server_without_pd_ends_as_upstream_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(draining, "serves_pd", lambda: False)
    manager = TokenizerManager()
    asyncio.run(draining.drain(TokenizerManager.sigterm_watchdog, manager))
    assert manager.ended is not None


@pytest.mark.parametrize(("status", "says"), [(503, True), (200, False), (500, False)])
def test_a_503_says_when_to_try_again(status: int, says: bool):
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(draining.RetryAfter(app)({"type": "http"}, None, send))
    assert ((b"retry-after", b"1") in sent[0]["headers"]) is says
    assert (b"a", b"b") in sent[0]["headers"]
    assert len(sent) == 2
