"""``GET /pd/status``, ``/pd/rooms`` and ``/pd/peers`` on a server's own port: what each of its scheduler ranks says.

A rank answers on a thread of its own, whatever its scheduler does. One that does not answer is an entry that says so.
``docs/status.md`` tells the schemas. Ranks on other nodes are not seen.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

from sglang_pd.asking import Heard, ask_ranks
from sglang_pd.ration import Ration

STATUS, ROOMS, PEERS = PATHS = "/pd/status", "/pd/rooms", "/pd/peers"
# On a rank's own port only.
STACKS = "/pd/stacks"
VERSION = 1
ANSWER_TIMEOUT_S = 1.0


def schema(name: str) -> dict[str, Any]:
    """What every answer begins with."""
    return {"name": f"sglang-pd/{name}", "version": VERSION}


def merged(path: str, role: str, heard: Iterable[Heard]) -> dict[str, Any]:
    """The server's answer from those of its ranks; pure."""
    return {
        "schema": schema(f"server-{path.rpartition('/')[2]}"),
        "role": role,
        "ranks": [
            {
                "rank": one.rank.name,
                "pid": one.rank.pid,
                "seconds": round(one.seconds, 3),
                "problem": one.problem,
                "said": one.said,
            }
            for one in heard
        ],
    }


async def ask(path: str, role: str, parameters: dict[str, str]) -> dict[str, Any]:
    """Ask all ranks at once; takes :data:`ANSWER_TIMEOUT_S` at most."""
    import aiohttp

    query = f"?{urlencode(parameters)}" if parameters else ""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as session:
        return merged(path, role, await ask_ranks(session, path + query))


def given(path: str, role: str, query: str) -> dict[str, str]:
    """The parameters of a query string; raises ``BadQueryError`` where a rank of this role would refuse them."""
    from sglang.srt.disaggregation.reliable.phases import Role
    from sglang.srt.disaggregation.reliable.query import parameters, room_query

    return room_query(query, Role(role)).given if path == ROOMS else parameters(query, allowed=())


def add_routes(app: Any, role: str) -> None:
    """Upstream asks for the API key on each path, where the server has one, unless told otherwise: so on these."""
    for path in PATHS:
        app.add_route(path, _answerer(path, role), methods=["GET"])


def _answerer(path: str, role: str) -> Any:
    from starlette.requests import Request
    from starlette.responses import Response

    from sglang.srt.disaggregation.reliable.query import BadQueryError

    shared = Shared(lambda: ask(path, role, {}))

    async def answer(request: Request) -> Response:
        try:
            parameters, code = given(path, role, request.url.query), HTTPStatus.OK
            text = await shared.text() if path != ROOMS else json.dumps(await ask(path, role, parameters))
        except BadQueryError as error:
            text, code = json.dumps({"error": str(error)}), HTTPStatus.BAD_REQUEST
        # Starlette's own encodes as UTF-8, which not every request id that a client thought of can be.
        return Response(text, code, media_type="application/json")

    return answer


class Shared:
    """An answer that many may ask for: made anew for each, but no more often than its ration allows; else what was made
    last is given again, or what is being made is waited for. For one event loop."""

    def __init__(self, make: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._make = make
        self._ration = Ration()
        self._last: asyncio.Future[str] | None = None

    async def text(self) -> str:
        last = self._last
        # One that failed is made anew for whoever asks.
        if last is not None and not (last.done() and last.exception()) and not self._ration.take(time.monotonic()):
            return await asyncio.shield(last)
        self._last = asyncio.ensure_future(self._made())
        return await asyncio.shield(self._last)

    async def _made(self) -> str:
        return json.dumps(await self._make())
