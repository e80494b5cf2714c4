"""Prefill's bootstrap server: it says which life of a process it speaks of, and is not well while a rank is not."""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any

from aiohttp import ClientSession, ClientTimeout, web
from sglang.srt.disaggregation.nixl.conn import NixlKVBootstrapServer

from sglang.srt.disaggregation.reliable import incarnation
from sglang.srt.disaggregation.reliable.configuration import Configuration
from sglang_pd import ready
from sglang_pd.asking import ask_ranks

# Carries the incarnation of the server's own process, which begins and ends with its ranks.
HEADER = "X-SGLang-PD-Incarnation"
# How long a rank may take to answer, and how long its answer counts, in seconds.
ASK_S, KEEP_S = 1.0, 0.5
# What a rank of ours tells the server, and the server in turn whoever asks for the rank, besides upstream's fields.
INCARNATION, CONFIGURATION = "incarnation", "configuration"


def row(incarnation: str, configuration: Configuration) -> dict[str, Any]:
    """What a rank adds to its registration."""
    return {INCARNATION: incarnation, CONFIGURATION: configuration}


class ReliableBootstrapServer(NixlKVBootstrapServer):
    """Upstream's, whose answers to a stock decode stay as they are, except that ``/health`` and ``GET /route`` are 503
    while a scheduler rank is gone, or answers nothing: a healthy HTTP process does not hide it."""

    def __init__(self, host: str, port: int) -> None:
        # What each rank told of itself, by where it listens.
        self._told: dict[tuple[str, int], dict[str, Any]] = {}
        self._problems: tuple[float, list[str]] = (-KEEP_S, [])
        self._asking = asyncio.Lock()
        super().__init__(host, port)

    def _setup_routes(self) -> None:
        super()._setup_routes()
        self.app.on_response_prepare.append(_add_header)

    async def _handle_route_put(self, request: web.Request) -> web.Response:
        answer: web.Response = await super()._handle_route_put(request)
        registered = await request.json()
        if answer.status == HTTPStatus.OK and incarnation.is_one(str(registered.get(INCARNATION))):
            told = {field: registered.get(field) for field in (INCARNATION, CONFIGURATION)}
            self._told[registered["rank_ip"], int(registered["rank_port"])] = told
        return answer

    async def _handle_route_get(self, request: web.Request) -> web.Response:
        if problems := await self._ranks_missing():
            return _unwell(problems)
        answer: web.Response = await super()._handle_route_get(request)
        if answer.status != HTTPStatus.OK:
            return answer
        where = json.loads(answer.text or "{}")
        told = self._told.get((where.get("rank_ip"), where.get("rank_port")))
        return answer if told is None else web.json_response({**where, **told})

    async def _handle_health_check(self, request: web.Request) -> web.Response:
        if problems := await self._ranks_missing():
            return _unwell(problems)
        answer: web.Response = await super()._handle_health_check(request)
        return answer

    async def _ranks_missing(self) -> list[str]:
        """What is wrong with the scheduler ranks of this server that have announced themselves."""
        async with self._asking:
            at, problems = self._problems
            if time.monotonic() - at >= KEEP_S:
                problems = await _ask()
                self._problems = time.monotonic(), problems
        return problems


async def _ask() -> list[str]:
    async with ClientSession(timeout=ClientTimeout(total=ASK_S)) as session:
        try:
            heard = await ask_ranks(session, ready.PATH)
        except RuntimeError:
            # No server started this process: there is nobody to ask.
            return []
    return [f"scheduler rank {one.rank.name}: {one.problem}" for one in heard if one.said is None]


def _unwell(problems: list[str]) -> web.Response:
    return web.Response(text="; ".join(problems), status=HTTPStatus.SERVICE_UNAVAILABLE)


async def _add_header(_: web.Request, response: web.StreamResponse) -> None:
    response.headers[HEADER] = incarnation.mine()
