"""How each fault of the table is made to happen: a function of the scene, found by the fault's name."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from harness.faults import frames
from harness.faults.fault import FrameFault, NixlFault, Phase, Side
from harness.faults.nixl_calls import ERRORS, Answer, Delay, Effect, Pretend, Raise
from harness.faults.scene import Scene
from harness.faults.site import DEADLINES_S, HEARTBEAT_S, MISSES, address
from harness.faults.table import FAULTS
from harness.managers import FAILED, send_frames

BRIEFLY_S = 0.3
TOO_LONG_S = max(DEADLINES_S.values()) + 0.4
HANG_S = 1.0
PATIENCE_S = 15.0
Action = Callable[[Scene], None]


def killed(scene: Scene) -> None:
    scene.bring(in_flight=True)
    scene.strike()
    scene.kill()
    scene.finish()
    scene.replace()
    scene.next()


def replaced(same_ports: bool) -> Action:
    def act(scene: Scene) -> None:
        scene.bring(in_flight=True)
        scene.strike()
        scene.kill()
        scene.thaw()
        scene.replace(same_ports)
        scene.next()
        scene.finish()

    return act


def replaced_after_a_heartbeat(scene: Scene) -> None:
    scene.bring()
    scene.strike()
    scene.kill()
    scene.finish()
    deadline = time.monotonic() + (MISSES + 2) * HEARTBEAT_S
    while any(decode.call("prefills") for decode in scene.site.decodes):
        assert time.monotonic() < deadline, "decode's heartbeat did not fail"
        time.sleep(0.01)
    scene.replace(same_ports=True)
    scene.next()


def stopped(seconds: float) -> Action:
    def act(scene: Scene) -> None:
        scene.bring(in_flight=scene.side is Side.DECODE)
        scene.strike()
        with scene.stopped():
            scene.drive(seconds)
        scene.finish()
        scene.next()

    return act


def data_connection_severed(scene: Scene) -> None:
    # Before decode stands still: it cannot be asked then.
    ends = scene.site.data_connections(scene.site.decode)
    assert ends, "there is no connection to sever"
    scene.bring(in_flight=True)
    scene.strike()
    assert scene.site.prefill.call("sever", ends) == len(ends)
    scene.finish()
    scene.next()


def control_connection_broken(scene: Scene) -> None:
    scene.bring()
    scene.strike()
    if scene.side is Side.PREFILL:
        scene.site.relay.break_to_prefill()
    else:
        scene.site.relay.break_to_decode(address(scene.site.decode))
    scene.finish()
    scene.next()


def foreign_traffic(scene: Scene) -> None:
    scene.bring()
    scene.strike()
    role = scene.site.role(scene.side)
    with socket.create_connection((role.info["ip"], role.info["port"]), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    tags = (b"GET / HTTP/1.1", b"", b"\xff" * 300, b"NixlMsgGuard", b"KV_STATUS", b"ABORT", b"ABORT_ACK", b"WATERMARK")
    send_frames(role.address, *([tag] for tag in tags), *([tag, b"\xff"] for tag in tags))
    scene.finish()
    scene.next()


def bootstrap_server(mode: str, seconds: float) -> Action:
    """Decode's scheduler asks again until the server answers."""

    def act(scene: Scene) -> None:
        http = scene.site.http
        scene.replace_decode()
        request = scene.site.request()
        scene.requests.append(request)
        request.open("prefill")
        scene.strike()
        http.mode = mode  # type: ignore[assignment]
        healed_at = time.monotonic() + seconds
        while not request.opened("decode"):
            if http.mode != "pass" and time.monotonic() > healed_at:
                http.mode = "pass"
                http.sever()
            request.try_open_decode()
            request.step()
            assert time.monotonic() < healed_at + PATIENCE_S, "decode never got through to the bootstrap server"
        scene.finish()
        scene.next()

    return act


def client_abort(scene: Scene) -> None:
    scene.bring()
    scene.strike()
    other = Side.DECODE if scene.side is Side.PREFILL else Side.PREFILL
    for side in (scene.side, other):
        if not scene.request.done(side):
            scene.request.abort(side)
    scene.finish()
    scene.next()


def abort(scene: Scene) -> None:
    scene.bring()
    scene.strike()
    if not scene.request.done(scene.side):
        scene.request.abort(scene.side)
    scene.finish()
    scene.next()


