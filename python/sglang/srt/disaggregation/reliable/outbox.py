"""Sends control messages and never waits: a scheduler's loop may call it."""

from __future__ import annotations

import threading

import zmq

# As many messages wait for a peer that cannot be reached; the next one fails.
PEER_QUEUE = 1000


class PeerUnreachableError(OSError):
    """So many messages wait for the peer that no more is taken."""


class Outbox:
    """One socket per address, made at the first message; any thread may send.

    A message to a peer that is not there waits for it, at most :data:`PEER_QUEUE` of them: a send that returned proves
    nothing.
    """

    def __init__(self, context: zmq.Context) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._sockets: dict[str, zmq.Socket] = {}

    def send(self, address: str, frames: list[bytes], ipv6: bool = False) -> None:
        """Hand the message to the socket of ``address`` (``tcp://host:port``); raises :class:`PeerUnreachableError`."""
        with self._lock:
            socket = self._sockets.get(address)
            if socket is None:
                socket = self._sockets[address] = self._connect(address, ipv6)
            try:
                socket.send_multipart(frames, flags=zmq.NOBLOCK)
            except zmq.Again:
                raise PeerUnreachableError(f"{PEER_QUEUE} messages wait for {address}") from None

    def _connect(self, address: str, ipv6: bool) -> zmq.Socket:
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.IPV6, int(ipv6))
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, PEER_QUEUE)
        # A peer whose machine is gone closes nothing: find out, and connect anew.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        socket.connect(address)
        return socket
