"""Tensor parallelism 2 on both roles gives the token ids of one undivided server; started by the stock command line."""

from harness.servers import cluster
from harness.workload import FLAGS, PROMPTS, generate_all

FEWER = 10


def test_tp2_pair_gives_the_ids_of_one_server(tiny_model, home, expected):
    flags = ("--model", str(tiny_model), "--", "--tp-size", "2", *FLAGS)
    with cluster(home, "tp2", *flags, SGLANG_PD_PRELOAD="0") as pair:
        assert pair.status["preload"] is None
        answers = generate_all(pair.gateway, PROMPTS[:FEWER], at_a_time=5)
    assert [answer["output_ids"] for answer in answers] == expected[:FEWER]
