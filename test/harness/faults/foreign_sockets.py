"""Sever TCP connections of another process, which stays alive and is told nothing.

``pidfd_getfd`` gives a copy of its descriptor, and what is shut through a copy is shut. It needs the right to trace
that process: its ancestor has it, and root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterable

import psutil

PIDFD_GETFD = 438
_libc = ctypes.CDLL(None, use_errno=True)


def copy(pidfd: int, fd: int) -> socket.socket:
    """A copy of the socket ``fd`` of the process that ``pidfd`` refers to. Raises ``OSError``."""
    own = _libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
    if own < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return socket.socket(fileno=own)


def data_connections(one: psutil.Process, other: psutil.Process, control_ports: Iterable[int]) -> list[int]:
    """Descriptors, in ``one``, of its established TCP connections with ``other`` that no control port is an end of."""
    apart = set(control_ports)
    ends = {(c.laddr, c.raddr): c.fd for c in one.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED}
    others = {(c.raddr, c.laddr) for c in other.net_connections("tcp") if c.status == psutil.CONN_ESTABLISHED}
    return [fd for pair, fd in ends.items() if pair in others and not apart & {end.port for end in pair}]


def sever(process: psutil.Process, fds: Iterable[int]) -> int:
    """Shut these connections in both directions; returns how many there were."""
    pidfd = os.pidfd_open(process.pid)
    done = 0
    try:
        for fd in fds:
            with copy(pidfd, fd) as connection, contextlib.suppress(OSError):  # closed since it was listed
                connection.shutdown(socket.SHUT_RDWR)
                done += 1
    finally:
        os.close(pidfd)
    return done
