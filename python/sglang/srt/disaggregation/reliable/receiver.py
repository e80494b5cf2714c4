"""Decode's end of a room."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

import zmq
from sglang.srt.disaggregation.base.conn import KVPoll
from sglang.srt.disaggregation.nixl.conn import NixlKVReceiver

from sglang.srt.disaggregation.reliable import configuration, stamps, verification, wire
from sglang.srt.disaggregation.reliable.answers import wanted_end
from sglang.srt.disaggregation.reliable.bootstrap_server import INCARNATION
from sglang.srt.disaggregation.reliable.bootstrapping import BootstrapError, Rank
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.outbox import PeerUnreachableError, endpoint
from sglang.srt.disaggregation.reliable.phases import DecodePhase
from sglang.srt.disaggregation.reliable.quarantine import Held
from sglang.srt.disaggregation.reliable.reasons import Reason
from sglang.srt.disaggregation.reliable.reminders import Reminders
from sglang.srt.disaggregation.reliable.room import RoomRecord

logger = logging.getLogger(__name__)

# How often a room registers again with a prefill that does not know this decode, before it fails.
REGISTRATIONS = 3

_SERIALS = itertools.count(1)


class ReliableKVReceiver(NixlKVReceiver):
    """Keeps the manager's accounts of its room, sends without waiting, and tells prefill why it gives a room up."""

    conclude_state: int | None
    # Set by :mod:`~.naming` right after the scheduler made the receiver.
    req: Any = None
    # Why the next ``abort`` comes, where it is not for the request's sake.
    abort_reason: Failure | None = None
    # Its place in the quarantine, while its pages are held back; and how many there are.
    held: Held | None = None
    pages: int = 0

    # Where its prefill's ranks are, while that is asked; and the rank that was then asked for.
    _asked: Future[Mapping[Rank, dict]] | None = None
    _dp_rank: int = 0
    _located: Mapping[Rank, dict] = MappingProxyType({})

    def __init__(self, mgr: Any, bootstrap_addr: str, bootstrap_room: int | None = None) -> None:
        self._cleared = self._reporting = False
        # Which of this process's rooms it is, whatever its number.
        self.serial = next(_SERIALS)
        self.reminders = Reminders()
        self._published: list[tuple[dict[str, Any], list[bytes]]] = []
        self._aborts: list[tuple[dict[str, Any], list[bytes]]] = []
        self._registered_again = 0
        # The scheduler, the deadline thread and the control thread all may end the room.
        self._lifecycle_lock = threading.RLock()
        super().__init__(mgr, bootstrap_addr, bootstrap_room)
        if bootstrap_room is not None:
            mgr.watch.ends[bootstrap_room] = self
            mgr.accounts.ledger.identify(bootstrap_room, peer=bootstrap_addr)

    def init(self, prefill_dp_rank: int) -> None:
        """The room registers with its prefill: now, or in a later :meth:`poll` where its ranks have to be asked for."""
        self.kv_mgr.accounts.ledger.enter(self.bootstrap_room, DecodePhase.BOOTSTRAPPING)
        self._dp_rank = prefill_dp_rank
        self._asked = self.kv_mgr.ask_ranks(self.bootstrap_addr, prefill_dp_rank)
        if self._asked is None or self.kv_mgr.defer_decode_allocation:
            # Deferred allocation, which upstream has for a prefill of one rank, needs the registration done on return.
            self._finish_init()

    def _finish_init(self) -> None:
        asked, self._asked = self._asked, None
        if KVPoll.Failed in (self.conclude_state, self.kv_mgr.request_status.get(self.bootstrap_room)):
            return
        try:
            self._located = {} if asked is None else asked.result()
        except BootstrapError as error:
            self.kv_mgr.record_failure(self.bootstrap_room, error.failure)
            self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
            self.conclude_state = KVPoll.Failed
            return
        super().init(self._dp_rank)
        self._located = {}
        if ranks := getattr(self, "bootstrap_infos", None):
            # Where there are several, the first stands for its server: they begin and end together.
            ledger = self.kv_mgr.accounts.ledger
            ledger.identify(self.bootstrap_room, incarnation=ranks[0].get(INCARNATION))

    def _get_bootstrap_info_from_server(self, *rank: int) -> dict[str, Any] | None:
        """Upstream asks for a rank that it has no connection to. One that is not known here had a connection when
        :meth:`init` asked, and has lost it since: its prefill is being given up."""
        located = self._located.get(Rank(*rank))
        return None if located is None else dict(located)

    def _poll(self) -> Any:
        if self._asked is not None and self._asked.done():
            self._finish_init()
        if self.kv_mgr.request_status.get(self.bootstrap_room) == KVPoll.Failed:
            # Also after a success, which is not the end: its auxiliary write may have been missing for too long.
            self.conclude_state = KVPoll.Failed
        return super()._poll()

    def send_metadata(self, kv_indices: Any, *args: Any, **kwargs: Any) -> None:
        """Upstream's scheduler does so once :meth:`poll` said that it may; one that does not look waits here."""
        if self._asked is not None:
            self._finish_init()
        with self._lifecycle_lock:
            if self.kv_mgr.request_status.get(self.bootstrap_room) == KVPoll.Failed:
                # It ended since the scheduler looked: prefill was told, and must not hear of it as of a new room.
                return
            self.pages = len(kv_indices)
            super().send_metadata(kv_indices, *args, **kwargs)
            self.reminders.sent(time.monotonic())
            ledger = self.kv_mgr.accounts.ledger
            if ledger.enter(self.bootstrap_room, DecodePhase.WAITING):
                self.kv_mgr.accounts.sized(self.bootstrap_room, len(kv_indices), self.kv_mgr.page_bytes)

    def _send_bootstrap_message(self, *, bootstrap_info: dict, message: list[bytes], operation: str) -> bool:
        if operation == "send_metadata":
            self._published.append((bootstrap_info, message))
        return super()._send_bootstrap_message(bootstrap_info=bootstrap_info, message=message, operation=operation)

    def register_again(self, incarnation: str | None = None) -> None:
        """A prefill rank does not know this decode: send everything again, in order. What is known there is ignored.
        ``incarnation`` is who it is, where it says so."""
        room = self.bootstrap_room
        self._registered_again += 1
        if self._registered_again > REGISTRATIONS:
            text = f"prefill does not know this decode after {REGISTRATIONS} registrations"
            self.give_up(failure(Reason.REGISTRATION_FAILED, text))
            return
        logger.warning("room %d: its prefill does not know this decode: registering again", room)
        registration = self.kv_mgr.build_receiver_registration_message()
        for bootstrap_info, metadata in list(self._published):
            if is_ours(bootstrap_info):
                bootstrap_info[INCARNATION] = incarnation if len(self._published) == 1 else None
            for message in (registration, metadata):
                self._send(bootstrap_info, message)

    def remind(self, now: float) -> None:
        """Send again what its prefill may have missed, where it is time for that."""
        with self._lifecycle_lock:
            if self.held is not None:
                messages = [] if self.kv_mgr.has_acknowledged(self) else self._aborts
            else:
                messages = self._published if self.is_waiting() else []
            if messages and self.reminders.take(now):
                for bootstrap_info, message in messages:
                    if is_ours(bootstrap_info):
                        self._send(bootstrap_info, message)

    def _send(self, bootstrap_info: dict[str, Any], message: list[bytes]) -> None:
        try:
            _Mailbox(self, bootstrap_info).send_multipart(message)
        except zmq.ZMQError:
            # Logged, and no worse than a message that is lost: the room ends by its deadline.
            return

    def abort(self) -> None:
        """Upstream's scheduler calls this for whatever ends a request early, not only for a client's wish."""
        if not self._owns_bootstrap_room or self.conclude_state == KVPoll.Failed:
            super().abort()
            return
        reason = self.abort_reason or failure(wanted_end(self.req), "decode aborted the request")
        self.kv_mgr.accounts.failed(self.bootstrap_room, reason)
        super().abort()
        self.kv_mgr.record_failure(self.bootstrap_room, reason)

    def is_waiting(self) -> bool:
        """Whether it still needs its prefill."""
        status = self.kv_mgr.request_status.get(self.bootstrap_room)
        return not self._cleared and status not in (None, KVPoll.Success, KVPoll.Failed)

    def expire(self, overdue: RoomRecord, reason: Failure) -> None:
        """The deadline of a phase is over: the room fails, unless it has gone on or ended since. At once with what the
        scheduler does: prefill hears of an abort before the metadata, or after it and with a question."""
        ledger = self.kv_mgr.accounts.ledger
        with self._lifecycle_lock:
            if ledger.expire(overdue.room, overdue.generation, overdue.phase, reason.reason) is not None:
                self.give_up(reason)

    def give_up(self, reason: Failure) -> None:
        """The room fails, and prefill is told; for other threads than the scheduler's, which may be done with it."""
        with self._lifecycle_lock:
            if not self._cleared:
                self.kv_mgr.record_failure(self.bootstrap_room, reason)
                self.kv_mgr.update_status(self.bootstrap_room, KVPoll.Failed)
                self.ensure_abort_notified()

    def ensure_abort_notified(self, *, force_arm: bool = False) -> None:
        with self._lifecycle_lock:
            if self._cleared and not self._reporting:
                # Its pages are the request's, or given back: nobody would take the acknowledgements.
                return
            asked = self._asked
            if asked is None:
                if not self.abort_notified:
                    self.reminders.sent(time.monotonic())
                super().ensure_abort_notified(force_arm=force_arm)
                return
        # Prefill may have the request, and wait for this room's metadata: it is told as soon as its place is known.
        asked.add_done_callback(self._notify_late)

    def _notify_late(self, asked: Future[Mapping[Rank, dict]]) -> None:
        if asked.exception() is None:
            with self._lifecycle_lock:
                self.bootstrap_infos = list(asked.result().values())
                super().ensure_abort_notified()

    def failure_exception(self) -> None:
        self._reporting = True
        super().failure_exception()

    def _clear(self) -> None:
        """The scheduler is done with the room, whatever came of it. It says so twice where it held back the pages, and
        the number may be another room's by then."""
        if self._cleared:
            return
        self._cleared = True
        accounts, room = self.kv_mgr.accounts, self.bootstrap_room
        if self.kv_mgr.request_status.get(room) == KVPoll.Success and not self._reporting:
            self._handed_over()
        else:
            # With no text here, another rank failed: this one may have succeeded.
            accounts.failed(room, self.kv_mgr.failure_records.get(room))
        super()._clear()
        if not self._reporting:
            self.kv_mgr.forget_failure(room)

    def _handed_over(self) -> None:
        """Everything arrived, and the scheduler took it over or refused it: then it has aborted the request by now."""
        accounts, finish = self.kv_mgr.accounts, getattr(self.req, "finished_reason", None)
        if finish is None and verification.is_due(self.req):
            accounts.ledger.enter(self.bootstrap_room, DecodePhase.VERIFYING)
            verification.wait_for(self.req)
        elif finish is None:
            accounts.accepted(self.bootstrap_room)
        else:
            # Without a status it was the client.
            by_client = getattr(finish, "status_code", None) is None
            accounts.refused(self.bootstrap_room, Reason.CLIENT_ABORT if by_client else Reason.AUX_MISMATCH)

    def _connect_to_bootstrap_server(self, bootstrap_info: dict[str, Any]) -> Any:
        """Upstream's way to reach a prefill rank; its own socket may wait a second, on the scheduler's loop."""
        return _Mailbox(self, bootstrap_info), contextlib.nullcontext()


