"""Asks every scheduler rank of this server at once, each on its loopback port; none keeps the others waiting."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from sglang_pd import ranks
from sglang_pd.ranks import Rank


@dataclass(frozen=True)
class Heard:
    """What a rank said, or why it said nothing; ``seconds``: how long that took."""

    rank: Rank
    said: dict[str, Any] | None
    problem: str | None = None
    seconds: float = 0.0


async def ask_ranks(session: Any, path: str) -> list[Heard]:
    """Every rank that announced itself; ``path`` may have a query string. ``session``: aiohttp's, with a total timeout,
    the longest that this takes."""
    return await asyncio.gather(*[_ask(session, rank, path) for rank in ranks.announced(ranks.folder())])


async def _ask(session: Any, rank: Rank, path: str) -> Heard:
    start = time.monotonic()
    if not rank.lives:
        return Heard(rank, None, f"its process {rank.pid} is gone")
    said, problem = await get(session, f"http://127.0.0.1:{rank.port}{path}")
    return Heard(rank, said, problem, time.monotonic() - start)


async def get(session: Any, url: str) -> tuple[dict[str, Any] | None, str | None]:
    """The JSON object at ``url``; or None and the problem in words."""
    import aiohttp

    try:
        async with session.get(url) as answer:
            if answer.status == HTTPStatus.OK:
                return await answer.json(), None
            return None, f"answered {answer.status}: {(await answer.text())[:200]}"
    except TimeoutError:
        return None, f"no answer within {session.timeout.total:g} s"
    except (aiohttp.ClientError, OSError) as error:
        return None, f"no answer: {error}"
    except ValueError as error:
        return None, f"answered with no JSON: {error}"
