"""What the README's first command gives: the demo model behind the gateway, asked as users ask it."""

import json
import re
import subprocess
import time
import urllib.request

import pytest
from openai import OpenAI

from harness.servers import cluster, run
from sglang_pd.environ import envs

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]


@pytest.fixture(scope="module")
def demo(home):
    # The built model is shared with other sessions of this user: building it again proves nothing new here.
    shared = envs.SGLANG_PD_HOME.get() / "models"
    shared.mkdir(parents=True, exist_ok=True)
    (home / "models").symlink_to(shared)
    built = run("sglang-pd", "demo-model", home=home)
    assert built.returncode == 0, built.stderr
    with cluster(home, "demo", "--ask", QUESTION, "--", "--enable-metrics") as started:
        yield started


@pytest.fixture(scope="module")
def client(demo):
    return OpenAI(base_url=f"{demo.status['url']}/v1", api_key="none", max_retries=0)


def test_up_answers_the_question_it_was_given(demo):
    assert f"> {QUESTION}" in demo.up
    assert "Paris" in demo.up.split(f"> {QUESTION}")[1]


def test_the_printed_curl_line_works_as_it_is(demo):
    line = re.search(r"^curl .*$", demo.up, re.MULTILINE).group()
    answer = json.loads(subprocess.run(line, shell=True, capture_output=True, check=True, timeout=120).stdout)
    assert "Paris" in answer["choices"][0]["message"]["content"]


def test_openai_client(client, demo):
    model = client.models.list().data[0].id
    assert model == demo.status["served_model_name"]
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=32, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0


def test_openai_client_streaming_gives_the_same_answer(client, demo):
    model = demo.status["served_model_name"]
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=32, temperature=0)
    pieces = list(
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=32, temperature=0, stream=True)
    )
    texts = [piece.choices[0].delta.content or "" for piece in pieces if piece.choices]
    assert "".join(texts) == whole.choices[0].message.content
    assert sum(map(bool, texts)) > 3, "the answer came in one piece"


def test_status_names_the_preload_process_and_every_member(demo):
    status = demo.status
    assert status["preload"]["rss_bytes"] > 100e6
    for one in status["processes"]:
        titles = sorted(part["title"] for part in one["members"])
        expected = ["main"] if one["role"] == "gateway" else ["main", "sglang::detokenizer", "sglang::scheduler"]
        assert titles == expected


def test_a_second_up_of_the_same_name_is_refused(demo):
    again = run("sglang-pd", "up", "--detach", "--name", demo.name, home=demo.home)
    assert again.returncode == 2
    assert "is already up" in again.stderr


def test_metrics_of_every_process_of_a_server_come_through(demo):
    """Upstream's metrics pass through files that each server names for itself: forked servers must not share them."""
    for one in demo.status["processes"]:
        if one["role"] != "gateway":
            text = urllib.request.urlopen(f"{one['url']}/metrics", timeout=10).read().decode()
            assert "sglang:num_running_reqs" in text, "from the scheduler"
            assert "sglang:num_requests_total" in text, "from the launcher"


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_rooms_of_the_requests_so_far_are_counted(demo, client, role):
    """Each request was one room on either side: started, and ended with success."""
    client.chat.completions.create(
        model=demo.status["served_model_name"], messages=MESSAGES, max_tokens=2, temperature=0
    )
    url = next(one["url"] for one in demo.status["processes"] if one["role"] == role)
    deadline = time.monotonic() + 20
    while True:
        rooms = pd_rooms(url)
        if rooms["started"] >= 2 and rooms["started"] == rooms["ended"] and not rooms["live"]:
            break
        assert time.monotonic() < deadline, rooms
        time.sleep(0.2)
    assert rooms["delivered"] == rooms["ended"]


def pd_rooms(url):
    """Sums of the room metrics in one scrape."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()

    def total(name, label=""):
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and label in line)

    return {
        "started": total("sglang:pd_rooms_started_total"),
        "ended": total("sglang:pd_rooms_ended_total"),
        "delivered": total("sglang:pd_rooms_ended_total", 'reason="delivered"'),
        "live": total("sglang:pd_rooms_live"),
    }
