"""Free TCP ports for the processes of a cluster, and who holds one that is taken."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Callable, Iterable

import psutil

from sglang_pd.errors import UserError

# Where we look. Above it upstream draws its own rendezvous ports (22000-29999), and above those most kernels give out
# ports to outgoing connections; a port chosen here is still free when its server binds it some seconds later.
LOW, HIGH = 10000, 21000
# With data-parallel attention upstream also listens from --port + 233 on (``PortArgs.init_new``).
DERIVED_OFFSET, DERIVED_COUNT = 233, 32
# Upstream's own default for a router; ours too while it is free.
GATEWAY_PORT = 30000


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now, on any address.

    SO_REUSEADDR as servers set it: connections of a server that has just ended do not count, a listener does. Raises
    ``PermissionError`` for a port that this user may not use.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


class PortPicker:
    """Gives out ports that are free and distinct.

    ``taken``: ports promised to others that do not listen yet. ``free`` tells whether a port can be bound.
    """

    def __init__(self, taken: Iterable[int] = (), free: Callable[[int], bool] = is_free, seed: int | None = None):
        self._taken = set(taken)
        self._free = free
        self._random = random.Random(seed)

    def pick(self) -> int:
        """One free port. Raises :class:`UserError` (exit code 1) where none can be found."""
        return self._first(range(1))

    def pick_server(self) -> int:
        """A port for a server, with the ports upstream derives from it free as well."""
        return self._first((0, *range(DERIVED_OFFSET, DERIVED_OFFSET + DERIVED_COUNT)))

    def claim(self, port: int) -> bool:
        """Take this very port; False where it is not free."""
        if port in self._taken or not self._free(port):
            return False
        self._taken.add(port)
        return True

    def _first(self, offsets: Iterable[int]) -> int:
        for port in self._random.sample(range(LOW, HIGH), HIGH - LOW):
            wanted = [port + offset for offset in offsets]
            if not self._taken.intersection(wanted) and all(map(self._free, wanted)):
                self._taken.update(wanted)
                return port
        raise UserError(f"no free port between {LOW} and {HIGH}", exit_code=1)


def gateway_port(wanted: int | None, picker: PortPicker) -> int:
    """The gateway's port: ``wanted``, else upstream's default, else any. Raises :class:`UserError` where ``wanted``
    is no port or is taken, and says by whom as far as we may know."""
    if wanted is None:
        return GATEWAY_PORT if picker.claim(GATEWAY_PORT) else picker.pick()
    if not 1 <= wanted <= 65535:
        raise UserError(f"--port {wanted} is no port; allowed: 1 to 65535")
    try:
        claimed = picker.claim(wanted)
    except PermissionError:
        raise UserError(f"port {wanted} is not for this user to listen on; choose one above 1023 with --port") from None
    if not claimed:
        who = holder(wanted)
        raise UserError(f"port {wanted} is in use{f' by {who}' if who else ''}; choose another with --port")
    return wanted


def holder(port: int) -> str | None:
    """The process that listens on ``port``, for people; None where we may not see it."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for one in connections:
        if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
            try:
                process = psutil.Process(one.pid)
                command = " ".join(process.cmdline()).strip()
            except psutil.Error:
                return f"pid {one.pid}"
            return f"{process.name()} (pid {one.pid}: {command[:80]})"
    return None


def listening(ports: Iterable[int]) -> list[int]:
    """Those of ``ports`` that someone listens on, whoever it is.

    The kernel's table and not an attempt to bind: that fails for a while, too, where the last connections of a server
    that has ended were not closed by the other side.
    """
    taken = {one.laddr.port for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN and one.laddr}
    return [port for port in ports if port in taken]
