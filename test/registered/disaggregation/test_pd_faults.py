"""Faults on real servers: what the client is told, and that the next request succeeds.

One prefill and two decodes for all of it; each test leaves them as it found them. While all of this happens, every
scrape of every server must add up; afterwards every failed room must stand in log and counter once, with its reason.
"""

import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.counting import Scrapes, failure_lines, settled
from harness.faults import foreign_sockets, signals
from harness.fleet import TCP, Fleet, ask, foreign_message, generation, leave
from harness.workload import FLAGS

NEW_TOKENS = 12
SHORT = list(range(100))
# So long, and so many of them, that prefill is at them for a second or more.
LONG = 2000
MANY = 4
WRITE_TIMEOUT_S = 3
DEADLINE_S = 20
DRAIN_S = 8
# More tokens than a decode makes in a minute.
ENDLESS = 30_000
ENV = {
    **TCP,
    "SGLANG_PD_TRANSFER_TIMEOUT": str(WRITE_TIMEOUT_S),
    "SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT": str(DEADLINE_S),
    "SGLANG_PD_DECODE_WAITING_TIMEOUT": str(DEADLINE_S),
    "SGLANG_PD_DRAIN_TIMEOUT": str(DRAIN_S),
    # A write is given up before its peer is: the default of 5 s would end a write that began 2 s after decode hung.
    "SGLANG_PD_SILENCE_TIMEOUT": str(DEADLINE_S),
}
dice = random.Random(5)
OTHER_PAGES = ("--page-size", "16")


@pytest.fixture(scope="module")
def scraped(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    with (
        Fleet(folder, tiny_model, decodes=2, flags=(*FLAGS, "--enable-metrics"), env=ENV) as started,
        Scrapes(started.servers) as scrapes,
    ):
        yield started, scrapes


@pytest.fixture(scope="module")
def fleet(scraped):
    return scraped[0]


@pytest.fixture(scope="module")
def right(fleet):
    """The token ids of the short prompt."""
    return answered(fleet, SHORT, fleet.decode)


@pytest.fixture(autouse=True)
def the_next_request_succeeds(fleet, right):
    yield
    for decode in fleet.decode_servers:
        start = time.monotonic()
        assert answered(fleet, SHORT, decode) == right
        assert time.monotonic() - start < 10


def answered(fleet, ids, decode):
    answer = fleet.both(generation(ids, NEW_TOKENS), decode=decode)["decode"]
    assert answer.status == 200, answer.text
    assert len(answer.output_ids) == NEW_TOKENS
    return answer.output_ids


class Pending:
    """One request on both servers; ``answers`` are futures by role."""

    def __init__(self, fleet, pool, ids, decode, **more):
        self.ids = ids
        self.decode = decode
        self.body = generation(ids, NEW_TOKENS, **more) | fleet.room()
        self.answers = {
            role: pool.submit(ask, f"{server.url}/generate", self.body)
            for role, server in (("prefill", fleet.prefill), ("decode", decode))
        }

    def wait_for_prefill(self):
        """Until decode has asked prefill for its KV."""
        self.decode.wait_entered(self.body["bootstrap_room"], "waiting")

    @property
    def answer(self):
        """Decode's."""
        return self.answers["decode"].result()


def many(fleet, pool, decode):
    """Requests with long prompts that nobody has seen before: prefill has to compute each. Decode waits for them."""
    waiting = [Pending(fleet, pool, dice.choices(range(256), k=LONG), decode) for _ in range(MANY)]
    for one in waiting:
        one.wait_for_prefill()
    return waiting


def check_right(fleet, waiting):
    """All were served, and with the tokens that the same prompts get when nothing happens."""
    for one in waiting:
        assert one.answer.status == 200, one.answer
        assert one.answer.output_ids == answered(fleet, one.ids, fleet.decode)


@pytest.fixture
def pool():
    with ThreadPoolExecutor(64) as threads:
        yield threads


@pytest.fixture
def busy(fleet, pool, right):
    """Prefill is at long prompts of another decode; those must not notice what a test does."""
    others = many(fleet, pool, fleet.decode_servers[1])
    yield
    check_right(fleet, others)


@pytest.mark.parametrize(
    "frames",
    [(b"GET / HTTP/1.1",), (b"",), (b"KV", b"\xff" * 40), (b"NixlMsgGuard", b"not a number"), (b"NixlMsgGuard",)],
    ids=["words", "nothing", "binary", "half-right", "cut-off"],
)
def test_foreign_traffic_at_prefills_control_port(fleet, frames):
    foreign_message(fleet.prefill.rank_address(), *frames)
    time.sleep(0.2)
    assert fleet.prefill.ready()[0] == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", generation(SHORT, NEW_TOKENS)),
        ("/generate", generation(SHORT, NEW_TOKENS, stream=True)),
        ("/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": NEW_TOKENS}),
        ("/v1/chat/completions", {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True}),
    ],
    ids=["generate", "generate-stream", "completions", "chat-stream"],
)
def test_prefill_aborts_before_the_metadata_came(fleet, pool, path, body):
    """Decode asks for the room afterwards, and is told at once."""
    body = {**body, **fleet.room()}
    rid = f"aborted-{path}-{body.get('stream')}"
    prefill = pool.submit(ask, fleet.prefill.url + path, {**body, "rid": rid})
    time.sleep(0.5)
    assert not prefill.done()
    ask(f"{fleet.prefill.url}/abort_request", {"rid": rid})
    prefill.result(5)
    decode = ask(fleet.decode.url + path, body)
    assert (decode.status, decode.seconds < 1) == (503, True), decode
    assert "prefill_abort: Prefill aborted the request." in decode.text


