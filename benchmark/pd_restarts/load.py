"""Clients of the gateway: sessions, so many at a time, each going on when its last answer came."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from pd_restarts.records import Record
from pd_restarts.sessions import Message, Session, is_streamed

# A client that was refused does not ask again at once.
AFTER_FAILURE_S = 0.5


@dataclass(frozen=True)
class Shape:
    """``pool`` different sessions of ``rounds`` rounds, ``at_a_time`` of them at any time; answers of ``new_tokens``
    tokens; a ``streamed`` share of requests streams. A request without an answer for ``patience_s`` is stuck."""

    pool: int = 48
    rounds: int = 5
    at_a_time: int = 16
    new_tokens: int = 24
    streamed: float = 0.0
    patience_s: float = 120.0


@dataclass
class Load:
    """Runs in a thread of its own. ``records`` grows as requests end."""

    url: str
    model: str
    shape: Shape
    records: list[Record] = field(default_factory=list)

    def once(self, sessions: range) -> list[Record]:
        """Each of ``sessions`` once; returns what came of it when all have ended."""
        before = len(self.records)
        asyncio.run(self._all(iter(sessions), asyncio.Event()))
        return self.records[before:]

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Sessions without end, meanwhile. On leaving no new request begins; returns when the last one has ended."""
        loop, stop = asyncio.new_event_loop(), asyncio.Event()
        endless = itertools.cycle(range(self.shape.pool))
        thread = threading.Thread(target=loop.run_until_complete, args=(self._all(endless, stop),), daemon=True)
        thread.start()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join()
            loop.close()

    async def _all(self, sessions: Iterator[int], stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=self.shape.patience_s)
        # A connection of its own for each request: none dies with another one.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as client:
            await asyncio.gather(*(self._client(client, sessions, stop) for _ in range(self.shape.at_a_time)))

    async def _client(self, client: aiohttp.ClientSession, sessions: Iterator[int], stop: asyncio.Event) -> None:
        for number in sessions:
            session = Session(number, self.shape.rounds)
            for round_ in range(self.shape.rounds):
                if stop.is_set():
                    return
                record, answer = await self._request(client, number, round_, session.ask(round_))
                self.records.append(record)
                if not record.served:
                    await asyncio.sleep(AFTER_FAILURE_S)
                    break
                session.answered(answer)

    async def _request(
        self, client: aiohttp.ClientSession, session: int, round_: int, messages: list[Message]
    ) -> tuple[Record, str]:
        streamed = is_streamed(session, round_, self.shape.streamed)
        body = {"model": self.model, "messages": messages, "max_tokens": self.shape.new_tokens, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, "stream": streamed}
        began = time.monotonic()
        answer = _Answer()
        stuck = False
        try:
            async with client.post(f"{self.url}/v1/chat/completions", json=body) as response:
                answer.worker = response.headers.get("x-smg-routed-worker-id", "")
                if streamed and response.status == 200:
                    await answer.stream(response, began)
                else:
                    answer.whole(response.status, await response.text())
        except TimeoutError:
            stuck, answer.status = True, None
        except (aiohttp.ClientError, ValueError) as error:
            answer.status, answer.ids, answer.broke = None, None, f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        # A stream that ends without a word is another matter than one that ends with an error event.
        said = answer.said or ("" if streamed else answer.broke)
        ids = tuple(answer.ids) if answer.ids is not None else None
        return (
            Record(
                *(session, round_, began, seconds, answer.status, ids),
                streamed=streamed,
                first_s=answer.first_s,
                stuck=stuck,
                said=said,
                worker=answer.worker,
            ),
            answer.text,
        )


@dataclass
class _Answer:
    """One answer as it comes in. ``said`` are the server's words where it failed, ``broke`` how the connection did."""

    status: int | None = None
    ids: list[int] | None = None
    text: str = ""
    said: str = ""
    broke: str = ""
    first_s: float | None = None
    worker: str = ""

    def whole(self, status: int, text: str) -> None:
        self.status = status
        if status != 200:
            self.said = text or f"status {status}"
            return
        choice = json.loads(text)["choices"][0]
        self.text, self.ids = choice["message"]["content"], choice["response_token_ids"]

    async def stream(self, response: aiohttp.ClientResponse, began: float) -> None:
        async for line in response.content:
            data = line.decode().strip().removeprefix("data:").strip()
            if data == "[DONE]" and not self.said:
                # Every token of the tiny model is one printable character, whose code is its id.
                self.status, self.ids = 200, list(self.text.encode())
            elif data and data != "[DONE]" and not line.startswith(b":"):
                self._event(json.loads(data), began)

    def _event(self, event: dict[str, Any], began: float) -> None:
        if "error" in event:
            self.said = json.dumps(event["error"])
            return
        for choice in event.get("choices") or []:
            piece = choice["delta"].get("content") or ""
            if piece and self.first_s is None:
                self.first_s = time.monotonic() - began
            self.text += piece
