"""A prefill and two decodes with a relay and a proxy between them, any of which can be killed and replaced.

decode ──HTTP──▶ HttpProxy ──▶ prefill's bootstrap server
decode ──ZMQ──▶ Relay ──ZMQ──▶ prefill      prefill ──ZMQ──▶ Relay ──ZMQ──▶ decode      prefill ══NIXL══▶ decode
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from dataclasses import replace
from typing import Any

from harness.faults import signals, sockets
from harness.faults.http_proxy import HttpProxy
from harness.faults.relay import HOST, Relay
from harness.faults.request import PAGES, Request, Upto
from harness.faults.spec import FaultRoleSpec
from harness.managers import TCP, Nursery, RoleProcess
from harness.servers import free_port

# One deadline for every phase of a role, in seconds: far above what a room takes here, and short enough for a matrix.
# Decode's is the longer one, so that prefill is the first to say why.
DEADLINES_S = {"prefill": 1.2, "decode": 1.6}
TRANSFER_S = 0.9
QUARANTINE_S = 3.0
# Upstream's shortest interval; as many misses as by default.
HEARTBEAT_S = 2.0
MISSES = 2
PHASES = {
    "prefill": ("BOOTSTRAPPING", "WAITING", "TRANSFERRING"),
    "decode": ("RESOLVING", "BOOTSTRAPPING", "ALLOCATING", "WAITING", "TRANSFERRING", "FINISHING"),
}
ENVIRONMENT = {
    **TCP,
    **{
        f"SGLANG_PD_{role.upper()}_{phase}_TIMEOUT": str(DEADLINES_S[role])
        for role, phases in PHASES.items()
        for phase in phases
    },
    "SGLANG_PD_TRANSFER_TIMEOUT": str(TRANSFER_S),
    "SGLANG_PD_QUARANTINE_TIMEOUT": str(QUARANTINE_S),
    "SGLANG_DISAGGREGATION_HEARTBEAT_INTERVAL": str(HEARTBEAT_S),
    "SGLANG_DISAGGREGATION_HEARTBEAT_MAX_FAILURE": str(MISSES),
}
# A request that nothing disturbs takes some 20 ms; this bounds what a test waits for one, in seconds.
PATIENCE_S = 10.0
WARM_ROOMS = 8


class Site:
    """``prefill`` and ``decodes`` are the processes that live now; ``decodes[0]`` is the one that faults are for."""

    def __init__(self, nursery: Nursery, decodes: int = 2, **environment: str) -> None:
        self._nursery = nursery
        self._rooms = itertools.count(1000)
        self._environment = {**ENVIRONMENT, **environment}
        # Roles that stand still: a call would wait for them.
        self.standing: set[RoleProcess] = set()
        # Sockets that NIXL has still to open after prefill made a connection anew: each of its workers has one, which
        # it opens when it first writes, be that many requests later.
        self.sockets_due = 0
        self.relay = Relay()
        self.prefill = self._start_prefill(free_port())
        self.http = HttpProxy(self.prefill.spec.bootstrap_port)
        self._reroute()
        self.decodes: list[RoleProcess] = []
        for _ in range(decodes):
            decode = self._start_decode()
            self.relay.serve_decode(address(decode))
            self.decodes.append(decode)
        self.warm()

    @property
    def decode(self) -> RoleProcess:
        return self.decodes[0]

    @property
    def roles(self) -> list[RoleProcess]:
        return [self.prefill, *self.decodes]

    def role(self, side: str) -> RoleProcess:
        return self.prefill if side == "prefill" else self.decode

    def warm(self) -> None:
        """Make every connection and thread that rooms need, so that what is held afterwards is the baseline."""
        for decode in self.decodes:
            for _ in range(WARM_ROOMS):
                self.transfer(decode)

    def request(
        self, decode: RoleProcess | None = None, source: list[int] | None = None, where: list[int] | None = None
    ) -> Request:
        """A request that has not begun; ``source`` and ``where`` are its pages on prefill and on decode. By default,
        requests of different decodes have different ones."""
        decode = decode or self.decode
        if source is None:
            first = PAGES * self.decodes.index(decode)
            source = list(range(first, first + PAGES))
        return Request(self.prefill, decode, next(self._rooms), source, where)

    def transfer(self, decode: RoleProcess | None = None) -> float:
        """A request from start to end, its bytes verified; returns its seconds. Raises ``AssertionError``."""
        request = self.request(decode)
        request.upto = Upto.END
        start = time.monotonic()
        request.open()
        in_time = request.drive(lambda: request.over, PATIENCE_S)
        seconds = time.monotonic() - start
        assert in_time, f"room {request.room} has not ended after {PATIENCE_S:g} s: {request.texts}"
        assert set(request.texts.values()) == {"success"}, request.texts
        assert not request.problems, request.problems
        return seconds

    def data_connections(self, decode: RoleProcess) -> list[sockets.Ends]:
        """NIXL's connections between prefill and this decode, as prefill sees them."""
        control = {self.prefill.info["port"], decode.info["port"], self.relay.port, self.http.port, self.http.target}
        return sockets.common(self.prefill.call("connections"), decode.call("connections"), control)

    # Processes come and go.

    def kill(self, side: str) -> None:
        """Nobody listens at the side's addresses afterwards."""
        role = self.role(side)
        signals.kill(role.pid)
        role.close()
        if side == "prefill":
            self.relay.prefill_is_gone()
        else:
            self.relay.decode_is_gone(address(role))

    def replace(self, side: str, same_ports: bool = False, **changes: Any) -> None:
        """A new process in place of one that was killed, at the same addresses or at new ones; ``changes`` to its
        spec."""
        if side == "prefill":
            old = self.prefill.spec
            port = old.bootstrap_port if same_ports else free_port()
            self.prefill = self._start_prefill(port, **changes)
            self.http.target = port
            self._reroute(new_port=not same_ports)
        else:
            gone, self.decodes[0] = self.decode, self._start_decode(**changes)
            if same_ports:
                self.relay.serve_decode(address(self.decode), in_place_of=address(gone))
            else:
                self.relay.forget_decode(address(gone))
                self.relay.serve_decode(address(self.decode))

    def close(self) -> None:
        for role in self.roles:
            role.close()
        self.relay.close()
        self.http.close()

    def _start_prefill(self, port: int, **changes: Any) -> RoleProcess:
        return self._nursery.start(replace(FaultRoleSpec("prefill", port, self._environment), **changes))

    def _start_decode(self, **changes: Any) -> RoleProcess:
        return self._nursery.start(replace(FaultRoleSpec("decode", self.http.port, self._environment), **changes))

    def _reroute(self, new_port: bool = False) -> None:
        """Put our relay between prefill and its decodes."""
        self.relay.serve_prefill(address(self.prefill), new_port)
        register(self.prefill.spec.bootstrap_port, (HOST, self.relay.port))


def address(role: RoleProcess) -> tuple[str, int]:
    return role.info["ip"], role.info["port"]


def register(bootstrap_port: int, rank: tuple[str, int]) -> None:
    """Tell a bootstrap server that its only prefill rank is at ``rank``; everything else it says stays as it is."""
    url = f"http://{HOST}:{bootstrap_port}/route"

    def get(of: int) -> dict[str, Any]:
        query = f"?prefill_dp_rank={of}&prefill_cp_rank={of}&target_tp_rank={of}&target_pp_rank={of}"
        with urllib.request.urlopen(url + query, timeout=5) as answer:
            return json.load(answer)

    server = get(-1)
    ranks = dict.fromkeys(("attn_tp_rank", "attn_cp_rank", "attn_dp_rank", "pp_rank", "system_dp_rank"), 0)
    row = {
        "attn_dp_size": server["dp_size"],
        "system_dp_size": 1,
        "dsv41_spec_layout": None,
        **server,
        **get(0),
        **ranks,
    }
    row |= {"rank_ip": rank[0], "rank_port": rank[1]}
    request = urllib.request.Request(url, json.dumps(row).encode(), {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(request, timeout=5).close()