def test_prefill_aborts_while_the_request_waits_there(fleet, pool, busy):
    victim = Pending(fleet, pool, SHORT, fleet.decode, rid="victim-of-prefill")
    victim.wait_for_prefill()
    assert not victim.answers["decode"].done(), "nothing to abort: prefill was not busy"
    aborted_at = time.monotonic()
    ask(f"{fleet.prefill.url}/abort_request", {"rid": "victim-of-prefill"})
    answer = victim.answers["decode"].result(10)
    assert answer.status == 503, answer
    assert "prefill_abort" in answer.text
    assert answer.at - aborted_at < 1


def test_decode_aborts_while_the_request_waits_at_prefill(fleet, pool, busy):
    victim = Pending(fleet, pool, SHORT, fleet.decode, rid="victim-of-decode")
    victim.wait_for_prefill()
    assert not victim.answers["decode"].done(), "nothing to abort: prefill was not busy"
    aborted_at = time.monotonic()
    ask(f"{fleet.decode.url}/abort_request", {"rid": "victim-of-decode"})
    answer = victim.answers["prefill"].result(10)
    assert answer.status == 503, answer
    assert "decode_abort" in answer.text
    assert answer.at - aborted_at < 1


@pytest.mark.parametrize("stream", [False, True])
def test_the_client_goes_away_while_the_request_waits_at_prefill(fleet, pool, busy, stream):
    before = {server.name: len(server.failed_rooms()) for server in fleet.servers}
    body = generation(SHORT, NEW_TOKENS, stream=stream) | fleet.room()
    waits = pool.submit(fleet.decode.wait_entered, body["bootstrap_room"], "waiting")
    gone = [
        pool.submit(leave, f"{server.url}/generate", body, lambda received: waits.done())
        for server in (fleet.prefill, fleet.decode)
    ]
    waits.result()
    assert [one.result() for one in gone] == [b"", b""], "answered before the client left"
    for server in (fleet.prefill, fleet.decode):
        assert len(server.failed_rooms()) == before[server.name], "a client that leaves is no failure"


def test_the_client_goes_away_in_mid_stream(fleet, pool):
    body = generation(SHORT, 2000, stream=True) | fleet.room()
    prefill = pool.submit(ask, f"{fleet.prefill.url}/generate", body)
    received = leave(f"{fleet.decode.url}/generate", body, lambda so_far: so_far.count(b"data: ") > 3)
    assert b" 200 " in received.split(b"\r\n")[0]
    assert prefill.result().status == 200


def test_a_client_asks_for_what_cannot_be(fleet):
    """Longer than the context: refused by either server before there is a room."""
    answers = fleet.both(generation(list(range(200)) * 400, NEW_TOKENS))
    assert {role: answer.status for role, answer in answers.items()} == {"prefill": 400, "decode": 400}


def test_a_decode_that_stands_still_for_a_moment(fleet, pool, right):
    waiting = many(fleet, pool, fleet.decode)
    with fleet.decode.stopped():
        assert not all(one.answers["prefill"].done() for one in waiting), "every transfer was over before"
        time.sleep(WRITE_TIMEOUT_S / 2)
    check_right(fleet, waiting)


def test_a_decode_that_hangs_costs_its_own_requests_only(fleet, pool, right):
    hung, other = fleet.decode_servers
    waiting = many(fleet, pool, hung)
    with hung.stopped():
        stopped_at = time.monotonic()
        meanwhile = [answered(fleet, SHORT, other) for _ in range(10)]
        took = time.monotonic() - stopped_at
        prefills = [one.answers["prefill"].result() for one in waiting]
    assert meanwhile == [right] * 10
    assert took < 10
    failed = [one for one, prefill in zip(waiting, prefills, strict=True) if prefill.status != 200]
    assert failed, "every transfer was over before decode hung"
    for one in failed:
        for answer in (one.answers["prefill"].result(), one.answer):
            assert (answer.status, "transfer_timeout: " in answer.text) == (503, True), answer
        assert one.answers["prefill"].result().at - stopped_at < DEADLINE_S
    check_right(fleet, [one for one in waiting if one not in failed])


