"""Sends control messages and never waits, and notices when the process they go to is gone."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import lru_cache

import zmq
from sglang.srt.utils.network import NetworkAddress
from zmq.utils.monitor import recv_monitor_message

from sglang.srt.disaggregation.reliable.presence import GRACE_S, Event, Presence

logger = logging.getLogger(__name__)

# As many messages wait for a peer that cannot be reached; the next one fails.
PEER_QUEUE = 1000
# How often a connection that broke is looked after, in milliseconds.
LOOK_MS = int(GRACE_S * 200)

# As plain numbers: pyzmq's enums take as long to combine as a message takes to send.
_MORE, _LAST = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK)

# What is said to the thread that watches: there are new monitors, or it is to end.
_NEW, _END = b"", b"end"

_EVENTS = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: Event.UP,
    zmq.EVENT_DISCONNECTED: Event.DOWN,
    zmq.EVENT_CONNECT_RETRIED: Event.REFUSED,
}


class PeerUnreachableError(OSError):
    """So many messages wait for the peer that no more is taken."""


@lru_cache(maxsize=4096)
def endpoint(ip: str, port: int) -> tuple[str, bool]:
    """The address of a process for :class:`Outbox`, and whether it is an IPv6 one."""
    address = NetworkAddress(ip, port)
    return address.to_tcp(), address.is_ipv6


class Outbox:
    """One socket per address, made at the first message; any thread may send.

    A message to a peer that is not there waits for it, at most :data:`PEER_QUEUE` of them: a send that returned proves
    nothing. ``on_lost(address, since)`` is called, by the thread that runs :meth:`watch`, when the peer is gone
    (:mod:`~.presence`), ``since`` a monotonic time; its socket is closed then, and what waited in it is dropped.
    """

    def __init__(self, context: zmq.Context, on_lost: Callable[[str, float], None]) -> None:
        self._context = context
        self._on_lost = on_lost
        self._lock = threading.Lock()
        self._sockets: dict[str, zmq.Socket] = {}
        # Monitors that the watching thread has not taken over yet, and those that it has: they are its alone.
        self._fresh: list[tuple[str, zmq.Socket]] = []
        self._monitors: dict[zmq.Socket, str] = {}
        self._presence = Presence()
        self._bell, self._bell_end = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        self._bell.bind(f"inproc://outbox-{id(self)}")
        self._bell_end.connect(f"inproc://outbox-{id(self)}")

    def __len__(self) -> int:
        return len(self._sockets)

    def send(self, address: str, frames: list[bytes], ipv6: bool = False) -> None:
        """Hand the message to the socket of ``address`` (``tcp://host:port``); raises :class:`PeerUnreachableError`."""
        with self._lock:
            socket = self._socket(address, ipv6)
            try:
                # A message is taken whole or not at all: only its first frame can be refused.
                for frame in frames[:-1]:
                    socket.send(frame, flags=_MORE)
                socket.send(frames[-1], flags=_LAST)
            except zmq.Again:
                raise PeerUnreachableError(f"{PEER_QUEUE} messages wait for {address}") from None

    def connect(self, address: str, ipv6: bool = False) -> None:
        """A process at the address was just heard from: connect, so that its end is noticed. The absence of one that
        listened there before it does not count against it."""
        with self._lock:
            self._presence.forget(address)
            self._socket(address, ipv6)

    def is_absent(self, address: str) -> bool:
        """Whether the connection to the peer broke, or was refused, and has not come back so far."""
        return self._presence.is_absent(address)

    def close(self, address: str) -> None:
        """Drop the connection and what waits in it."""
        with self._lock:
            self._close(address)

    def stop(self) -> None:
        """End :meth:`watch`; before the context is destroyed, since ZeroMQ aborts where a socket is closed that another
        thread polls."""
        with self._lock:
            self._bell.send(_END)

    def watch(self) -> None:
        """Notice the peers that are gone; for a thread of its own, returns after :meth:`stop`."""
        poller = zmq.Poller()
        for socket in (self._bell_end, *self._monitors):
            poller.register(socket, zmq.POLLIN)
        while True:
            with self._lock:
                busy = any(self._presence.is_absent(address) for address in self._monitors.values())
            now = time.monotonic()
            if heard := poller.poll(0):
                for socket, _ in heard:
                    if not self._take(socket, poller):
                        return
            else:
                # Everything that happened up to now was heard: a peer that is back is not among the lost.
                for address, since in self._drop_lost(now).items():
                    self._tell(address, since)
                poller.poll(LOOK_MS if busy else None)

    def _take(self, socket: zmq.Socket, poller: zmq.Poller) -> bool:
        """Take what one socket has to say; returns whether to go on."""
        if socket is not self._bell_end:
            if not self._heard(socket):
                poller.unregister(socket)
            return True
        for address, monitor in self._take_fresh():
            self._monitors[monitor] = address
            poller.register(monitor, zmq.POLLIN)
        return bool(socket.recv() == _NEW)

    def _drop_lost(self, now: float) -> dict[str, float]:
        with self._lock:
            lost = self._presence.take_lost(now)
            for address in lost:
                self._close(address)
            return lost

    def _heard(self, monitor: zmq.Socket) -> bool:
        """Take one event; returns whether there will be more."""
        number = zmq.Event(recv_monitor_message(monitor)["event"])
        with self._lock:
            if number in _EVENTS:
                self._presence.note(self._monitors[monitor], _EVENTS[number], time.monotonic())
            if number != zmq.EVENT_MONITOR_STOPPED:
                return True
            self._presence.forget(self._monitors.pop(monitor))
        monitor.close(linger=0)
        return False

    def _tell(self, address: str, since: float) -> None:
        try:
            self._on_lost(address, since)
        except Exception:
            logger.exception("what follows from the loss of %s failed", address)

    def _take_fresh(self) -> list[tuple[str, zmq.Socket]]:
        with self._lock:
            fresh, self._fresh = self._fresh, []
            return fresh

    def _close(self, address: str) -> None:
        socket = self._sockets.pop(address, None)
        if socket is not None:
            # The monitor's thread sees it stop, and closes its end.
            socket.disable_monitor()
            socket.close(linger=0)

    def _socket(self, address: str, ipv6: bool) -> zmq.Socket:
        socket = self._sockets.get(address)
        if socket is None:
            socket = self._sockets[address] = self._make(address, ipv6)
            self._fresh.append((address, socket.get_monitor_socket(sum(_EVENTS) | zmq.EVENT_MONITOR_STOPPED)))
            socket.connect(address)
            self._bell.send(_NEW)
        return socket

    def _make(self, address: str, ipv6: bool) -> zmq.Socket:
        socket = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.IPV6, int(ipv6))
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, PEER_QUEUE)
        # A peer whose machine is gone closes nothing: find out, and connect anew.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 10)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 5)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        return socket
