"""Tensor parallelism 2 on both roles gives the token ids of one undivided server; started by the stock command line."""

from harness.servers import cluster, undivided
from harness.workload import generate_all, prompts

PROMPTS = prompts(10, longest=1200)
FLAGS = ("--dtype", "float32")


def test_tp2_pair_gives_the_ids_of_one_server(tiny_model, home, tmp_path):
    with undivided(tiny_model, tmp_path / "server.log", *FLAGS) as url:
        expected = [answer["output_ids"] for answer in generate_all(url, PROMPTS, at_a_time=5)]
    flags = ("--model", str(tiny_model), "--", "--tp-size", "2", *FLAGS)
    with cluster(home, "tp2", *flags, SGLANG_PD_PRELOAD="0") as pair:
        answers = generate_all(pair.gateway, PROMPTS, at_a_time=5)
    assert [answer["output_ids"] for answer in answers] == expected
