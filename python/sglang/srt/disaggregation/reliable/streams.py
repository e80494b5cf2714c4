"""A stream that fails before its first token is answered with the failure's status, as any other request is.

Upstream sends 200 and then the failure as an event. A gateway cannot retry that, though nothing was lost yet. Once a
token went out there is no other way: such a stream ends with that event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.runtime_context import get_disagg

EVENT = "data: "


async def generate(original: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
    """AROUND hook on ``serve_generate_request``."""
    return await _with_status(await original(*args, **kwargs))


async def handle_request(original: Callable[..., Awaitable[Any]], serving: Any, *args: Any, **kwargs: Any) -> Any:
    """AROUND hook on ``OpenAIServingBase.handle_request``."""
    return await _with_status(await original(serving, *args, **kwargs))


async def _with_status(response: Any) -> Any:
    from starlette.responses import JSONResponse, StreamingResponse

    if not isinstance(response, StreamingResponse) or get_disagg().disaggregation_mode == "null":
        return response
    events = aiter(response.body_iterator)
    try:
        first = await anext(events)
    except StopAsyncIteration:
        return response
    error = failure_in(first)
    if error is not None:
        async for _ in events:
            pass  # Only the end mark is left; upstream's generator cleans up behind it.
        return JSONResponse({"object": "error", **error}, status_code=error["code"])
    response.body_iterator = _put_back(first, events)
    return response


async def _put_back(first: Any, events: AsyncIterator[Any]) -> AsyncIterator[Any]:
    yield first
    async for event in events:
        yield event


def failure_in(event: bytes | str | memoryview) -> dict[str, Any] | None:
    """The failure that a stream's event tells of, with its ``message`` and HTTP status ``code``; None where it is none.

    Both of upstream's ways: an event ``error``, and the last event of ``/generate`` with its reason to finish.
    """
    text = event if isinstance(event, str) else bytes(event).decode()
    if not text.startswith(EVENT + "{"):
        return None
    content = json.loads(text.removeprefix(EVENT))
    found = content.get("error")
    if isinstance(found, dict):
        return _error(found.get("message"), found.get("code"), found)
    finish = (content.get("meta_info") or {}).get("finish_reason") or {}
    if finish.get("type") == "abort":
        return _error(finish.get("message"), finish.get("status_code"), {})
    return None


def _error(message: Any, code: Any, more: dict[str, Any]) -> dict[str, Any] | None:
    """None where there is no status of a failure: a client's own abort has none."""
    if not isinstance(code, int) or code < HTTPStatus.BAD_REQUEST:
        return None
    return {"type": str(code), "param": None, **more, "message": message, "code": code}
