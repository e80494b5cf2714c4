"""Sever a TCP connection with the processes at both ends alive; these functions run in one of the processes."""

from __future__ import annotations

import os
import socket

Ends = tuple[tuple[str, int], tuple[str, int]]
"""A connection as this process sees it: its own address, the other's."""


def connections() -> dict[Ends, int]:
    """The established TCP connections of this process, each with a descriptor of it."""
    found: dict[Ends, int] = {}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            copy = os.dup(fd)
        except OSError:  # closed since it was listed
            continue
        with socket.socket(fileno=copy) as one:
            if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            try:
                found[one.getsockname()[:2], one.getpeername()[:2]] = fd
            except OSError:  # it listens, or its other end is gone
                continue
    return found


def sever(ends: list[Ends]) -> int:
    """Shut these connections in both directions; returns how many of them there were.

    The descriptors stay open: who uses them learns it from the next read or write, as with a broken network.
    """
    known = connections()
    fds = [known[one] for one in ends if one in known]
    for fd in fds:
        with socket.socket(fileno=os.dup(fd)) as one:
            one.shutdown(socket.SHUT_RDWR)
    return len(fds)


def common(ours: set[Ends], theirs: set[Ends], control_ports: set[int]) -> list[Ends]:
    """Of our connections, those to that process which no control port is an end of: its NIXL data connections."""
    return sorted(
        (own, other) for own, other in ours if (other, own) in theirs and not control_ports & {own[1], other[1]}
    )
