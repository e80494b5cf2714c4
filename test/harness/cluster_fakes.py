"""Stand-ins for server and gateway: real processes that listen, answer like upstream and log like upstream."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from sglang_pd.cluster.plan import Plan, ProcessSpec
from sglang_pd.cluster.ports import PortPicker

SERVER_LINES = (
    "[2026-01-01 00:00:00] server_args={'model_path': 'm'}",
    "[2026-01-01 00:00:01] Load weight begin. avail mem=1.00 GB",
    "[2026-01-01 00:00:02] Load weight end. elapsed=0.10 s",
)


def plan(
    name: str,
    *,
    server: str = "serve",
    decode: str | None = None,
    timeout_s: float = 30.0,
    grace_s: float = 3.0,
    hung_after_s: float | None = None,
) -> Plan:
    """One prefill server, one decode server and a gateway, all fake. ``server`` and ``decode`` are what they do."""
    picker = PortPicker()
    servers = [
        ProcessSpec("prefill-0", "prefill", (__file__, server, port := str(picker.pick())), int(port)),
        ProcessSpec("decode-0", "decode", (__file__, decode or server, port := str(picker.pick())), int(port)),
    ]
    gateway = picker.pick()
    urls = [one.url for one in servers]
    argv = (__file__, "gateway", str(gateway), *urls)
    processes = (*servers, ProcessSpec("gateway", "gateway", argv, gateway))
    return Plan(name, "/models/tiny", "tiny", processes, timeout_s, grace_s, hung_after_s)


def serve(port: int, routes: dict[str, object]) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = routes[self.path]
            status, body = answer() if callable(answer) else (200, answer)
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def gateway(port: int, urls: list[str]) -> None:
    def healthy(url: str) -> bool:
        try:
            return urllib.request.urlopen(url + "/health", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def workers() -> tuple[int, object]:
        return 200, {"workers": [{"url": url, "is_healthy": True} for url in urls if healthy(url)]}

    serve(port, {"/workers": workers})


def helper() -> None:
    """A process of the server's own that is in its session and ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()


def server(what: str, port: int) -> None:
    """``serve``; ``stubborn``: ignores SIGTERM and has a helper that does; ``die``: logs and exits with 3;
    ``die-when-asked``: ready, and exits with 4 at ``GET /die``; ``never``: answers 503 for ever."""
    for line in SERVER_LINES:
        print(line, flush=True)
    if what == "die":
        print("RuntimeError: the fake model is broken", flush=True)
        sys.exit(3)
    if what == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, __file__, "helper", "0"])

    def die() -> tuple[int, object]:
        import os

        print("FatalError: asked to die", flush=True)
        os._exit(4)

    health = (lambda: (503, {})) if what == "never" else {}
    serve(port, {"/health": health, "/pd/ready": health, "/die": die})


if __name__ == "__main__":
    role, port = sys.argv[1], int(sys.argv[2])
    if role == "gateway":
        gateway(port, sys.argv[3:])
    elif role == "helper":
        helper()
    else:
        server(role, port)
