"""A rank's own HTTP port on loopback, answered by threads that do not need the scheduler."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglang.srt.disaggregation.reliable.control import Supervisor
from sglang.srt.disaggregation.reliable.query import BadQueryError, parameters

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
THREAD = "endpoint"

Answer = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """An answer that depends on the query string, which it gets as it came. It raises ``BadQueryError``: a 400."""

    answer: Callable[[str], dict[str, Any]]


class Endpoint:
    """``routes``: what answers a GET of each path, a JSON object; may be added to at any time.

    A path takes no query string unless its answer is :class:`Asked`. ``port`` is chosen by the system. The thread that
    accepts is restarted where it dies.
    """

    def __init__(self) -> None:
        self.routes: dict[str, Answer | Asked] = {}
        self.supervisor = Supervisor()
        self._server = _Server((LOOPBACK, 0), _handler(self.routes))
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        # Nobody shuts it down: it need not wake up to ask whether it should.
        self.supervisor.start(THREAD, lambda: self._server.serve_forever(poll_interval=3600))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Many may ask at once, while this process is kept from answering.
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.warning("a request to a rank's endpoint broke off", exc_info=True)


def _answer(route: Answer | Asked, query: str) -> dict[str, Any]:
    if isinstance(route, Asked):
        return route.answer(query)
    parameters(query, allowed=())
    return route()


def _handler(routes: dict[str, Answer | Asked]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        # A client that connects and says nothing must not keep a thread.
        timeout = 10

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            route = routes.get(path)
            if route is None:
                text = json.dumps({"error": f"no such path; there are {', '.join(sorted(routes))}"})
                self._say(HTTPStatus.NOT_FOUND, text)
                return
            try:
                status, text = HTTPStatus.OK, json.dumps(_answer(route, query))
            except BadQueryError as error:
                status, text = HTTPStatus.BAD_REQUEST, json.dumps({"error": str(error)})
            except Exception as error:
                # Before it is told: who reads the answer finds the line.
                logger.exception("%s failed", path)
                status = HTTPStatus.INTERNAL_SERVER_ERROR
                text = json.dumps({"error": f"{type(error).__name__}: {error}"})
            self._say(status, text)

        def _say(self, status: HTTPStatus, text: str) -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """A line for each probe would drown the log."""

    return Handler
