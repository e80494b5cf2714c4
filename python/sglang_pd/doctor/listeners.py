"""Which local process listens on which port."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

import psutil


def by_port() -> dict[int, int | None]:
    """The process that listens on each TCP port; None where that is not for us to see."""
    try:
        every = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return {}
    found: dict[int, int | None] = {}
    for one in every:
        if one.status == psutil.CONN_LISTEN and one.laddr and (one.pid or one.laddr.port not in found):
            found[one.laddr.port] = one.pid
    return found


def is_local(url: str) -> bool:
    """Whether a URL names this machine, by an address or a name that stands for itself. Asks no name server."""
    host = urlsplit(url).hostname or ""
    if host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if address.is_loopback or address.is_unspecified:
        return True
    own = {one.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for one in addresses}
    return str(address) in own


def ports_of(pids: set[int], listening: Mapping[int, int | None]) -> list[int]:
    return sorted(port for port, pid in listening.items() if pid in pids)
