"""A proxy for the bootstrap server's HTTP: an address that stays while the server behind it moves, fails or hangs."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Literal

HOST = "127.0.0.1"
Mode = Literal["pass", "refuse", "hang"]


class HttpProxy:
    """Listens on ``port``; connections go to ``target`` as ``mode`` says when they come.

    "refuse": accepted and closed. "hang": accepted, and nothing ever comes back. ``delay_s``: before each connection is
    passed on. Any thread may set them.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.mode: Mode = "pass"
        self.delay_s = 0.0
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="http-proxy", daemon=True).start()

    def sever(self) -> None:
        """Close every connection that is open; new ones are taken as before."""
        with self._lock:
            connections, self._open = self._open, set()
        for one in connections:
            _shut(one)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.sever()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="http-proxy-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client:
            if self.mode == "refuse":
                return
            with self._lock:
                self._open.add(client)
            if self.mode == "hang":
                while client.recv(65536):
                    pass
                return
            time.sleep(self.delay_s)
            try:
                server = socket.create_connection((HOST, self.target), timeout=5)
            except OSError:
                return
            server.settimeout(None)
            with server:
                with self._lock:
                    self._open.add(server)
                back = threading.Thread(target=_pump, args=(server, client), name="http-proxy-answer", daemon=True)
                back.start()
                _pump(client, server)
                back.join()
                with self._lock:
                    self._open -= {client, server}


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _shut(source)
    _shut(sink)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
