"""One question to a running cluster, its answer shown as it comes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

from sglang_pd.errors import UserError

MAX_TOKENS = 64
TIMEOUT_S = 120.0


def stream(host: str, port: int, model: str, question: str) -> Iterator[str]:
    """The pieces of a chat completion's answer, by ``POST /v1/chat/completions`` with ``stream``.

    Raises :class:`UserError` (exit code 1) where the server does not answer, refuses, or reports an error midway.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise UserError(f"the gateway answered {response.status}: {response.read(2000).decode()}", exit_code=1)
        for line in response:
            data = line.decode().strip().removeprefix("data:").strip()
            if data and data != "[DONE]":
                yield _piece(json.loads(data))
    except (OSError, http.client.HTTPException) as error:
        raise UserError(f"no answer from {host}:{port}: {error}", exit_code=1) from error
    finally:
        connection.close()


def _piece(event: dict) -> str:
    if "error" in event:
        raise UserError(f"the server ended the answer with an error: {event['error']}", exit_code=1)
    choices = event.get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""


def show(host: str, port: int, model: str, question: str) -> None:
    """Print the question and the answer, piece by piece."""
    print(f"\n> {question}", flush=True)
    for piece in stream(host, port, model, question):
        print(piece, end="", flush=True)
    print(flush=True)
