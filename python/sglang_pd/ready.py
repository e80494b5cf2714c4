"""``GET /pd/ready`` on a server's own port: can its KV path serve? 200, or 503 with the reasons.

Every scheduler rank is asked on its loopback port, where a thread answers whatever the scheduler does; a prefill's
bootstrap server is asked what a decode asks it first. The body is one JSON object::

    {"schema": 1, "ready": false, "role": "decode", "reasons": ["rank tp0: its process 71 is gone"], "ranks": [...]}

``ranks``: for each its name, pid, and what it said (``sglang.srt.disaggregation.reliable.ready``), null where it said
nothing. Ranks on other nodes are not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from sglang_pd.asking import Heard, ask_ranks, get
from sglang_pd.draining import RetryAfter
from sglang_pd.status import add_routes

PATH = "/pd/ready"
SCHEMA = 1
# A rank that is stopped has to be known within 2 s.
ANSWER_TIMEOUT_S = 1.5
# What a decode asks before it sends anything: the layout of this prefill, known once all its ranks have registered.
BOOTSTRAP_QUESTION = "route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def reasons_of(heard: Heard) -> list[str]:
    """What a rank complains of, or that it said nothing."""
    found = [heard.problem] if heard.said is None else heard.said["reasons"]
    return [f"rank {heard.rank.name}: {reason}" for reason in found]


def verdict(role: str, server: Sequence[str], heard: Sequence[Heard]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Status and body, from what is wrong with the server itself and from what its ranks said; pure."""
    reasons = [*server, *([] if heard else ["no scheduler rank has announced itself"])]
    reasons += [reason for one in heard for reason in reasons_of(one)]
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    said = [{"rank": one.rank.name, "pid": one.rank.pid, "said": one.said} for one in heard]
    return status, {"schema": SCHEMA, "ready": not reasons, "role": role, "reasons": reasons, "ranks": said}


async def ask(role: str, bootstrap: str | None, server: Sequence[str]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Ask all ranks, and the bootstrap server at ``bootstrap`` (``host:port``), at once. ``server``: what is wrong with
    the server itself."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        problems, heard = await asyncio.gather(_ask_bootstrap(session, bootstrap), ask_ranks(session, PATH))
    return verdict(role, [*server, *problems], heard)


async def _ask_bootstrap(session: Any, address: str | None) -> list[str]:
    if address is None:
        return []
    _, problem = await get(session, f"http://{address}/{BOOTSTRAP_QUESTION}")
    return [f"bootstrap server at {address}: {problem}"] if problem else []


def server_problems(tokenizer_manager: Any) -> list[str]:
    """What upstream's front process knows. Its own verdict "unhealthy" does not count: only ``/health`` takes it back,
    and a server that is asked here may never be asked there."""
    found = {
        "it is starting": tokenizer_manager.server_status.name == "Starting",
        "it is shutting down": tokenizer_manager.gracefully_exit,
        "it is paused": tokenizer_manager.is_pause,
    }
    return [reason for reason, holds in found.items() if holds]


def serve(server_args: Any, tokenizer_manager: Any, *args: Any, **kwargs: Any) -> None:
    """BEFORE hook on ``_setup_and_run_http_server``: add the routes, this and those of :mod:`~sglang_pd.status`, where
    there is a KV path."""
    role = server_args.disaggregation_mode
    if role == "null":
        return
    from sglang.srt.entrypoints.http_server import app
    from starlette.responses import JSONResponse

    address = server_args.url(server_args.disaggregation_bootstrap_port).partition("://")[2]
    bootstrap = address if role == "prefill" else None

    async def ready() -> JSONResponse:
        status, body = await ask(role, bootstrap, server_problems(tokenizer_manager))
        return JSONResponse(body, status)

    app.add_api_route(PATH, ready, methods=["GET"])
    add_routes(app, role)
    app.add_middleware(RetryAfter)


def allow_without_key(original: Callable[..., Any], *, path: str, **request: Any) -> Any:
    """AROUND hook on ``decide_request_auth``: probes have no key, as with upstream's ``/health`` and ``/ready``."""
    return original(path="/ready" if path == PATH else path, **request)
