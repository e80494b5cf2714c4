"""How a prefill or decode server ends on SIGTERM: first it is not ready, then it finishes, then it hands back the rest.

Upstream waits until the last request has ended, for ever, and looks every 5 s. Here a server goes on serving for
``SGLANG_PD_DRAIN_GRACE``, so that the gateway sees that it is not ready before it is gone; then ends as soon as nothing
is left, and after ``SGLANG_PD_DRAIN_TIMEOUT`` answers what is left with 503, which the gateway sends elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from sglang_pd.environ import envs

logger = logging.getLogger(__name__)

LOOK_S = 0.1
# What a client gets whose request cannot be finished here.
MESSAGE = "server_leaving: The server is shutting down and did not finish the request in time; send it again."
RETRY_AFTER_S = b"1"


def serves_pd() -> bool:
    """Whether this process serves one side of a prefill-decode pair."""
    from sglang.srt.runtime_context import get_disagg

    return bool(get_disagg().disaggregation_mode != "null")


async def drain(original: Callable[[Any], Coroutine[Any, Any, None]], tokenizer_manager: Any) -> None:
    """AROUND hook on ``TokenizerManager.sigterm_watchdog``, which runs as long as the server."""
    if not serves_pd():
        await original(tokenizer_manager)
        return
    while not tokenizer_manager.gracefully_exit:
        await asyncio.sleep(LOOK_S)
    grace_s, timeout_s = envs.SGLANG_PD_DRAIN_GRACE.get(), envs.SGLANG_PD_DRAIN_TIMEOUT.get()
    unfinished = await wait_until_idle(tokenizer_manager, grace_s, timeout_s)
    if unfinished:
        logger.warning("%d requests did not end within %g s: they are answered with 503", unfinished, timeout_s)
        hand_back(tokenizer_manager)
        # The answers leave in the next rounds of this loop.
        await asyncio.sleep(LOOK_S)
    # Nothing is left that it could wait for.
    await original(tokenizer_manager)


async def wait_until_idle(tokenizer_manager: Any, grace_s: float, timeout_s: float) -> int:
    """Wait for ``grace_s`` seconds, then until no request is left, ``timeout_s`` in all; returns how many are."""
    begin = time.monotonic()
    while (waited := time.monotonic() - begin) < max(grace_s, timeout_s):
        if waited >= grace_s and not tokenizer_manager.rid_to_state:
            break
        await asyncio.sleep(LOOK_S)
    return len(tokenizer_manager.rid_to_state)


def hand_back(tokenizer_manager: Any) -> None:
    """Answer every request with 503, or end its stream with an error, and have the scheduler drop it."""
    from sglang.srt.managers.io_struct import AbortReq

    end = {"type": "abort", "message": MESSAGE, "status_code": HTTPStatus.SERVICE_UNAVAILABLE}
    for rid in list(tokenizer_manager.rid_to_state):
        tokenizer_manager.abort_request(rid)
        tokenizer_manager._handle_abort_req(AbortReq(rid=rid, finished_reason=end))


class RetryAfter:
    """ASGI middleware: every 503 says when to try again."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_with_header(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
                message["headers"] = [*message.get("headers", ()), (b"retry-after", RETRY_AFTER_S)]
            await send(message)

        await self._app(scope, receive, send_with_header if scope["type"] == "http" else send)