class _Mailbox:
    """Upstream takes it for the socket to a prefill rank."""

    def __init__(self, receiver: ReliableKVReceiver, bootstrap_info: dict[str, Any]) -> None:
        self._receiver = receiver
        self._info = bootstrap_info
        self._address, self._ipv6 = endpoint(bootstrap_info["rank_ip"], int(bootstrap_info["rank_port"]))

    def send_multipart(self, frames: list[bytes]) -> None:
        """Hand the message over at once; raises ``ZMQError``, as a socket does, where no more is taken."""
        manager, room = self._receiver.kv_mgr, self._receiver.bootstrap_room
        if frames[0] == wire.ABORT and len(frames) <= wire.ABORT_WITH_GENERATION:
            reason = manager.accounts.reason(room, manager.failure_records.get(room)).encode("ascii")
            if len(frames) == wire.ABORT_WITH_GENERATION:
                frames = [*frames, reason]
                self._receiver._aborts.append((self._info, frames))
            elif is_ours(self._info):
                # A stock prefill would take the empty frame for a generation.
                frames = [*frames, b"", reason]
        try:
            manager.outbox.send(self._address, self._stamped(frames), self._ipv6)
        except PeerUnreachableError as error:
            logger.warning("room %d: prefill %s was not told: %s", room, self._address, error)
            raise zmq.ZMQError(zmq.EAGAIN, str(error)) from error

    def _stamped(self, frames: list[bytes]) -> list[bytes]:
        if frames[0] != wire.GUARD and not is_ours(self._info):
            # A stock prefill would take one more frame of an abort for something else.
            return frames
        receiver = self._receiver
        if frames[:2] == [wire.GUARD, b"None"]:
            frames = [*frames, configuration.frame(configuration.of(receiver.kv_mgr))]
        return [*frames, stamps.stamp(self._info.get(INCARNATION), receiver.serial, receiver.reminders.attempt)]


def is_ours(bootstrap_info: dict[str, Any]) -> bool:
    """Whether a prefill rank runs these classes: its bootstrap server then says which life of it this is."""
    return INCARNATION in bootstrap_info
