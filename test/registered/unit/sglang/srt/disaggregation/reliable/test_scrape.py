"""Upstream's own ``/metrics`` application, hooked, while rooms come and go in other processes."""

import asyncio
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

SCRAPES = 150
CHURN = """
import os, random, sys, threading
from pathlib import Path
from types import SimpleNamespace
from sglang.srt.disaggregation.reliable import readings
from sglang.srt.disaggregation.reliable.control import MessageCounters, Supervisor
from sglang.srt.disaggregation.reliable.counts import Reconnects
from sglang.srt.disaggregation.reliable.ledger import Ledger
from sglang.srt.disaggregation.reliable.metrics import Metrics
from sglang.srt.disaggregation.reliable.phases import DecodePhase, Role
from sglang.srt.disaggregation.reliable.quarantine import Quarantine
from sglang.srt.disaggregation.reliable.reasons import Outcome, Reason

sys.setswitchinterval(1e-5)
ledger = Ledger(Role.DECODE)
manager = SimpleNamespace(accounts=SimpleNamespace(ledger=ledger), quarantine=Quarantine(), messages=MessageCounters(),
                          control=Supervisor(), reconnects=Reconnects(), watchdog=SimpleNamespace(counts=dict))

def play(seed):
    dice = random.Random(seed)
    while True:
        room = dice.randrange(50)
        ledger.start(room)
        ledger.enter(room, dice.choice(list(DecodePhase)))
        if dice.random() < 0.5:
            ledger.end(room, Outcome.FAILED, dice.choice([Reason.PEER_LOST, Reason.NIXL_BACKEND, Reason.NO_MEMORY]))

for seed in range(2):
    threading.Thread(target=play, args=(seed,), daemon=True).start()
metrics, parent = Metrics(manager), os.getppid()
print("playing", flush=True)
while os.getppid() == parent:
    readings.write(Path(sys.argv[1]), metrics.read())
"""


@pytest.fixture
def churning(tmp_path: Path):
    """Two data-parallel ranks whose rooms come and go without a pause, each writing readings as fast as it can."""
    ranks = [subprocess.Popen([sys.executable, "-c", CHURN, tmp_path], stdout=subprocess.PIPE) for _ in range(2)]
    for rank in ranks:
        assert rank.stdout
        assert rank.stdout.readline() == b"playing\n"
    yield tmp_path
    for rank in ranks:
        rank.kill()
        rank.wait()


# What Prometheus 2 sends, and Prometheus 3.
ACCEPT = (
    b"application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    b"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1",
)


def scrape(app, *headers: tuple[bytes, bytes]) -> str:
    """One GET of ``/metrics`` by ASGI."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/metrics", "root_path": "", "query_string": b"", "headers": headers,
        "http_version": "1.1", "scheme": "http", "server": ("x", 80), "client": ("y", 1),
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    assert sent[0]["status"] == 200
    return b"".join(message.get("body", b"") for message in sent[1:]).decode()


def totals(text: str) -> dict[str, float]:
    """The sum of each metric's samples, by its name."""
    found: dict[str, float] = defaultdict(float)
    for name, value in re.findall(r"^sglang:(pd_\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
        found[name] += float(value)
    return found


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An application with upstream's route, hooked as the registry does it."""
    from fastapi import FastAPI
    from sglang.srt.utils.common import add_prometheus_middleware

    from sglang.srt.disaggregation.reliable import scrape as ours

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    app = FastAPI()
    add_prometheus_middleware(app)
    ours.serve_readings(None, app)
    return app


def test_started_is_ended_plus_live_at_every_scrape(churning: Path, app):
    grown = []
    for _ in range(SCRAPES):
        found = totals(scrape(app))
        assert found["pd_rooms_started_total"] == found["pd_rooms_ended_total"] + found["pd_rooms_live"]
        grown.append(found["pd_rooms_started_total"])
    print(f"{SCRAPES} scrapes while {grown[-1] - grown[0]:,.0f} rooms began")
    assert grown == sorted(grown)
    assert len(set(grown)) > SCRAPES / 10


def test_upstreams_metrics_are_still_there(tmp_path: Path, app):
    code = "from prometheus_client import Counter; Counter('sglang:theirs', 'x').inc(3)"
    environment = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "sglang:theirs_total 3.0" in scrape(app)


def test_a_server_without_a_transfer_serves_none_of_ours(app):
    assert "sglang:pd_" not in scrape(app)


def test_the_text_has_types_and_a_cumulative_histogram(tmp_path: Path, app):
    from sglang.srt.disaggregation.reliable import families, readings
    from sglang.srt.disaggregation.reliable.readings import Reading

    samples = {family.name: [] for family in families.FAMILIES}
    buckets = [1, 2, *[0] * (len(families.PHASE_SECONDS_LE) - 2), 3]
    samples[families.PHASE_SECONDS.name] = [(("decode", "waiting"), [*buckets, 900.5])]
    samples[families.STARTED.name] = [(("decode",), 6)]
    readings.write(tmp_path, Reading("decode", 0.0, samples))
    text = scrape(app)
    for line in (
        "# TYPE sglang:pd_rooms_started_total counter",
        'sglang:pd_rooms_started_total{role="decode"} 6.0',
        "# TYPE sglang:pd_phase_seconds histogram",
        'sglang:pd_phase_seconds_bucket{le="0.001",phase="waiting",role="decode"} 1.0',
        'sglang:pd_phase_seconds_bucket{le="0.005",phase="waiting",role="decode"} 3.0',
        'sglang:pd_phase_seconds_bucket{le="300.0",phase="waiting",role="decode"} 3.0',
        'sglang:pd_phase_seconds_bucket{le="+Inf",phase="waiting",role="decode"} 6.0',
        'sglang:pd_phase_seconds_count{phase="waiting",role="decode"} 6.0',
        'sglang:pd_phase_seconds_sum{phase="waiting",role="decode"} 900.5',
    ):
        assert re.search("^" + re.escape(line) + "$", text, re.MULTILINE), line + "\n" + text


@pytest.mark.parametrize("accept", ACCEPT, ids=["prometheus-2", "prometheus-3"])
def test_names_keep_their_colon_whatever_format_is_asked_for(tmp_path: Path, app, accept: bytes):
    from sglang.srt.disaggregation.reliable import families, readings
    from sglang.srt.disaggregation.reliable.readings import Reading

    samples = {family.name: [] for family in families.FAMILIES}
    samples[families.STARTED.name] = [(("decode",), 6)]
    readings.write(tmp_path, Reading("decode", 0.0, samples))
    text = scrape(app, (b"accept", accept))
    assert 'sglang:pd_rooms_started_total{role="decode"} 6.0' in text
    assert "sglang_" not in text


def test_another_last_route_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from fastapi import FastAPI

    from sglang.srt.disaggregation.reliable import scrape as ours

    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    with pytest.raises(RuntimeError, match="/metrics"):
        ours.serve_readings(None, FastAPI())
