"""Who is whose peer, and each room as both sides see it."""

import pytest

from harness.evidence import AT, BOOTSTRAP, DECODE, case, ended, room, server, silent, status


def test_a_room_on_both_sides():
    every = case(
        server("prefill", rooms=[room(7, "transferring", 2.0, peer=DECODE, rid="a")]),
        server("decode", rooms=[ended(7, "prefill_never_sent", 0.5, peer=BOOTSTRAP, phase="waiting")]),
    )
    [pair] = every.pairs.values()
    assert (pair.rid, pair.ref.prefill) == ("a", "transferring for 2.0 s")
    assert pair.ref.decode == "failed (prefill_never_sent) after 1.0 s"


def test_a_number_that_was_used_again_is_the_last_room():
    every = case(server("prefill", rooms=[ended(7, ago=90.0), room(7, "waiting", 1.0)]))
    assert every.pairs[7].prefill is not None
    assert every.pairs[7].prefill.live


def test_a_finding_names_the_first_rooms_and_counts_all():
    every = case(server("prefill", rooms=[room(number, "waiting", number / 10) for number in range(1, 31)]))
    refs, total = every.refs(every.prefills[0].live)
    assert (len(refs), total, refs[0].room) == (8, 30, 30)


def test_prefills_of_several_machines_with_the_same_bootstrap_port():
    first = server("prefill", url="http://10.0.0.1:30000")
    second = server(
        "prefill", "prefill-1", url="http://10.0.0.8:30000", ranks={"tp0": status("prefill", address="x:1")}
    )
    decode = server(
        "decode", rooms=[room(1, "waiting", peer="10.0.0.8:8998"), room(2, "waiting", peer="10.0.0.9:8998")]
    )
    every = case(first, second, decode)
    one, other = every.decodes[0].live
    found = every.peer_of(every.decodes[0], one)
    assert found is not None
    assert found.name == "prefill-1"
    assert every.peer_of(every.decodes[0], other) is None


@pytest.mark.parametrize("ports", [[40002], []], ids=["by its open port", "as the only one that is silent"])
def test_a_decode_that_says_nothing_is_known_all_the_same(ports):
    other = server("decode", "decode-1", ranks={"tp0": status("decode", address="10.0.0.9:5", agent="second")})
    every = case(server("prefill", rooms=[room(1, "waiting", peer=DECODE)]), silent("decode", ports=ports), other)
    found = every.peer_of(every.prefills[0], every.prefills[0].live[0])
    assert found is not None
    assert found.name == "decode-0"


def test_queues_of_ranks_and_of_upstreams_load():
    queues = {"scheduler": {"queues": {"running": 4, "waiting": None}, "last_batch_seconds": 9.0, "batches": 3}}
    ranks = {f"tp{number}": status("decode", coordinates={"dp_rank": None}, **queues) for number in range(2)}
    said, loaded = case(server("decode", ranks=ranks), server("decode", "d", loads={"num_running_reqs": 6})).decodes
    assert (said.queue("running"), loaded.queue("running"), said.queue("waiting")) == (4.0, 6.0, None)
    assert said.last_batch_at == AT - 9.0
    assert said.computed is False