def other_configuration(changes: dict[str, object]) -> Action:
    """The next request is one after the old configuration is back: with the new one none can succeed."""

    def act(scene: Scene) -> None:
        scene.strike()
        scene.kill()
        scene.replace(**changes)
        request = scene.site.request()
        scene.requests.append(request)
        request.open("prefill")
        deadline = time.monotonic() + PATIENCE_S
        while not request.try_open_decode() and request.refused is None and time.monotonic() < deadline:
            request.step()
        scene.finish()
        scene.collect()
        scene.kill()
        scene.replace()
        scene.next()

    return act


def control_frame(fault: FrameFault) -> Action:
    def act(scene: Scene) -> None:
        kind, _, result = fault.kind.partition(" ")
        where = {"failed": FAILED}.get(result)
        rule = scene.site.relay.rule(
            kind,
            OPERATIONS[fault.operation],
            where=lambda message: where is None or message.status == where,
            room=None,
            times=0,
        )

        def arm() -> None:
            scene.strike()
            rule.room = None if kind == "registration" else scene.request.room
            rule.times = 1

        if kind == "registration":
            scene.replace_decode()
            arm()
            scene.bring(Phase.BOOTSTRAPPING)
        elif kind == "metadata":
            scene.bring(Phase.BOOTSTRAPPING)
            arm()
        else:
            scene.bring(Phase.WAITING)
            arm()
            if kind.startswith("abort"):
                scene.request.abort("decode")
            elif result == "failed":
                scene.request.abort("prefill")
        scene.finish()
        assert rule.hits == 1, f"no {fault.kind} message came"
        scene.next()

    return act


def nixl_call(fault: NixlFault) -> Action:
    once = Raise(fault.effect) if fault.effect in ERRORS else None
    times = 1 if fault.effect == "nixlRemoteDisconnectError" else None
    effect: Effect = once or {"ERR": Answer("ERR"), "PROC": Answer("PROC"), "slow": Delay(0.05)}[fault.effect]

    def act(scene: Scene) -> None:
        prefill = scene.site.prefill
        if fault.method == "add_remote_agent":
            scene.replace_decode()
            prefill.call("inject", fault.method, effect, 1, times)
            scene.strike()
            scene.bring(Phase.BOOTSTRAPPING)
        else:
            scene.bring(Phase.WAITING)
            if fault.method == "check_xfer_state":
                # A write that is done when it was posted is not asked for.
                prefill.call("inject", "transfer", Pretend("PROC"))
            prefill.call("inject", fault.method, effect, 1, times)
            scene.strike()
        scene.finish()
        hits = prefill.call("heal")
        assert all(hits), f"{fault.method} was never called: {hits}"
        scene.next()

    return act


OPERATIONS: dict[str, frames.Action] = {
    "dropped": frames.drop,
    "delayed": frames.delay(BRIEFLY_S),
    "duplicated": frames.duplicate,
    "reordered": frames.reorder,
    "corrupted": frames.corrupt,
    "cut off": frames.cut_off,
}
ACTIONS: dict[str, Action] = {
    "killed": killed,
    "replaced, new ports": replaced(same_ports=False),
    "replaced, same ports": replaced(same_ports=True),
    "replaced after a heartbeat": replaced_after_a_heartbeat,
    "stopped briefly": stopped(BRIEFLY_S),
    "stopped too long": stopped(TOO_LONG_S),
    "data connection severed": data_connection_severed,
    "control connection broken": control_connection_broken,
    "bootstrap server refuses": bootstrap_server("refuse", HANG_S),
    "bootstrap server hangs": bootstrap_server("hang", HANG_S),
    "foreign traffic": foreign_traffic,
    "client abort": client_abort,
    "abort": abort,
    "other page size": other_configuration({"page_size": 8}),
    "other item length": other_configuration({"page_bytes": 8192}),
    "other layers": other_configuration({"layers": 2}),
    "other dtype": other_configuration({"dtype": "float8"}),
    **{fault.name: control_frame(fault) for fault in FAULTS if isinstance(fault, FrameFault)},
    **{fault.name: nixl_call(fault) for fault in FAULTS if isinstance(fault, NixlFault)},
}
