"""Clients that ask for ``/pd/status`` at a steady rate; a process of its own, told on stdin when to begin and to stop.

python pollers.py CLIENTS INTERVAL_S PORT...

``go`` starts every client on every port, each asking once in INTERVAL_S; ``stop`` ends them, and a line of JSON on
stdout tells the seconds that each answer took and how many failed.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

REQUEST = b"GET /pd/status HTTP/1.1\r\nHost: localhost\r\nUser-Agent: pollers\r\nConnection: close\r\n\r\n"
# Clients that one thread plays, one after the other: their turns are spread over the interval.
PER_THREAD = 8
TIMEOUT_S = 10.0


def ask(port: int) -> float:
    """Ask once; returns the seconds it took. Raises ``OSError``, or ``ValueError`` for anything but an answer."""
    start = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as connection:
        connection.sendall(REQUEST)
        begin = connection.recv(65536)
        while connection.recv(65536):
            pass
    if b" 200 " not in begin[:20]:
        raise ValueError(begin[:100])
    return time.monotonic() - start


class Pollers:
    """``clients`` on each of ``ports``."""

    def __init__(self, clients: int, interval_s: float, ports: list[int]) -> None:
        self._clients = clients
        self._interval_s = interval_s
        self._ports = ports
        self._stop = threading.Event()
        self._seconds: list[float] = []
        self._failed: list[str] = []
        self._threads: list[threading.Thread] = []

    def go(self) -> None:
        self._stop.clear()
        self._seconds, self._failed = [], []
        groups = [
            (port, range(first, min(first + PER_THREAD, self._clients)))
            for port in self._ports
            for first in range(0, self._clients, PER_THREAD)
        ]
        self._threads = [threading.Thread(target=self._poll, args=group) for group in groups]
        for thread in self._threads:
            thread.start()

    def stop(self) -> dict[str, object]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return {"seconds": self._seconds, "failed": self._failed}

    def _poll(self, port: int, clients: range) -> None:
        begin, turn = time.monotonic(), 0
        while True:
            client = clients[turn % len(clients)]
            # Each client has its own place in the interval.
            due = begin + self._interval_s * (turn // len(clients) + client / self._clients)
            if self._stop.wait(max(0.0, due - time.monotonic())):
                return
            try:
                self._seconds.append(ask(port))
            except (OSError, ValueError) as error:
                self._failed.append(f"{type(error).__name__}: {error}")
            turn += 1


def main() -> None:
    clients, interval_s, *ports = sys.argv[1:]
    pollers = Pollers(int(clients), float(interval_s), [int(port) for port in ports])
    for line in sys.stdin:
        if line.strip() == "go":
            pollers.go()
        else:
            print(json.dumps(pollers.stop()), flush=True)


if __name__ == "__main__":
    main()
