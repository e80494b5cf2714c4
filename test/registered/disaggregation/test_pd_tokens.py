"""Prefill + decode gives exactly the token ids of one undivided server."""

import re

import pytest

from harness.servers import cluster
from harness.workload import CHUNK, FLAGS, PROMPTS, generate_all


@pytest.fixture(scope="module")
def pair(tiny_model, home, expected):
    with cluster(home, "tokens", "--model", str(tiny_model), "--", *FLAGS) as started:
        yield started


def batches(log: str, field: str) -> list[int]:
    return [int(number) for number in re.findall(rf"Prefill batch,.* #{field}: (\d+)", log)]


def test_same_token_ids_16_at_a_time(expected, pair):
    answers = generate_all(pair.gateway, PROMPTS, at_a_time=16)
    differing = [i for i, answer in enumerate(answers) if answer["output_ids"] != expected[i]]
    assert not differing, [(i, len(PROMPTS[i]), expected[i], answers[i]["output_ids"]) for i in differing[:3]]


def test_again_from_the_radix_cache(expected, pair):
    """Every prompt a second time: prefill computes little, sends the cached prefix early, and the ids are the same."""
    before = sum(batches(pair.log("prefill-0"), "cached-token"))
    answers = generate_all(pair.gateway, PROMPTS, at_a_time=16)
    assert [answer["output_ids"] for answer in answers] == expected
    cached = sum(batches(pair.log("prefill-0"), "cached-token")) - before
    assert cached > 0.9 * sum(len(ids) for ids in PROMPTS)


def test_prefill_was_chunked_and_outputs_differ_by_prompt(expected, pair):
    assert max(batches(pair.log("prefill-0"), "new-token")) == CHUNK
    assert len({tuple(ids) for ids in expected}) > 0.9 * len(PROMPTS), "the prompts do not tell servers apart"


def test_status_shows_start_up_time_and_memory(pair):
    processes = pair.status["processes"]
    assert {one["role"] for one in processes} == {"prefill", "decode", "gateway"}
    for one in processes:
        assert one["phase"] == "ready"
        assert 0 < one["startup_seconds"] < 240
        assert one["memory"]["rss_bytes"] > one["memory"]["pss_bytes"] > 10e6
