"""What decode has to know of a prefill before it can register there, asked off the scheduler's loop.

Upstream asks the bootstrap server over HTTP on that loop, for up to 5 s a time: one prefill that hangs then stops every
request of this decode. Here each question has a thread of its own, and its rooms stay where they are meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import requests

from sglang.srt.disaggregation.reliable import configuration, heartbeats, stamps, wire
from sglang.srt.disaggregation.reliable.bootstrap_server import CONFIGURATION, HEADER
from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.outbox import Outbox, endpoint
from sglang.srt.disaggregation.reliable.questions import Questions
from sglang.srt.disaggregation.reliable.reasons import Reason

logger = logging.getLogger(__name__)

HTTP_TIMEOUT_S = 5.0
# In what is known of a rank: the incarnation of the bootstrap server that told it.
SERVER = "server"


class Rank(NamedTuple):
    """A prefill rank, by the coordinates under which its bootstrap server knows it."""

    dp: int
    cp: int
    tp: int
    pp: int


class BootstrapError(Exception):
    """A bootstrap server did not tell where a rank is; ``failure`` is what its rooms end with."""

    def __init__(self, found: Failure):
        super().__init__(found)
        self.failure = found


class Bootstrapping:
    """The part of decode's KV manager that asks bootstrap servers; to stand before upstream's among the bases."""

    prefill_info_table: dict[str, Any]
    connection_pool: dict[str, Any]
    connection_lock: Any
    watch: Any
    is_mla_backend: bool
    build_receiver_registration_message: Callable[[], list[bytes]]
    local_ip: str
    rank_port: int
    outbox: Outbox

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._questions = Questions()
        # The incarnation of each bootstrap server whose layout is known, None where it tells none.
        self._servers: dict[str, str | None] = {}
        super().__init__(*args, **kwargs)

    def ask_layout(self, address: str) -> Future[bool]:
        """Whether the layout of the prefill at ``address`` is known; it raises where the two cannot work together."""
        return self._questions.ask(address, lambda: self._learn_layout(address))

    def _learn_layout(self, address: str) -> bool:
        try:
            # First: a layout may be that of a later server, which is found out then; never that of an earlier one.
            of = heartbeats.ask(address)
        except ConnectionError as error:
            logger.info("prefill %s is not there yet: %s", address, error)
            return False
        self.met(address, of)
        self._servers[address] = of
        if of is not None:
            self._compare(address)
        known: bool = super().try_ensure_parallel_info(address)  # type: ignore[misc]
        return known

    def _compare(self, address: str) -> None:
        """Raises ``RuntimeError``, as upstream does, with every field that differs; upstream names the first."""
        try:
            theirs = locate(address, Rank(0, 0, 0, 0)).get(CONFIGURATION)
        except BootstrapError as error:
            # Upstream asks next, and says what is wrong.
            logger.debug("the configuration of prefill %s is not known: %s", address, error)
            return
        if theirs is None:
            return
        found = configuration.differences(theirs, configuration.of(self), not self.is_mla_backend)
        if found:
            raise RuntimeError(f"prefill {address} and this decode are configured differently: {'; '.join(found)}")

    def met(self, address: str, server: str | None) -> None:
        """The bootstrap server at ``address`` answered. Where it is another than the one that was known there, all that
        belongs to that one is over."""
        known = self._servers.get(address)
        if server is None or known is None or server == known:
            return
        self._servers[address] = server
        logger.warning("prefill %s was replaced: it was %s, and is %s now", address, known, server)
        with self.connection_lock:
            for key, ranks in list(self.connection_pool.items()):
                if key.startswith(f"{address}_") and _is_of_another(server, ranks):
                    del self.connection_pool[key]
        self.prefill_info_table.pop(address, None)
        self.forget_layout(address)
        gone = failure(Reason.PEER_REPLACED, f"another process serves at {address}")
        for receiver in list(self.watch.ends.values()):
            if receiver.bootstrap_addr == address and _is_of_another(
                server, getattr(receiver, "bootstrap_infos", None)
            ):
                receiver.give_up(gone)

    def forget_layout(self, address: str) -> None:
        self._questions.take(address)

    def try_ensure_parallel_info(self, bootstrap_addr: str) -> bool:
        """Upstream's scheduler calls this where :func:`keep_off_the_loop` found the answer; whoever else does waits for
        the bootstrap server."""
        if bootstrap_addr in self.prefill_info_table:
            # An answer that nobody took would be one about this prefill's successor, one day.
            self.forget_layout(bootstrap_addr)
            return True
        answer = self._questions.take(bootstrap_addr) or self.ask_layout(bootstrap_addr)
        try:
            return answer.result() and bootstrap_addr in self.prefill_info_table
        finally:
            self._questions.forget(bootstrap_addr, answer)

    def ask_ranks(self, address: str, dp_rank: int) -> Future[Mapping[Rank, dict]] | None:
        """Where the ranks of the prefill at ``address`` are that this decode has no connection to; it raises
        :class:`BootstrapError`. None where all are known, or the prefill's layout is not."""
        layout = self.prefill_info_table.get(address)
        ranks = [] if layout is None else self._unknown_ranks(address, layout, dp_rank)
        if not ranks:
            return None
        key = (address, *ranks)
        answer = self._questions.ask(key, lambda: {rank: self._locate(address, rank) for rank in ranks})
        answer.add_done_callback(lambda found: self._questions.forget(key, found))
        return answer

    def turn_away(self, address: str, rooms: list[int]) -> None:
        """Tell the prefill at ``address``, which cannot work with this decode, that these rooms end; in the background.

        Nothing is known of its ranks, and so its first is told: where one rank fails a room, all do.
        """
        answer = self._questions.ask((address, "first rank"), lambda: locate(address, Rank(0, 0, 0, 0)))
        answer.add_done_callback(lambda found: self._turned_away(address, rooms, found))

    def _turned_away(self, address: str, rooms: list[int], found: Future[dict[str, Any]]) -> None:
        self._questions.forget((address, "first rank"), found)
        if (error := found.exception()) is not None:
            logger.warning("prefill %s is not told that %d rooms end: %s", address, len(rooms), error)
            return
        address, ipv6 = endpoint(found.result()["rank_ip"], int(found.result()["rank_port"]))
        sender = wire.Address(self.local_ip, self.rank_port)
        # It refuses this, and names in its own log what differs.
        registration = [*self.build_receiver_registration_message(), configuration.frame(configuration.of(self))]
        self.outbox.send(address, [*registration, stamps.stamp(to=None)], ipv6)
        for room in rooms:
            abort = wire.Abort(room, sender, 0, Reason.PEER_INCOMPATIBLE)
            self.outbox.send(address, abort.frames(), ipv6)

    def _locate(self, address: str, rank: Rank) -> dict[str, Any]:
        found = locate(address, rank)
        self.met(address, found.get(SERVER))
        return found

    def _unknown_ranks(self, address: str, layout: Any, dp_rank: int) -> list[Rank]:
        """In upstream's order, and by its key of a connection."""
        return [
            Rank(dp_rank, cp, tp, pp)
            for cp in layout.target_cp_ranks
            if f"{address}_{dp_rank}_{cp}_{layout.target_tp_rank}" not in self.connection_pool
            for tp in layout.target_tp_ranks
            for pp in reversed(layout.target_pp_ranks)
        ]


