"""Streams that fail, before or after their first token, as upstream's endpoints make them."""

import asyncio
import json
from http import HTTPStatus

import pytest
from sglang.srt.runtime_context import get_context
from starlette.responses import JSONResponse, StreamingResponse

from sglang.srt.disaggregation.reliable import streams


def token(text: str) -> bytes:
    return b"data: " + json.dumps({"text": text, "meta_info": {"finish_reason": None}}).encode() + b"\n\n"


def aborted(code: int | None) -> bytes:
    """The last event of ``/generate``."""
    finish = {"type": "abort", "message": "peer_lost: gone", "status_code": code}
    return b"data: " + json.dumps({"text": "", "meta_info": {"finish_reason": finish}}).encode() + b"\n\n"


ERROR = "data: " + json.dumps({"error": {"object": "error", "message": "peer_lost: gone", "code": 503}}) + "\n\n"
CHAT = "data: " + json.dumps({"id": "x", "choices": [{"delta": {"role": "assistant"}}]}) + "\n\n"
DONE = "data: [DONE]\n\n"


@pytest.fixture(autouse=True)
def role(request: pytest.FixtureRequest):
    with get_context().override_server_args(disaggregation_mode=getattr(request, "param", "decode")):
        yield


def serve(*events) -> tuple[int, list, bool]:
    """What the hook makes of a stream: status, events or body, and whether upstream's generator ran to its end."""
    ended = []

    async def stream():
        for event in events:
            yield event
        ended.append(True)

    async def run():
        async def original():
            return StreamingResponse(stream(), media_type="text/event-stream")

        response = await streams.generate(original)
        if isinstance(response, StreamingResponse):
            return response.status_code, [event async for event in response.body_iterator]
        return response.status_code, json.loads(response.body)

    status, content = asyncio.run(run())
    return status, content, bool(ended)


@pytest.mark.parametrize("first", [aborted(503), aborted(HTTPStatus.SERVICE_UNAVAILABLE), ERROR])
def test_a_failure_before_the_first_token_is_the_status(first):
    status, body, ended = serve(first, DONE)
    assert (status, body["code"], body["message"]) == (503, 503, "peer_lost: gone")
    assert ended


@pytest.mark.parametrize("events", [(token("a"), aborted(503), DONE), (CHAT, ERROR, DONE)])
def test_a_stream_that_began_ends_with_its_error(events):
    assert serve(*events) == (200, list(events), True)


@pytest.mark.parametrize(
    "events",
    [(token("a"), token("b"), DONE), (CHAT, DONE), (aborted(None), DONE), (DONE,), (b": comment\n\n", token("a")), ()],
)
def test_every_other_stream_is_as_it_was(events):
    assert serve(*events) == (200, list(events), True)


def test_what_is_no_stream_is_left_alone():
    response = JSONResponse({"error": {"code": 503}})

    async def original(serving, request):
        return response

    assert asyncio.run(streams.handle_request(original, None, None)) is response


@pytest.mark.parametrize("role", ["null"], indirect=True)
def test_an_undivided_server_is_left_alone():
    assert serve(ERROR, DONE) == (200, [ERROR, DONE], True)
