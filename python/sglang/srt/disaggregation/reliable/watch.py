"""Ends rooms whose phase lasts too long, whatever the scheduler does meanwhile."""

from __future__ import annotations

import logging
import weakref
from typing import Any

from sglang.srt.disaggregation.base.conn import KVPoll

from sglang.srt.disaggregation.reliable.deadlines import Deadlines, DeadlineThread, Overdue
from sglang.srt.disaggregation.reliable.failure import failure
from sglang.srt.disaggregation.reliable.phases import PHASES, Role
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang_pd import environ

logger = logging.getLogger(__name__)


# A tensor-parallel rank that does not speak for its server waits so much longer, in seconds: the one that does, which
# counts and logs, then finds the true reason itself, and not that another rank failed.
SILENT_S = 1.0


def deadlines_of(role: Role, speaks: bool = True) -> Deadlines:
    """The deadlines from the environment: one variable per phase, ``SGLANG_PD_<ROLE>_<PHASE>_TIMEOUT``."""
    fields, more = environ.fields(), 0.0 if speaks else SILENT_S
    return Deadlines(role, {phase: fields[variable(role, phase)].get() + more for phase in PHASES[role]})


def variable(role: Role, phase: str) -> str:
    return f"SGLANG_PD_{role}_{phase}_TIMEOUT".upper()


class Watch:
    """The deadline thread of one manager: an overdue room fails as if upstream had noticed, and the peer is told.

    ``ends``: decode's receivers by room, which know whom to tell; prefill's control does there.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self.ends: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        ledger = manager.accounts.ledger
        deadlines = deadlines_of(ledger.role, manager.accounts.speaks)
        self._thread = DeadlineThread(ledger, deadlines, self._on_overdue, self._on_error)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _on_overdue(self, overdue: Overdue) -> None:
        room, phase = overdue.room.room, overdue.room.phase
        seconds = overdue.room.phase_seconds()[phase]
        reason = self._why(room, overdue.reason)
        text = failure(reason, f"{reason.sentence} It was {phase} for {seconds:.1f} s.")
        if overdue.room.role is Role.DECODE and (receiver := self.ends.get(room)) is not None:
            receiver.expire(overdue.room, text)
        elif self._manager.accounts.ledger.expire(room, overdue.room.generation, phase, reason) is not None:
            # It has not gone on, or ended, since it was found overdue.
            self._manager.record_failure(room, text)
            self._manager.update_status(room, KVPoll.Failed)
            if overdue.room.role is Role.PREFILL:
                self._manager.prefill.ended(room, text)

    def _why(self, room: int, reason: Reason) -> Reason:
        """A rank is asked for once the layout is known: without it, the bootstrap server never answered at all."""
        receiver = self.ends.get(room)
        if reason is not Reason.DP_RANK_UNRESOLVED or receiver is None:
            return reason
        known = receiver.bootstrap_addr in self._manager.prefill_info_table
        return reason if known else Reason.BOOTSTRAP_UNREACHABLE

    def _on_error(self, error: Exception) -> None:
        logger.error("the deadline thread met an error (%d so far) and goes on", self._thread.errors, exc_info=error)