def _is_of_another(server: str, ranks: list[dict[str, Any]] | None) -> bool:
    """Whether some of the ranks were told by another bootstrap server than this."""
    return any(rank.get(SERVER) not in (None, server) for rank in ranks or ())


def locate(address: str, rank: Rank) -> dict[str, Any]:
    """Ask the bootstrap server where a rank is; raises :class:`BootstrapError`."""
    query = {
        "prefill_dp_rank": rank.dp,
        "prefill_cp_rank": rank.cp,
        "target_tp_rank": rank.tp,
        "target_pp_rank": rank.pp,
    }
    try:
        response = requests.get(f"http://{address}/route", params=query, timeout=HTTP_TIMEOUT_S)
        if response.status_code == requests.codes.ok:
            return {**response.json(), "pp_rank": rank.pp, SERVER: response.headers.get(HEADER)}
    except (requests.RequestException, ValueError) as error:
        detail = f"{address} was asked for {rank}: {type(error).__name__}: {error}"
        raise BootstrapError(failure(Reason.BOOTSTRAP_UNREACHABLE, detail)) from error
    detail = f"{address} was asked for {rank}, and answered {response.status_code}: {response.text[:200]}"
    raise BootstrapError(failure(Reason.BOOTSTRAP_REJECTED, detail))


