"""Decode keeps the pages of an aborted request while its prefill hangs, and gives them back when that one is gone."""

import json
import random
import re
import signal
import threading
import time
import urllib.error
import urllib.request

import psutil
import pytest

from harness.servers import cluster
from harness.workload import FLAGS, NEW_TOKENS, generate

PROMPT = list(range(100))
RELEASED = "pd_quarantine_released_total"


@pytest.fixture(scope="module")
def pair(tiny_model, home):
    with cluster(home, "quarantine", "--model", str(tiny_model), "--", *FLAGS, "--enable-metrics") as started:
        yield started


def samples(url: str) -> dict[tuple[str, str], float]:
    """Our metrics by name and labels."""
    text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
    found = re.findall(r"^sglang:(pd_\w+?)(?:\{(.*)\})? (\S+)$", text, re.MULTILINE)
    return {(name, labels): float(value) for name, labels, value in found}


def wait_for(url: str, name: str, labels: str, number: float, seconds: float) -> dict[tuple[str, str], float]:
    deadline = time.monotonic() + seconds
    while (found := samples(url)).get((name, labels)) != number:
        assert time.monotonic() < deadline, {key: value for key, value in found.items() if "quarantine" in key[0]}
        time.sleep(0.1)
    return found


def scheduler_of(server: int) -> psutil.Process:
    (found,) = [
        child for child in psutil.Process(server).children(recursive=True) if "scheduler" in " ".join(child.cmdline())
    ]
    return found


def post(url: str, body: dict) -> tuple[int, str]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_pages_are_kept_while_prefill_hangs_and_come_back_when_it_is_gone(pair):
    assert len(generate(pair.gateway, PROMPT)["output_ids"]) == NEW_TOKENS
    roles = {one["role"]: one for one in pair.status["processes"]}
    decode = roles["decode"]["url"]
    prefill = scheduler_of(roles["prefill"]["pid"])
    prefill.send_signal(signal.SIGSTOP)

    answers = []
    room = {"bootstrap_host": "127.0.0.1", "bootstrap_port": roles["prefill"]["bootstrap_port"]}
    body = {"input_ids": PROMPT, "rid": "held", **room, "bootstrap_room": random.getrandbits(62)}
    client = threading.Thread(target=lambda: answers.append(post(decode + "/generate", body)))
    client.start()
    wait_for(decode, "pd_rooms_live", 'phase="waiting",role="decode"', 1, seconds=20)
    post(decode + "/abort_request", {"rid": "held"})
    client.join(20)
    found = wait_for(decode, "pd_pages_quarantined", "", len(PROMPT), seconds=10)
    # The room has ended, and its client has its answer.
    assert found["pd_rooms_ended_total", 'outcome="aborted",phase="waiting",reason="client_abort",role="decode"'] == 1
    assert sum(number for (name, _), number in found.items() if name == "pd_rooms_live") == 0
    print(f"the client was told {answers}")
    assert answers

    # A process that hangs proves nothing.
    time.sleep(5)
    found = samples(decode)
    assert found["pd_pages_quarantined", ""] == len(PROMPT)
    assert found["pd_quarantine_oldest_age_seconds", ""] > 5
    prefill.kill()
    found = wait_for(decode, "pd_pages_quarantined", "", 0, seconds=20)
    assert found[RELEASED, 'result="proven_dead"'] == 1
    assert found[RELEASED, 'result="timeout"'] == 0
    assert "is gone: its writes are over" in pair.log("decode-0")
