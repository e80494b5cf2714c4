"""Every room is counted once, with the reason it ended for, and every failed one has one line: TP 1 and TP 2.

Requests that succeed, that nobody answers on the other side, and whose clients leave, all at once and under scrapes.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.counting import UPSTREAMS, Scrapes, failure_lines, settled
from harness.fleet import TCP, Fleet, ask, generation, leave
from harness.servers import free_port
from harness.workload import FLAGS

PROMPT = list(range(60))
NEW_TOKENS = 8
EACH = 4
SUCCESSES = 5 * EACH
DEADLINE_S = 5
ENV = {
    **TCP,
    "SGLANG_PD_PREFILL_BOOTSTRAPPING_TIMEOUT": str(DEADLINE_S),
    "SGLANG_PD_DECODE_RESOLVING_TIMEOUT": str(DEADLINE_S),
    "SGLANG_PD_DECODE_WAITING_TIMEOUT": str(DEADLINE_S),
}
BOOTSTRAP_FAILED, TRANSFER_FAILED = UPSTREAMS


@pytest.fixture(params=[1, 2], ids=["tp1", "tp2"])
def fleet(request, tiny_model, tmp_path):
    flags = (*FLAGS, "--enable-metrics", *(("--tp-size", "2") if request.param == 2 else ()))
    with Fleet(tmp_path, tiny_model, flags=flags, env=ENV) as started:
        assert {len(server.schedulers) for server in started.servers} == {request.param}
        yield started


def test_every_room_is_counted_once(fleet):
    prefill, decode = (f"{server.url}/generate" for server in fleet.servers)
    body = generation(PROMPT, NEW_TOKENS)
    # Bodies of each kind; a rid or a room says later which line belongs to which request.
    delivered = [body | fleet.room() for _ in range(SUCCESSES)]
    left_in_mid_stream = [generation(PROMPT, 2000, stream=True) | fleet.room() for _ in range(EACH)]
    unasked = [body | {"rid": f"unasked-{n}"} | fleet.room() for n in range(EACH)]
    unsent = [body | {"rid": f"unsent-{n}"} | fleet.room() for n in range(EACH)]
    nowhere = [body | {"rid": f"nowhere-{n}"} | fleet.room() | {"bootstrap_port": free_port()} for n in range(EACH)]
    left = {url: [body | {"stream": n % 2 == 0} | fleet.room() for n in range(EACH)] for url in (prefill, decode)}

    def goes(received):
        return received.count(b"data: ") > 3

    with Scrapes(fleet.servers) as scrapes, ThreadPoolExecutor(100) as pool:
        good = [pool.submit(ask, url, one) for one in delivered for url in (prefill, decode)]
        streams = [pool.submit(leave, decode, one, goes) for one in left_in_mid_stream]
        good += [pool.submit(ask, prefill, one) for one in left_in_mid_stream]
        alone = [pool.submit(ask, prefill, one) for one in unasked] + [pool.submit(ask, decode, one) for one in unsent]
        astray = [pool.submit(ask, decode, one) for one in nowhere]
        leaving = time.monotonic() + 1.5
        gone = [
            pool.submit(leave, url, one, lambda received: time.monotonic() > leaving)
            for url, bodies in left.items()
            for one in bodies
        ]
        assert {one.result().status for one in good} == {200}
        assert {one.result().status for one in [*alone, *astray]} == {503}
        assert [one.result() for one in gone] == [b""] * len(gone), "answered before the client left"
        assert all(b" 200 " in one.result().split(b"\r\n")[0] for one in streams)
        of_prefill, of_decode = (settled(server) for server in fleet.servers)

    print(of_prefill, of_decode, scrapes.counts, sep="\n")
    common = {("success", "delivered"): SUCCESSES + EACH, ("aborted", "client_abort"): EACH}
    # Prefill has a room from the moment that it knows the metadata, request or not, and is told when decode gives up.
    metadata_alone = {("failed", "prefill_never_sent"): EACH, ("aborted", "decode_abort"): EACH}
    assert of_prefill.ended == {**common, **metadata_alone, ("failed", "metadata_timeout"): EACH}
    assert of_decode.ended == {
        **common,
        ("failed", "prefill_never_sent"): EACH,
        ("failed", "bootstrap_unreachable"): EACH,
    }

    def logged(server):
        return Counter((str(line.reason), line.rid, line.room) for line in failure_lines(server))

    def expected(reason, bodies, named=True):
        return Counter((reason, one["rid"] if named else None, one["bootstrap_room"]) for one in bodies)

    assert logged(fleet.prefill) == (
        expected("metadata_timeout", unasked) + expected("prefill_never_sent", unsent, named=False)
    )
    assert logged(fleet.decode) == expected("prefill_never_sent", unsent) + expected("bootstrap_unreachable", nowhere)

    ranks = range(len(fleet.prefill.schedulers))
    assert of_prefill.upstreams == {(BOOTSTRAP_FAILED, rank): 2 * EACH for rank in ranks}
    assert of_decode.upstreams == {
        **{(BOOTSTRAP_FAILED, rank): EACH for rank in ranks},
        **{(TRANSFER_FAILED, rank): 2 * EACH for rank in ranks},
    }
    assert not scrapes.unbalanced
    assert scrapes.most_live > EACH
    assert min(scrapes.counts.values()) > 2 * DEADLINE_S, scrapes.counts
