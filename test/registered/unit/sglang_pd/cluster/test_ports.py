import os
import socket

import pytest

from sglang_pd.cluster import ports
from sglang_pd.cluster.ports import (
    DERIVED_COUNT,
    DERIVED_OFFSET,
    GATEWAY_PORT,
    PortPicker,
    gateway_port,
    is_free,
    listening,
)
from sglang_pd.errors import UserError


@pytest.fixture
def listener():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen()
        yield one.getsockname()[1]


def test_picks_are_distinct_also_from_derived_ports() -> None:
    picker = PortPicker(free=lambda port: True, seed=7)
    servers = [picker.pick_server() for _ in range(60)]
    others = [picker.pick() for _ in range(60)]
    used = [
        port for one in servers for port in (one, *range(one + DERIVED_OFFSET, one + DERIVED_OFFSET + DERIVED_COUNT))
    ]
    used += others
    assert len(used) == len(set(used))


def test_what_is_taken_or_listened_on_is_not_picked() -> None:
    picker = PortPicker(taken=[10000, 10001], free=lambda port: port < 10005)
    assert {picker.pick() for _ in range(3)} == {10002, 10003, 10004}
    with pytest.raises(UserError, match="no free port") as error:
        picker.pick()
    assert error.value.exit_code == 1


def test_a_listener_is_seen_and_named(listener: int) -> None:
    assert not is_free(listener)
    with pytest.raises(UserError) as error:
        gateway_port(listener, PortPicker())
    assert f"port {listener} is in use by" in str(error.value)
    assert f"pid {os.getpid()}" in str(error.value)
    assert "--port" in str(error.value)


def test_a_closed_connection_does_not_hold_a_port() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=False) as server:
        port = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first is the one that waits in TIME_WAIT
        client.close()
    assert is_free(port)


def test_gateway_port_default_and_fallback() -> None:
    assert gateway_port(None, PortPicker(free=lambda port: True)) == GATEWAY_PORT
    assert gateway_port(None, PortPicker(free=lambda port: port != GATEWAY_PORT)) != GATEWAY_PORT


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_no_port(port: int) -> None:
    with pytest.raises(UserError, match="1 to 65535"):
        gateway_port(port, PortPicker())


def test_privileged_port(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(port: int) -> bool:
        raise PermissionError

    with pytest.raises(UserError, match="port 80 is not for this user"):
        gateway_port(80, PortPicker(free=refuse))


def test_holder_unknown(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports.psutil, "net_connections", lambda kind: [])
    assert ports.holder(listener) is None


def test_listening_is_a_listener_and_not_what_a_closed_server_leaves() -> None:
    """A connection that the server closed first keeps its port from being bound for a while; nobody listens there."""
    with socket.socket() as server, socket.socket() as client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert listening([port]) == [port]
        client.connect(("127.0.0.1", port))
        accepted, _ = server.accept()
        server.close()
        accepted.close()
        assert not is_free(port)
        assert listening([port]) == []
