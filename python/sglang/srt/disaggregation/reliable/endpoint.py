"""A rank's own HTTP port on loopback, answered by threads that do not need the scheduler."""

from __future__ import annotations

import contextlib
import json
import logging
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sglang.srt.disaggregation.reliable import sockets
from sglang.srt.disaggregation.reliable.control import Supervisor
from sglang.srt.disaggregation.reliable.query import BadQueryError, parameters
from sglang_pd.ration import Ration

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
THREAD = "endpoint"
# So long the thread that accepts waits for a request that may be answered with what is kept, in milliseconds.
PATIENCE_MS = 2
# Between two times that a crowd is answered, in seconds.
CROWD_S = 0.2
# A client that connects and says nothing, or does not take its answer, must not keep a thread for longer, in seconds.
SILENT_S = 10
# A request without a body that anybody sends is shorter.
MOST_BYTES = 8192

Answer = Callable[[], dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """An answer that depends on the query string, which it gets as it came. It raises ``BadQueryError``: a 400."""

    answer: Callable[[str], dict[str, Any]]


class Shared:
    """An answer that many may ask for: made anew for each, but no more often than its ration allows; else what was made
    last is given again. Without that, 64 clients that ask once a second take some percent of the scheduler's time."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._ration = Ration()
        self._lock = threading.Lock()
        self._response: bytes | None = None

    def __call__(self) -> dict[str, Any]:
        return self._answer()

    def kept(self) -> bytes | None:
        """The last response where that will do; None where it is to be made anew. Waits for nobody."""
        if self._response is None:
            return None
        with self._lock:
            return None if self._ration.take(time.monotonic()) else self._response

    def made(self) -> str:
        text = json.dumps(self._answer())
        self._response = _response(text)
        return text


Route = Answer | Asked | Shared


class Endpoint:
    """``routes``: what answers a GET of each path, a JSON object; may be added to at any time.

    A path takes no query string unless its answer is :class:`Asked`. ``port`` is chosen by the system. The thread that
    accepts is restarted where it dies.
    """

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.supervisor = Supervisor()
        self._server = _Server((LOOPBACK, 0), self.routes)
        self.port: int = self._server.server_address[1]

    def start(self) -> None:
        self.supervisor.start(THREAD, self._server.serve)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Many may ask at once, while this process is kept from answering.
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], routes: dict[str, Route]) -> None:
        super().__init__(address, _handler(routes))
        self._routes = routes
        self.socket.setblocking(False)

    def serve(self) -> None:
        """For a thread of its own; does not return. A thread for each request, but for those that are answered with a
        text that is there: a thread, and the parsing of all headers, cost many times as much."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while True:
            poll.poll()
            crowd = False
            while (request := self._next()) is not None:
                if self._answered(request):
                    crowd = True
                else:
                    self.process_request(request, None)
            if crowd:
                # Who comes meanwhile is answered together: each time this thread wakes, another has to let it.
                time.sleep(CROWD_S)

    def _next(self) -> socket.socket | None:
        try:
            return sockets.accept(self.socket)
        except BlockingIOError:
            return None
        except OSError:
            # Such as no descriptor being left: who waits to be accepted would wake this thread again at once.
            time.sleep(CROWD_S)
            return None

    def _answered(self, request: socket.socket) -> bool:
        """Whether the request was answered with a text that is there."""
        try:
            response = self._kept(request)
            if response is None:
                return False
            sent = sockets.send(request, response)
        except OSError:
            sent, response = 0, b""
        if sent < len(response):
            # More than the socket's buffer holds: its client may take a while.
            threading.Thread(target=_send_rest, args=(request, response[sent:]), daemon=True).start()
        else:
            sockets.close(request)
        return True

    def _kept(self, request: socket.socket) -> bytes | None:
        """What answers the request at once; it is taken off the socket then, and only then."""
        head = sockets.peek(request, MOST_BYTES)
        if head is None:
            poll = select.poll()
            poll.register(request, select.POLLIN)
            poll.poll(PATIENCE_MS)
            head = sockets.peek(request, MOST_BYTES) or b""
        words = head.partition(b"\r\n")[0].split(b" ")
        if len(words) != 3 or words[0] != b"GET" or not head.endswith(b"\r\n\r\n"):
            return None
        route = self._routes.get(words[1].decode("latin-1"))
        response = route.kept() if isinstance(route, Shared) else None
        if response is not None:
            sockets.take(request, len(head))
        return response

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.warning("a request to a rank's endpoint broke off", exc_info=True)


def _send_rest(request: socket.socket, rest: bytes) -> None:
    with request, contextlib.suppress(OSError):
        request.settimeout(SILENT_S)
        request.sendall(rest)


def _response(text: str) -> bytes:
    content = text.encode()
    head = f"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


def _answer(route: Route, query: str) -> str:
    if isinstance(route, Asked):
        return json.dumps(route.answer(query))
    parameters(query, allowed=())
    return route.made() if isinstance(route, Shared) else json.dumps(route())


def _handler(routes: dict[str, Route]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SILENT_S

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            route = routes.get(path)
            if route is None:
                text = json.dumps({"error": f"no such path; there are {', '.join(sorted(routes))}"})
                self._say(HTTPStatus.NOT_FOUND, text)
                return
            try:
                status, text = HTTPStatus.OK, _answer(route, query)
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
