"""``--disaggregation-enable-kv-checksum``, where every second transfer is found to be wrong: what a client is told."""

import json
import random
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness.servers import cluster
from harness.workload import FLAGS, NEW_TOKENS, generate

REQUESTS = 30
SENTENCE = "checksum_mismatch: The KV that arrived is not the KV that was sent."
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": NEW_TOKENS, "temperature": 0}
SAMPLING = {"max_new_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def pair(tiny_model, home):
    flags = ("--model", str(tiny_model), "--", *FLAGS, "--disaggregation-enable-kv-checksum", "--enable-metrics")
    with cluster(home, "checksum", *flags, SGLANG_TEST_DISAGG_KV_CHECKSUM_MISMATCH_PROB="0.5") as started:
        yield started


@pytest.fixture(scope="module")
def addresses(pair) -> dict[str, dict]:
    return {one["role"]: one for one in pair.status["processes"]}


def ask(url: str, body: dict) -> tuple[int, str]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def hand_over(addresses: dict[str, dict], path: str, body: dict) -> tuple[int, str]:
    """One request to both servers, as a gateway sends it, and decode's answer; nobody retries."""
    prefill = addresses["prefill"]
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": prefill["bootstrap_port"]}
    body = {**body, **room, "bootstrap_room": random.getrandbits(62)}
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(ask, addresses[role]["url"] + path, body) for role in ("prefill", "decode")]
    return answers[1].result()


def ended(addresses: dict[str, dict]) -> tuple[Counter, dict[str, float]]:
    """Decode's rooms by reason, once all have ended; and every total of ours by its name."""
    deadline = time.monotonic() + 20
    while True:
        text = urllib.request.urlopen(addresses["decode"]["url"] + "/metrics", timeout=10).read().decode()
        totals: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        for name, labels, value in re.findall(r"^sglang:(pd_rooms_\w+)\{(.*)\} (\S+)$", text, re.MULTILINE):
            totals[name] += float(value)
            if found := re.search(r'reason="(\w+)"', labels):
                reasons[found[1]] += int(float(value))
        assert totals["pd_rooms_started_total"] == totals["pd_rooms_ended_total"] + totals["pd_rooms_live"]
        if not totals["pd_rooms_live"]:
            return reasons, totals
        assert time.monotonic() < deadline, text
        time.sleep(0.2)


def settled(addresses: dict[str, dict]) -> Counter:
    """The same, once two readings in a row are one: what is scraped is a second old."""
    before = None
    while before != (before := ended(addresses)[0]):
        time.sleep(1.5)
    return before


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"input_ids": list(range(50)), "sampling_params": SAMPLING}),
        ("/generate", {"input_ids": list(range(50)), "sampling_params": SAMPLING, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "model": "tiny"}),
        ("/v1/chat/completions", {**CHAT, "model": "tiny", "stream": True}),
    ],
    ids=["generate", "generate-stream", "chat", "chat-stream"],
)
def test_a_mismatch_is_a_503_with_its_reason_and_is_counted_once(addresses, path, body):
    before = settled(addresses)
    answers = [hand_over(addresses, path, body) for _ in range(REQUESTS)]
    now = settled(addresses)
    now.subtract(before)
    print(f"{path}: {Counter(status for status, _ in answers)}, rooms by reason {dict(now)}")
    assert {status for status, _ in answers} == {200, 503}
    for status, text in answers:
        assert (SENTENCE in text) == (status == 503), text
        assert ("checksum" in text) == (status == 503), text
    wrong = sum(status == 503 for status, _ in answers)
    assert +now == Counter(checksum_mismatch=wrong, delivered=REQUESTS - wrong)


def test_the_gateway_retries_it(pair):
    for _ in range(5):
        assert len(generate(pair.gateway, list(range(50)))["output_ids"]) == NEW_TOKENS


def test_the_line_of_each_failed_room_is_in_the_log(pair, addresses):
    reasons = settled(addresses)
    lines = [line for line in pair.log("decode-0").splitlines() if "PD room failed: " in line]
    assert len(lines) == reasons["checksum_mismatch"]
    assert all(" phase=verifying reason=checksum_mismatch " in line and " rid=-" not in line for line in lines)


def test_prefill_does_not_know(addresses):
    """It sent what it had; whether that arrived is decode's to say."""
    text = urllib.request.urlopen(addresses["prefill"]["url"] + "/metrics", timeout=10).read().decode()
    assert "checksum_mismatch" not in text
