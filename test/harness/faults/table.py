"""The faults of the matrix; pure data. ``actions.py`` says how each is made to happen, by its name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from harness.faults.fault import LOSSES, Fault, FrameFault, Must, NixlFault, Peers, Phase, Side
from sglang.srt.disaggregation.reliable.reasons import Reason

SETTLED = "a connection is set up, and a configuration compared, before the first request of a pair goes on"
ONE_CONNECTION = "the connection is one: what prefill's end sees, decode's does"
PREFILL_CALLS = "only prefill calls NIXL for a request, while it transfers; an injection meets every peer's calls"
KIND = "a frame of this kind goes this way and in this phase only"
ONE_DECODE = f"{KIND}; it is for one decode, and no other is involved"

PROCESSES = (
    Fault("killed", "SIGKILL; replaced after the other side has noticed", told=False),
    Fault("replaced, new ports", "SIGKILL, and at once a new process at new ports", told=False),
    Fault("replaced, same ports", "SIGKILL, and at once a new process at the same ports", told=False),
    Fault(
        "replaced after a heartbeat",
        "SIGKILL, and a new process at the same ports after decode's heartbeat has failed",
        "only decode sends heartbeats; requests that were live have long ended by then, whatever their phase",
        phases=(Phase.WAITING,),
        sides=(Side.PREFILL,),
        told=False,
    ),
    Fault("stopped briefly", "SIGSTOP, SIGCONT after 0.3 s", must=Must.SUCCEED),
    Fault("stopped too long", "SIGSTOP, SIGCONT 0.4 s after every deadline", told=False),
)
CONNECTIONS = (
    Fault(
        "data connection severed",
        "shutdown() on every TCP connection of NIXL between the two, both alive",
        ONE_CONNECTION,
        sides=(Side.PREFILL,),
    ),
    Fault("control connection broken", "the TCP connections of the control messages to this side are closed"),
    *(
        Fault(
            f"bootstrap server {what}",
            f"{about}; then it is well again",
            SETTLED,
            phases=(Phase.BOOTSTRAPPING,),
            sides=(Side.PREFILL,),
            told=False,
        )
        for what, about in (
            ("refuses", "for 1 s it closes connections at once, while a new decode arrives"),
            ("hangs", "for 1 s it accepts and does not answer, while a new decode arrives"),
        )
    ),
    Fault("foreign traffic", "HTTP, noise and cut-off messages at this side's control port", must=Must.SUCCEED),
)
ABORTS = (
    Fault(
        "client abort",
        "both schedulers abort, this side first",
        "the request is aborted already",
        phases=(Phase.BOOTSTRAPPING, Phase.WAITING, Phase.TRANSFERRING, Phase.UNSEEN),
        must=Must.ABORT,
    ),
    Fault("abort", "this side's scheduler aborts; the other's does not", must=Must.ABORT),
)
# Where decode itself finds the difference, it never opens the room and prefill waits for metadata.
INCOMPATIBLE = dict.fromkeys(Side, frozenset({Reason.PEER_INCOMPATIBLE, Reason.METADATA_TIMEOUT}))
CONFIGURATION = tuple(
    Fault(
        f"other {what}",
        f"this side is replaced by one with {about}",
        SETTLED if sides == tuple(Side) else f"{SETTLED}; the bootstrap server fixes prefill's",
        phases=(Phase.BOOTSTRAPPING,),
        sides=sides,
        must=Must.FAIL,
        told=False,
        reasons=INCOMPATIBLE,
    )
    for what, about, sides in (
        ("page size", "twice the tokens a page", tuple(Side)),
        ("item length", "twice the bytes a page", tuple(Side)),
        ("layers", "half the layers", tuple(Side)),
        ("dtype", "another type of KV cache", (Side.DECODE,)),
    )
)

OPERATIONS = {
    "dropped": "does not arrive",
    "delayed": "arrives 0.3 s later",
    "duplicated": "arrives twice",
    "reordered": "arrives after the next message, or 0.3 s later",
    "corrupted": "arrives as garbage after its tag",
    "cut off": "arrives with half of its frames",
}
# Kind of message: the phase in which it goes out, who it is for, what the request comes to if it arrives, and if not.
FRAMES = {
    "registration": (Phase.BOOTSTRAPPING, Side.PREFILL, Must.SUCCEED, Must.SUCCEED),
    "metadata": (Phase.BOOTSTRAPPING, Side.PREFILL, Must.SUCCEED, Must.SUCCEED),
    "abort": (Phase.ABORTING, Side.PREFILL, Must.ABORT, Must.ABORT),
    "delivered": (Phase.UNSEEN, Side.DECODE, Must.SUCCEED, Must.SUCCEED),
    "status failed": (Phase.WAITING, Side.DECODE, Must.ABORT, Must.ABORT),
    "abort_ack": (Phase.ABORTING, Side.DECODE, Must.ABORT, Must.ABORT),
}


def _frames() -> Iterator[FrameFault]:
    for (kind, (phase, side, arrived, lost)), (operation, about) in itertools.product(
        FRAMES.items(), OPERATIONS.items()
    ):
        arrives = operation not in LOSSES
        yield FrameFault(
            f"{kind} {operation}",
            f"the {kind} message {about}",
            KIND if side is Side.PREFILL else ONE_DECODE,
            phases=(phase,),
            sides=(side,),
            peers=tuple(Peers) if side is Side.PREFILL else (Peers.ONE,),
            must=arrived if arrives else lost,
            told=arrives,
            kind=kind,
            operation=operation,
        )


EFFECTS = {
    "nixlRemoteDisconnectError": "raises it once",
    "ERR": "answers so, whenever it is called",
    "PROC": "answers so, whenever it is called",
    "slow": "takes 50 ms more each time",
}
NIXL = tuple(
    NixlFault(
        f"NIXL: {name}",
        f"{method}() {EFFECTS.get(effect, f'raises {effect}, whenever it is called')}",
        PREFILL_CALLS,
        phases=(Phase.BOOTSTRAPPING if method == "add_remote_agent" else Phase.TRANSFERRING,),
        sides=(Side.PREFILL,),
        peers=(Peers.ONE,),
        must=must,
        reasons={} if reason is None else {Side.PREFILL: frozenset({reason})},
        method=method,
        effect=effect,
    )
    for name, method, effect, must, reason in (
        ("disconnect at the post", "transfer", "nixlRemoteDisconnectError", Must.SUCCEED, None),
        ("disconnect in flight", "check_xfer_state", "nixlRemoteDisconnectError", Must.SUCCEED, None),
        ("backend error", "transfer", "nixlBackendError", Must.FAIL, Reason.NIXL_BACKEND),
        ("invalid parameter", "transfer", "nixlInvalidParamError", Must.FAIL, Reason.NIXL_INVALID),
        ("cancelled", "check_xfer_state", "nixlCancelledError", Must.FAIL, Reason.NIXL_CANCELLED),
        ("unknown error", "check_xfer_state", "nixlUnknownError", Must.FAIL, Reason.NIXL_OTHER),
        ("ERR", "check_xfer_state", "ERR", Must.FAIL, Reason.NIXL_BACKEND),
        ("PROC without end", "check_xfer_state", "PROC", Must.FAIL, Reason.TRANSFER_TIMEOUT),
        ("slow", "check_xfer_state", "slow", Must.SUCCEED, None),
        ("no transfer to be had", "initialize_xfer", "nixlNotFoundError", Must.FAIL, Reason.NIXL_NOT_FOUND),
        ("mismatch", "initialize_xfer", "nixlMismatchError", Must.FAIL, Reason.NIXL_MISMATCH),
        ("registration fails", "add_remote_agent", "nixlBackendError", Must.FAIL, Reason.REGISTRATION_FAILED),
    )
)
FAULTS: tuple[Fault, ...] = (*PROCESSES, *CONNECTIONS, *ABORTS, *CONFIGURATION, *_frames(), *NIXL)
