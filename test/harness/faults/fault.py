"""What a fault of the matrix is; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sglang.srt.disaggregation.reliable.reasons import Reason


class Phase(StrEnum):
    """Where the request is when the fault comes.

    ``transferring``: its first chunk is written, or being written. ``success not seen``: prefill has sent everything,
    its word has not reached decode. ``aborting``: decode's abort is under way, and prefill has not answered.
    """

    BOOTSTRAPPING = "bootstrapping"
    WAITING = "waiting"
    TRANSFERRING = "transferring"
    UNSEEN = "success not seen"
    ABORTING = "aborting"


class Side(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Peers(StrEnum):
    """``several``: a second decode has requests all the while."""

    ONE = "one"
    SEVERAL = "several"


class Must(StrEnum):
    """What a request has to come to. ``end``: any end in time, and with its reason."""

    SUCCEED = "succeed"
    END = "end"
    ABORT = "be aborted"
    FAIL = "fail"


@dataclass(frozen=True)
class Fault:
    """A row of the matrix.

    ``phases``, ``sides`` and ``peers``: the combinations it has; ``elsewhere`` is why it has no others. A cell's side
    is where the fault strikes; for a control frame, who it is for. ``told``: a message can reach the other side, which
    so knows within a second. ``reasons``: those that a side may give for a room that failed; where it is not named,
    any of the closed list that stands for something that happens.
    """

    name: str
    about: str
    elsewhere: str = ""
    phases: tuple[Phase, ...] = tuple(Phase)
    sides: tuple[Side, ...] = tuple(Side)
    peers: tuple[Peers, ...] = tuple(Peers)
    must: Must = Must.END
    told: bool = True
    reasons: Mapping[Side, frozenset[Reason]] = field(default_factory=dict, hash=False, compare=False)

    @property
    def leaves_doubt(self) -> bool:
        """Whether nothing can prove to decode that prefill's writes are over, though both sides live."""
        return False


LOSSES = ("dropped", "corrupted", "cut off")


@dataclass(frozen=True)
class FrameFault(Fault):
    """``operation`` is done to one control message of this ``kind``."""

    kind: str = ""
    operation: str = ""

    @property
    def leaves_doubt(self) -> bool:
        return self.operation in LOSSES


@dataclass(frozen=True)
class NixlFault(Fault):
    """``method`` of prefill's agent has this ``effect``."""

    method: str = ""
    effect: str = ""

    @property
    def leaves_doubt(self) -> bool:
        """A write whose state NIXL cannot tell may still be running."""
        return self.method == "check_xfer_state" and self.effect in ("PROC", "nixlUnknownError", "nixlCancelledError")