def keep_off_the_loop(original: Callable[..., Any], queue: Any, addr_to_reqs: dict[str, list[Any]]) -> Any:
    """AROUND hook on ``DecodePreallocQueue._ensure_prefill_info``: upstream sees a prefill once its answer is there.

    Returns what upstream's does: the requests whose prefill's layout is known by its address, and those that wait on.
    """
    manager = queue.kv_manager
    if not isinstance(manager, Bootstrapping):
        return original(queue, addr_to_reqs)
    answered, waiting = {}, []
    for address, reqs in addr_to_reqs.items():
        if address in manager.prefill_info_table:
            manager.forget_layout(address)
            answered[address] = reqs
            continue
        answer = manager.ask_layout(address)
        if not answer.done():
            waiting += reqs
        elif (error := answer.exception()) is not None:
            # Upstream would raise it on the scheduler's loop, which ends the server.
            logger.error("prefill %s cannot work with this decode: %s", address, error)
            manager.forget_layout(address)
            _give_up(reqs, failure(Reason.PEER_INCOMPATIBLE, str(error)))
            manager.turn_away(address, [decode_req.req.bootstrap_room for decode_req in reqs])
        else:
            answered[address] = reqs
    ready, unanswered = _upstream(original, queue, answered)
    for address in list(ready):
        ready[address], asking = _with_dp_rank(queue, address, ready[address])
        waiting += asking
        if not ready[address]:
            # Upstream drops the question where nobody needs its answer.
            del ready[address]
    return ready, waiting + unanswered


def _upstream(original: Callable[..., Any], queue: Any, answered: dict[str, list[Any]]) -> Any:
    """Upstream gives up on a prefill after some attempts: the rooms it aborts then are not the client's doing."""
    receivers = [decode_req.kv_receiver for reqs in answered.values() for decode_req in reqs if decode_req.kv_receiver]
    for receiver in receivers:
        receiver.abort_reason = failure(Reason.BOOTSTRAP_UNREACHABLE, f"{receiver.bootstrap_addr} does not answer")
    found = original(queue, answered)
    for receiver in receivers:
        receiver.abort_reason = None
    return found


def _give_up(reqs: list[Any], reason: Failure) -> None:
    for decode_req in reqs:
        if decode_req.kv_receiver is not None:
            decode_req.kv_receiver.abort_reason = reason
            decode_req.kv_receiver.abort()


def _with_dp_rank(queue: Any, address: str, reqs: list[Any]) -> tuple[list[Any], list[Any]]:
    """Of requests whose layout is known: those whose dp rank upstream finds out without waiting, and the others.

    Upstream asks for the ranks ahead, on a thread, but waits for the answer here, and asks again here where it is not
    the one it needs.
    """
    unresolved = [decode_req for decode_req in reqs if queue._resolve_prefill_dp_rank(decode_req.req) is None]
    if not unresolved:
        return reqs, []
    for decode_req in reqs:
        if (dp_rank := queue._resolve_prefill_dp_rank(decode_req.req)) is not None:
            queue._init_receiver(decode_req, dp_rank)
    rooms = tuple(decode_req.req.bootstrap_room for decode_req in unresolved)
    asked, answer = queue._prefill_dp_rank_queries.get(address, ((), None))
    if answer is not None and rooms[: len(asked)] != asked:
        queue._prefill_dp_rank_queries.pop(address)[1].cancel()
        answer = None
    if answer is None:
        queue.prefetch_prefill_dp_rank_queries()
    if answer is None or not answer.done():
        return [], unresolved
    return unresolved[: len(asked)], unresolved[len(asked) :]
