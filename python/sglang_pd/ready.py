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
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sglang_pd import ranks
from sglang_pd.ranks import Rank

PATH = "/pd/ready"
SCHEMA = 1
# A rank that is stopped has to be known within 2 s.
ANSWER_TIMEOUT_S = 1.5
# What a decode asks before it sends anything: the layout of this prefill, known once all its ranks have registered.
BOOTSTRAP_QUESTION = "route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


@dataclass(frozen=True)
class Heard:
    """What a rank said, or why it said nothing."""

    rank: Rank
    said: dict[str, Any] | None
    problem: str | None = None

    @property
    def reasons(self) -> list[str]:
        found = [self.problem] if self.said is None else self.said["reasons"]
        return [f"rank {self.rank.name}: {reason}" for reason in found]


def verdict(role: str, server: Sequence[str], heard: Sequence[Heard]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Status and body, from what is wrong with the server itself and from what its ranks said; pure."""
    reasons = [*server, *([] if heard else ["no scheduler rank has announced itself"])]
    reasons += [reason for one in heard for reason in one.reasons]
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    said = [{"rank": one.rank.name, "pid": one.rank.pid, "said": one.said} for one in heard]
    return status, {"schema": SCHEMA, "ready": not reasons, "role": role, "reasons": reasons, "ranks": said}


async def ask(role: str, bootstrap: str | None, server: Sequence[str]) -> tuple[HTTPStatus, dict[str, Any]]:
    """Ask all ranks, and the bootstrap server at ``bootstrap`` (``host:port``), at once. ``server``: what is wrong with
    the server itself."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = [_ask_rank(session, rank) for rank in ranks.announced(ranks.folder())]
        problems, heard = await asyncio.gather(_ask_bootstrap(session, bootstrap), asyncio.gather(*asked))
    return verdict(role, [*server, *problems], heard)


async def _ask_rank(session: Any, rank: Rank) -> Heard:
    if not rank.lives:
        return Heard(rank, None, f"its process {rank.pid} is gone")
    said, problem = await _get(session, f"http://127.0.0.1:{rank.port}{PATH}")
    return Heard(rank, said, problem)


async def _ask_bootstrap(session: Any, address: str | None) -> list[str]:
    if address is None:
        return []
    _, problem = await _get(session, f"http://{address}/{BOOTSTRAP_QUESTION}")
    return [f"bootstrap server at {address}: {problem}"] if problem else []


async def _get(session: Any, url: str) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object at ``url``; or None and the problem in words."""
    import aiohttp

    try:
        async with session.get(url) as answer:
            if answer.status == HTTPStatus.OK:
                return await answer.json(), None
            return None, f"answered {answer.status}: {(await answer.text())[:200]}"
    except TimeoutError:
        return None, f"no answer within {ANSWER_TIMEOUT_S:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return None, f"no answer: {error}"


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
    """BEFORE hook on ``_setup_and_run_http_server``: add the route where there is a KV path."""
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


def allow_without_key(original: Callable[..., Any], *, path: str, **request: Any) -> Any:
    """AROUND hook on ``decide_request_auth``: probes have no key, as with upstream's ``/health`` and ``/ready``."""
    return original(path="/ready" if path == PATH else path, **request)
