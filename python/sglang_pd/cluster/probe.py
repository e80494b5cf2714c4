"""Ask the processes of a cluster over HTTP. Every question has a deadline; no answer is an answer: None."""

from __future__ import annotations

import http.client
import json
from typing import Any

from sglang_pd.cluster.plan import LOOPBACK

# Upstream's /health generates one token before it answers, which a busy CPU can take seconds over.
TIMEOUT_S = 10.0


def health(port: int, timeout_s: float = TIMEOUT_S) -> int | None:
    """The HTTP status of ``GET /health``."""
    answer = _get(port, "/health", timeout_s)
    return answer[0] if answer else None


def answers(port: int, path: str, timeout_s: float) -> bool:
    """Whether anything comes back, whatever its status."""
    return _get(port, path, timeout_s) is not None


def workers(port: int, timeout_s: float = TIMEOUT_S) -> dict[str, Any] | None:
    """The gateway's ``GET /workers``; None also where it answers something else than JSON with status 200."""
    answer = _get(port, "/workers", timeout_s)
    if answer is None or answer[0] != 200:
        return None
    try:
        body = json.loads(answer[1])
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _get(port: int, path: str, timeout_s: float) -> tuple[int, bytes] | None:
    # http.client and not urllib: a proxy in the environment must not come between us and this machine.
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
