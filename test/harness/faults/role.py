"""A role that faults can be injected into, and that tells what it holds; see ``harness.roles``."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from harness.faults import nixl_calls, sockets
from harness.faults.scraping import Scraper, totals
from harness.faults.spec import FaultRoleSpec
from harness.roles import Role
from sglang.srt.disaggregation.reliable import holding
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason
from sglang.srt.disaggregation.reliable.report import MARK, LoggedRoom, parse_warning_line, warning_line

SETTLED_S = 1.0


class NotYetError(Exception):
    """The bootstrap server has not answered."""


class _Lines(logging.Handler):
    """Hands the line of every room that failed to ``keep``."""

    def __init__(self, keep: Callable[[LoggedRoom], None]) -> None:
        super().__init__(logging.WARNING)
        self._keep = keep

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if MARK in text:
            self._keep(parse_warning_line(text))


class FaultRole(Role):
    def __init__(self, spec: FaultRoleSpec) -> None:
        # What the log, and what the ledger, said of each room; and of all of them, by reason.
        self._lines: Counter[int] = Counter()
        self._logged: Counter[Reason] = Counter()
        self._ended: dict[int, tuple[str, float]] = {}
        self._ends: Counter[int] = Counter()
        self._reasons: Counter[tuple[Outcome, Reason]] = Counter()
        self._lock = threading.Lock()
        logging.getLogger("sglang").addHandler(_Lines(self._note_line))
        super().__init__(spec)
        self.manager.kv_cache_dtype_str = spec.dtype
        self._injections: list[nixl_calls.Injection] = []
        # Decode's rooms that have failed, whose pages prefill may still write to.
        self._held: dict[int, tuple[Any, float]] = {}
        # What upstream's queue of transfers is to the hooks on it.
        self._queue = SimpleNamespace(deferred_kv_release_timeout=0.0)
        self._scraper = Scraper(self.manager)
        self.manager.accounts.ledger.on_end.add(self._note_end)

    def _note_end(self, record: Any) -> None:
        with self._lock:
            # The ledger's clock is that of all processes of a machine.
            self._ended[record.room] = warning_line(record), record.at
            self._ends[record.room] += 1
            self._reasons[record.outcome, record.reason] += 1

    def _note_line(self, line: LoggedRoom) -> None:
        with self._lock:
            self._lines[line.room] += 1
            self._logged[line.reason] += 1

    # What a scheduler does.

    def open(self, room: int) -> None:
        """As :meth:`Role.open`, but without waiting for the bootstrap server: raises :class:`NotYetError` while a
        decode has no answer. Upstream's scheduler, with our hook on it, tries again in its next round."""
        manager = self.manager
        if self.spec.mode == "decode" and self.address not in manager.prefill_info_table:
            answer = manager.ask_layout(self.address)
            if not answer.done():
                raise NotYetError(self.address)
        super().open(room)

    def begin(self, room: int, pages: int, slot: int) -> None:
        self.rooms[room].init(pages, slot)

    def send_chunk(self, room: int, pages: list[int]) -> None:
        self.rooms[room].send(np.array(pages, np.int32))

    def give_up(self, room: int) -> str:
        """End a failed room as a scheduler does, and return the reason it would report. Decode's pages are then held
        until :meth:`try_release`."""
        receiver = self.rooms[room]
        # Plain text: what the pipe carries is read in a process that has no reasons.
        reason = "".join(self.failure(room))
        if self.spec.mode == "decode" and receiver.init_time is not None:
            receiver.ensure_abort_notified(force_arm=True)
            if receiver.abort_notified:
                held = SimpleNamespace(kv_receiver=receiver)
                holding.hold(self._queue, held)
                self._held[room] = held, time.monotonic() + self._queue.deferred_kv_release_timeout
        return reason

    def try_release(self, room: int) -> str | None:
        """Release decode's pages of a failed room if they may be; returns what allowed it, None where they are held."""
        if room not in self._held:
            return "nothing was held"
        held, deadline = self._held[room]
        receiver, manager = held.kv_receiver, self.manager
        if not manager.is_abort_release_safe(room, len(receiver.bootstrap_infos)) and time.monotonic() < deadline:
            return None
        before = manager.quarantine.counts().released
        holding.release(self._queue, held, 0)
        after = manager.quarantine.counts().released
        manager.clear_deferred_abort_state(room)
        receiver.clear()
        del self._held[room]
        return next(str(result) for result, number in after.items() if number > before[result])

    # Faults.

    def inject(self, method: str, effect: nixl_calls.Effect, first: int = 1, times: int | None = None) -> None:
        self._injections.append(nixl_calls.inject(self.manager.agent, method, effect, first, times))

    def injected(self) -> int:
        """Calls that were changed so far."""
        return sum(one.hits for one in self._injections)

    def heal(self) -> list[int]:
        """Undo every injection, the last one first; returns how many calls each changed."""
        return [self._injections.pop().undo() for _ in range(len(self._injections))]

    def connections(self) -> set[sockets.Ends]:
        return set(sockets.connections())

    def sever(self, ends: list[sockets.Ends]) -> int:
        return sockets.sever(ends)

    # What a test looks at.

    def end_of(self, room: int) -> tuple[str, float, int] | None:
        """The line of the room's end, when that was (CLOCK_MONOTONIC), and how many ends this process saw of it."""
        found = self._ended.get(room)
        return None if found is None else (*found, self._ends[room])

    def lines(self, room: int) -> int:
        """Lines that were logged of this room."""
        return self._lines[room]

    def counts(self) -> Any:
        return self.manager.accounts.ledger.counts()

    def metrics(self) -> dict[str, float]:
        """Rooms started, ended and live, as ``/metrics`` would show them."""
        return totals(self._scraper.scrape())

    def audit(self) -> list[str]:
        """What is wrong between the ledger's counters, its terminal events and the log; for all rooms so far."""
        deadline = time.monotonic() + SETTLED_S
        # A room is counted first, and told then.
        while (found := self._disagreements()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return found

    def _disagreements(self) -> list[str]:
        with self._lock:
            counts, reasons, lines = self.counts(), Counter(self._reasons), Counter(self._logged)
        counts.check()
        counted: Counter[tuple[Outcome, Reason]] = Counter()
        for (outcome, _, reason), number in counts.ended.items():
            counted[outcome, reason] += number
        found = []
        if counted != reasons:
            found.append(f"counted {dict(counted)}, but ended {dict(reasons)}")
        failed = Counter({reason: number for (outcome, reason), number in reasons.items() if outcome is Outcome.FAILED})
        if lines != failed:
            found.append(f"logged {dict(lines)}, but failed {dict(failed)}")
        return found

    def prefills(self) -> int:
        """Prefill servers that this decode holds for alive."""
        return len(self.manager.prefill_info_table)

    def writes_outstanding(self, room: int) -> int:
        return int(self.manager._staging_outstanding.get(room, 0))

    def knows_agent(self, agent: str) -> bool:
        return bool(self.manager.agent.check_remote_metadata(agent))

    def resources(self) -> dict[str, int]:
        """How much of everything this role holds that has to be given back, by name."""
        manager = self.manager
        held = {
            "rooms": manager.request_status,
            "failure records": manager.failure_records,
            "writes outstanding": [room for room, count in manager._staging_outstanding.items() if count],
            "acknowledgements owed": manager._deferred_ack_targets,
            "poisoned rooms": manager._deferred_ack_poisoned_rooms,
            "control sockets": manager.outbox._sockets,
        }
        if self.spec.mode == "prefill":
            held |= {
                "metadata": manager.transfer_infos,
                "prefix lengths": manager.req_to_decode_prefix_len,
                "peers": manager.decode_kv_args_table,
                "prepared lists": {**manager.prep_handles, **manager.prep_handles_slice_dst},
            }
        else:
            held |= {
                "quarantined rooms": range(manager.quarantine.counts().rooms),
                "acknowledgements expected": manager._deferred_abort_ack_tracker,
                "answers expected": manager.required_prefill_response_num_table,
                "answers": manager.prefill_response_tracker,
                "rooms by prefill": [room for rooms in manager.addr_to_rooms_tracker.values() for room in rooms],
            }
        return {
            **{name: len(things) for name, things in held.items()},
            "live rooms": self.live(),
            "threads": threading.active_count(),
            "descriptors": len(os.listdir("/proc/self/fd")) - self._http_connections(),
        }

    def sockets_left(self) -> int:
        """Sockets that NIXL may have left open at both ends so far: one for the agent and one a worker, each time that
        prefill closed a connection to a decode that lives. ``remove_remote_agent`` closes none that is not broken."""
        return self.manager.transport.links.closed * self.sockets_of_one()

    def sockets_of_one(self) -> int:
        """Sockets that a connection to a decode may have."""
        return self.manager.transport.links._workers._count + 1

    def _http_connections(self) -> int:
        """Connections with a bootstrap server: a heartbeat's comes and goes by itself."""
        port = self.spec.bootstrap_port
        return sum(port in (own[1], other[1]) for own, other in sockets.connections())