def test_a_server_whose_scheduler_stands_still_is_not_ready(fleet):
    [scheduler] = fleet.decode.schedulers
    with signals.stopped(scheduler.pid):
        start = time.monotonic()
        status, body = fleet.decode.ready()
        assert time.monotonic() - start < 2
    assert (status, body["reasons"]) == (503, ["rank tp0: no answer within 1.5 s"])
    assert fleet.decode.ready()[0] == 200


def test_severed_connections_heal_without_anybody_noticing(fleet, pool, right):
    prefill, decode = fleet.prefill.schedulers[0], fleet.decode.schedulers[0]
    fds = foreign_sockets.data_connections(prefill, decode, [fleet.prefill.rank_address()[1]])
    assert fds, "NIXL has no connection"
    waiting = many(fleet, pool, fleet.decode)
    try:
        assert foreign_sockets.sever(prefill, fds) > 0
    except PermissionError:
        pytest.skip("needs the right to trace a child process (CAP_SYS_PTRACE in a container)")
    finally:
        check_right(fleet, waiting)


def test_a_decode_dies_and_comes_back_in_another_shape_and_then_as_it_was(fleet, pool, right):
    dying, other = fleet.decode_servers[1], fleet.decode
    with fleet.gateway() as gateway:
        waiting = many(fleet, pool, dying)
        behind = [pool.submit(ask, f"{gateway}/generate", generation(SHORT, NEW_TOKENS)) for _ in range(8)]
        killed_at = time.monotonic()
        signals.kill(dying.schedulers[0].pid)
        while (status := dying.ready()[0]) == 200:
            assert time.monotonic() - killed_at < 2
        assert status in (503, None)
        for one in behind:
            assert one.result().status == 200, one.result()
            assert one.result().output_ids == right
        assert answered(fleet, SHORT, other) == right
    for one in waiting:
        prefill, decode = one.answers["prefill"].result(), one.answer
        assert prefill.status in (200, 503), prefill
        assert decode.status in (200, None), "whoever dies tells nobody"
        if prefill.status == 503:
            assert "peer_" in prefill.text, prefill
            assert prefill.at - killed_at < WRITE_TIMEOUT_S, "before any deadline could have said so"

    as_it_was = dying.flags
    fleet.replace(dying, (*as_it_was, *OTHER_PAGES))
    answers = fleet.both(generation(SHORT, NEW_TOKENS), decode=dying)
    assert answers["decode"].status == 500, answers
    assert "peer_incompatible: " in answers["decode"].text
    assert answered(fleet, SHORT, other) == right
    fleet.replace(dying, as_it_was)


def test_a_decode_that_is_told_to_end_hands_back_what_it_cannot_finish(fleet, pool, right):
    leaving = fleet.decode_servers[1]
    # Three seconds' worth, and far more than the time that is left.
    short = pool.submit(fleet.both, generation(SHORT, 100), decode=leaving)
    endless = generation(SHORT, ENDLESS) | fleet.room()
    long = {
        role: pool.submit(ask, f"{server.url}/generate", endless)
        for role, server in (("prefill", fleet.prefill), ("decode", leaving))
    }
    stream = pool.submit(ask, f"{leaving.url}/generate", generation(SHORT, ENDLESS, stream=True) | fleet.room())
    assert long["prefill"].result().status == 200
    told_at = time.monotonic()
    leaving.processes[0].terminate()
    while leaving.ready()[0] == 200:
        assert time.monotonic() - told_at < 1
    assert answered(fleet, SHORT, leaving) == right, "it serves on, so that the gateway has time to see"
    assert short.result()["decode"].status == 200
    answer = long["decode"].result()
    assert (answer.status, "server_leaving: " in answer.text) == (503, True), answer
    assert DRAIN_S - 1 < answer.at - told_at < DRAIN_S + 2
    assert "server_leaving: " in stream.result().text
    while leaving.processes:
        assert time.monotonic() - told_at < DRAIN_S + 8
        time.sleep(0.1)
    fleet.replace(leaving)


def test_every_failure_above_is_in_log_and_counter_once(scraped):
    """The last one: nothing lives on, and nothing that lived was lost. A replaced decode counts from its start."""
    fleet, scrapes = scraped
    for server in (fleet.prefill, fleet.decode):
        found = settled(server)
        assert found.balanced
        lines = failure_lines(server)
        print(f"{server.name}: {dict(found.ended)}; {scrapes.counts[server.name]} scrapes")
        assert Counter(str(line.reason) for line in lines) == found.failed
        rooms = Counter((line.room, line.generation) for line in lines)
        assert set(rooms.values()) <= {1}, rooms
        assert scrapes.counts[server.name] > 50
    assert not scrapes.unbalanced
    assert scrapes.most_live > 1
