"""Each fault is really made on running servers, and `sglang-pd doctor` names the hop, with the requests, in seconds.

One prefill, two decodes and a gateway serve for all faults; what cannot be mended is done last. By default a part of
them is made; `PD_DOCTOR_ALL=1` makes all, on more deployments. `PD_DOCTOR_RECORD=DIR` keeps the bundles there.
"""

import contextlib
import gzip
import json
import os
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.faults import signals
from harness.fleet import TCP, UPSTREAM, Fleet, ask, generation
from harness.servers import BIN, cluster, free_port, get
from harness.workload import FLAGS
from sglang_pd.cluster.ports import listening

MOST_S = 10.0
LONG = 2000
PATIENCE_S = 30.0
MUTE = "import socket, sys, time; open_ = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(600)"
SECRET = "sk-doctor-4711-secret"
FLAGS_OF_ALL = ("--", *FLAGS)
dice = random.Random(11)
every = pytest.mark.skipif(not os.environ.get("PD_DOCTOR_ALL"), reason="set PD_DOCTOR_ALL=1 to make every fault")


@pytest.fixture(scope="module")
def fleet(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    with Fleet(folder, tiny_model, decodes=2, flags=(*FLAGS, "--enable-metrics"), env=TCP) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(fleet):
    with fleet.gateway() as url:
        yield url


@pytest.fixture
def pool():
    threads = ThreadPoolExecutor(32)
    yield threads
    # A request that waits for a fault to pass must not keep the next test waiting.
    threads.shutdown(wait=False, cancel_futures=True)


def anywhere(text, folder):
    """Where it ran is nobody's concern. The kernel knows a process by the beginning of the path it was started by."""
    root = str(Path(__file__).parents[3])
    places = {
        sys.prefix: "/opt/venv",
        sys.base_prefix: "/opt/python",
        str(folder.parent): "/srv",
        root: "/opt/sglang-pd",
    }
    for place, instead in places.items():
        text = text.replace(place, instead)
    return text.replace(f'"{sys.executable[:15]}"', '"python3"')


class Seen:
    """What one run of the command said. ``first``: the finding it begins with; ``bundle``: all it had gathered."""

    def __init__(self, name, *flags, home=None, argv=(str(BIN / "sglang-pd"),), folder, keep=True):
        path = folder / f"{name}.json"
        start = time.monotonic()
        done = subprocess.run(
            [*argv, "doctor", *flags, "--json", "--bundle", str(path)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **({"SGLANG_PD_HOME": str(home)} if home else {})},
        )
        self.seconds = time.monotonic() - start
        assert done.returncode in (0, 1, 3), done.stderr
        self.code = done.returncode
        self.said = json.loads(done.stdout)
        self.first = self.said["findings"][0]
        self.bundle = path.read_text()
        self.rids = {room["rid"] for room in self.first["rooms"]}
        print(f"{name}: {self.seconds:.2f} s, {len(self.bundle)} bytes: {self.first['headline']} [{self.first['hop']}]")
        assert self.seconds < MOST_S
        if keep and (record := os.environ.get("PD_DOCTOR_RECORD")):
            Path(record).mkdir(parents=True, exist_ok=True)
            with gzip.open(Path(record) / f"{path.name}.gz", "wt") as file:
                file.write(anywhere(self.bundle, folder))

    def rules(self):
        return [one["rule"] for one in self.said["findings"]]


@pytest.fixture
def doctor(fleet, gateway, tmp_path):
    def run(name, *more, servers=None, argv=(str(BIN / "sglang-pd"),)):
        return Seen(name, *flags_of(servers or fleet.servers), "--gateway", gateway, *more, argv=argv, folder=tmp_path)

    return run


def flags_of(servers):
    by_role = {role: [one.url for one in servers if one.role == role] for role in ("prefill", "decode")}
    return [text for role, urls in by_role.items() if urls for text in (f"--{role}", *urls)]


def named(server):
    return f"{server.role} 127.0.0.1:{server.port}"


def waiting(fleet, pool, rid, count, decode, tokens=LONG, new=8):
    """Requests with prompts that nobody has seen before, sent to both sides as a gateway does; by request id."""
    found = {}
    for number in range(count):
        body = generation(dice.choices(range(256), k=tokens), new, rid=f"{rid}-{number}") | fleet.room()
        for role, server in (("prefill", fleet.prefill), ("decode", decode)):
            found[f"{rid}-{number}", role] = pool.submit(ask, f"{server.url}/generate", body)
    return found


def live_rooms(server, **wanted):
    return server.rooms(state="live", **wanted)


def inflight(server):
    """Requests in the in-flight queue of a prefill, by upstream's own word."""
    loads = get(f"{server.url}/v1/loads?include=core,disagg")["loads"]
    return sum(one["disaggregation"]["prefill_inflight_queue_reqs"] for one in loads)


def until(holds, what):
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.05)


def aged(server, seconds, **wanted):
    """Whether it has live rooms, the oldest for so long in its phase."""
    return any(room["timeline"][-1]["seconds"] >= seconds for room in live_rooms(server, **wanted))


@contextlib.contextmanager
def loaded(gateway, pool):
    """Requests through the gateway, without a pause."""
    going = [True]

    def work():
        answers = []
        while going:
            answers.append(ask(f"{gateway}/generate", generation(dice.choices(range(256), k=200), 30)).status)
        return answers

    workers = [pool.submit(work) for _ in range(6)]
    try:
        yield
    finally:
        going.clear()
    assert {status for one in workers for status in one.result()} == {200}


def test_a_healthy_busy_deployment_is_healthy(fleet, gateway, doctor, pool):
    with loaded(gateway, pool):
        until(lambda: live_rooms(fleet.decode), "a room")
        seen = doctor("healthy_busy")
    assert (seen.code, seen.first["rule"], seen.first["severity"]) == (0, "healthy", "healthy"), seen.said["findings"]
    assert "handed over while watching" in seen.first["headline"]


def test_a_decode_whose_scheduler_is_stopped_pins_its_transfers(fleet, doctor, pool):
    victim = fleet.decode_servers[1]
    sent = waiting(fleet, pool, "stalled", 4, victim)
    until(lambda: live_rooms(fleet.prefill, phase="transferring"), "a transfer in flight")
    [scheduler] = victim.schedulers
    with signals.stopped(scheduler.pid):
        until(lambda: aged(fleet.prefill, 1.2, phase="transferring"), "a transfer that stands still")
        seen = doctor("transfer_stalled")
    assert seen.first["rule"] == "transfer_stalled"
    assert seen.first["hop"] == f"{named(fleet.prefill)} → {named(victim)} (KV transfer)"
    assert str(scheduler.pid) in seen.first["headline"]
    assert seen.rids
    assert seen.rids <= {f"stalled-{number}" for number in range(4)}
    assert {one.result().status for one in sent.values()} <= {200, 503}
    # What went well since tells the next runs that this is over.
    again = waiting(fleet, pool, "again", 3, victim, tokens=50)
    assert {one.result().status for one in again.values()} == {200}


def test_a_server_whose_launcher_is_stopped_delays_the_doctor_by_its_timeout_only(fleet, doctor):
    victim = fleet.decode
    with signals.stopped(victim.pid):
        seen = doctor("hung_front", "--timeout", "3")
    assert seen.said["seconds"] < 3 + 1
    assert (seen.first["rule"], seen.first["hop"]) == ("unreachable", f"gateway → {named(victim)}")
    assert str(victim.pid) in "".join(seen.first["evidence_for"])


def test_what_takes_connections_and_never_answers_is_a_finding(fleet, doctor):
    port = free_port()
    mute = subprocess.Popen(
        [sys.executable, "-c", MUTE, str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: listening([port]), "a port that is open")
        url = f"http://127.0.0.1:{port}"
        seen = doctor("mute_target", "--timeout", "2", "--decode", *[one.url for one in fleet.decode_servers], url)
    finally:
        mute.kill()
        mute.wait()
    assert seen.said["seconds"] < 2 + 1
    assert seen.first["rule"] == "unreachable"
    assert url.removeprefix("http://") in seen.first["hop"]


def test_a_closed_port_is_a_finding(fleet, doctor):
    url = f"http://127.0.0.1:{free_port()}"
    seen = doctor("closed_port", "--decode", *[one.url for one in fleet.decode_servers], url)
    assert (seen.first["rule"], seen.first["hop"]) == ("unreachable", f"gateway → decode {url.removeprefix('http://')}")
    assert "connection refused" in seen.first["evidence_for"][0]


def test_requests_that_reach_prefill_alone(fleet, doctor, pool):
    body = generation(list(range(100)), 8)
    sent = [
        pool.submit(ask, f"{fleet.prefill.url}/generate", {**body, **fleet.room(), "rid": f"alone-{number}"})
        for number in range(3)
    ]
    until(lambda: aged(fleet.prefill, 2.5, phase="bootstrapping"), "rooms that nobody asks for")
    seen = doctor("starved")
    for number in range(3):
        ask(f"{fleet.prefill.url}/abort_request", {"rid": f"alone-{number}"})
    assert all(one.result().status != 200 for one in sent)
    assert (seen.first["rule"], seen.first["hop"]) == ("starved", "gateway → decodes")
    assert seen.rids == {"alone-0", "alone-1", "alone-2"}


@every
def test_requests_whose_prefill_is_named_wrongly(fleet, doctor, pool):
    body = generation(list(range(100)), 8, rid="astray-0") | fleet.room() | {"bootstrap_port": free_port()}
    sent = pool.submit(ask, f"{fleet.decode.url}/generate", body)
    until(lambda: aged(fleet.decode, 2.2), "a room that finds no prefill")
    seen = doctor("registration")
    ask(f"{fleet.decode.url}/abort_request", {"rid": "astray-0"})
    sent.result()
    assert seen.first["rule"] == "registration"
    assert seen.first["hop"].startswith(f"{named(fleet.decode)} → a prefill at 127.0.0.1:{body['bootstrap_port']}")
    assert seen.rids == {"astray-0"}


@every
def test_a_doctor_whose_clock_is_wrong(doctor):
    shifted = (
        "import time, sys; real = time.time; time.time = lambda: real() + 300.0; from sglang_pd.cli import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    seen = doctor("clock_skew", argv=(sys.executable, "-c", shifted))
    assert seen.first["rule"] == "clock_skew"
    assert "5m0" in seen.first["headline"] or "4m59" in seen.first["headline"]
    assert seen.first["hop"] == "the doctor's machine ↔ all servers"


@every
def test_one_decode_of_two_is_started_with_a_deadline_that_nothing_meets(fleet, doctor, pool):
    victim = fleet.decode_servers[1]
    victim.env["SGLANG_PD_DECODE_WAITING_TIMEOUT"] = "0.02"
    fleet.replace(victim)
    sent = waiting(fleet, pool, "bad", 4, victim) | waiting(fleet, pool, "good", 4, fleet.decode)
    answers = {key: one.result().status for key, one in sent.items()}
    assert {status for (rid, role), status in answers.items() if rid.startswith("bad") and role == "decode"} == {503}
    seen = doctor("one_bad_peer")
    del victim.env["SGLANG_PD_DECODE_WAITING_TIMEOUT"]
    assert seen.first["rule"] == "one_bad_peer"
    assert seen.first["hop"] == f"{named(fleet.prefill)} → {named(victim)}"
    assert seen.rids == {f"bad-{number}" for number in range(4)}
    assert "SGLANG_PD_DECODE_WAITING_TIMEOUT is 0.02" in "".join(seen.first["evidence_for"])


@every
def test_a_decode_with_another_page_size(fleet, doctor, pool):
    victim = fleet.decode_servers[1]
    as_it_was = victim.flags
    fleet.replace(victim, (*as_it_was, "--page-size", "16"))
    sent = waiting(fleet, pool, "layout", 2, victim, tokens=100)
    assert sent["layout-0", "decode"].result().status == 500
    seen = doctor("layout_mismatch")
    for number in range(2):
        ask(f"{fleet.prefill.url}/abort_request", {"rid": f"layout-{number}"})
    victim.flags = as_it_was
    assert seen.first["rule"] == "layout_mismatch"
    assert seen.first["hop"] == f"{named(victim)} → {named(fleet.prefill)} (registration)"
    assert seen.rids == {"layout-0", "layout-1"}
    assert "page_size is 1 on" in "".join(seen.first["evidence_for"])


@every
def test_a_decode_whose_pool_is_full(fleet, doctor, pool):
    victim = fleet.decode_servers[1]
    as_it_was = victim.flags
    fleet.replace(victim, (*as_it_was, "--max-total-tokens", "3000"))
    sent = waiting(fleet, pool, "full", 4, victim, tokens=1500, new=900)
    until(lambda: aged(victim, 1.2, phase="allocating"), "rooms that queue for pages")
    seen = doctor("pool_exhausted")
    for rid, _ in sent:
        for server in (fleet.prefill, victim):
            ask(f"{server.url}/abort_request", {"rid": rid})
    victim.flags = as_it_was
    assert (seen.first["rule"], seen.first["hop"]) == ("pool_exhausted", f"{named(victim)}: KV pool")
    assert seen.rids
    assert seen.rids <= {f"full-{number}" for number in range(4)}


@every
def test_servers_by_their_processes_with_stacks(fleet, tmp_path):
    pids = [str(one.pid) for one in fleet.servers]
    seen = Seen("by_pid", "--pid", *pids, "--stacks", folder=tmp_path, keep=False)
    assert {one["url"] for one in seen.said["targets"]} == {one.url for one in fleet.servers}
    servers = json.loads(seen.bundle)["servers"]
    assert [one["log"]["source"] for one in servers] == [str(one.log) for one in fleet.servers], "by their open files"
    schedulers = [one for server in servers for one in server["processes"] if "scheduler" in one["title"]]
    assert len(schedulers) == len(fleet.servers)
    assert all("event_loop" in (one["stack"] or "") or one["stack_problem"] for one in schedulers)


@every
def test_a_key_of_a_server_is_nowhere_in_the_bundle(fleet, gateway, doctor):
    victim = fleet.decode_servers[1]
    as_it_was = victim.flags
    fleet.replace(victim, (*as_it_was, "--api-key", SECRET))
    with victim.log.open("a") as log:
        log.write(f"[2026-01-01 00:00:00] ERROR: somebody logged {SECRET} and Authorization: Bearer {SECRET}\n")
    assert ask(f"{victim.url}/generate", generation([1], 1)).status == 401
    until(lambda: all(one["is_healthy"] for one in get(f"{gateway}/workers")["workers"]), "a gateway that looks again")
    seen = doctor("api_key")
    victim.flags = as_it_was
    assert seen.first["rule"] in ("healthy", "failing"), "the doctor knew the key, and all was well"
    assert "somebody logged ***" in seen.bundle
    assert SECRET not in seen.bundle + json.dumps(seen.said)


def test_a_dead_scheduler_behind_a_live_port(fleet, doctor, pool):
    """The last one here: nobody mends it."""
    sent = waiting(fleet, pool, "orphan", 2, fleet.decode)
    until(lambda: live_rooms(fleet.decode), "a room")
    [scheduler] = fleet.prefill.schedulers
    signals.kill(scheduler.pid)
    seen = doctor("dead_scheduler")
    assert (seen.first["rule"], seen.first["hop"]) == ("dead_scheduler", f"{named(fleet.prefill)}: HTTP → scheduler")
    assert f"its process {scheduler.pid} is gone" in "".join(seen.first["evidence_for"])
    assert seen.rids
    assert seen.rids <= {"orphan-0", "orphan-1"}
    assert all(one.result().status != 200 for (_, role), one in sent.items() if role == "prefill")


@every
def test_the_incident(tiny_model, tmp_path):
    """Decode is restarted again and again beside a prefill that stays, with upstream's classes on both sides."""
    with (
        Fleet(tmp_path / "servers", tiny_model, flags=(*FLAGS, "--enable-metrics"), env={**TCP, **UPSTREAM}) as fleet,
        ThreadPoolExecutor(64) as pool,
        fleet.gateway() as gateway,
    ):
        assert fleet.both(generation(list(range(50)), 8))["decode"].status == 200
        for cycle in range(3):
            waiting(fleet, pool, f"inflight-{cycle}", 4, fleet.decode)
            until(lambda: inflight(fleet.prefill), "a transfer")
            fleet.kill(fleet.decode)
            waiting(fleet, pool, f"between-{cycle}", 1, fleet.decode, tokens=50)
            fleet.replace(fleet.decode)
        newest = pool.submit(ask, f"{gateway}/generate", generation(list(range(60)), 8))
        seen = Seen("incident", *flags_of(fleet.servers), "--gateway", gateway, folder=tmp_path)
        print(newest.done() and newest.result().status)
        for server in fleet.servers:
            fleet.kill(server)
    assert seen.first["rule"] == "stale_peer"
    assert seen.first["hop"].startswith(f"{named(fleet.prefill)} → {named(fleet.decode)}")
    evidence = " ".join(seen.first["evidence_for"])
    assert "it was restarted alone" in evidence
    assert "that wait for a decode's metadata, and computes nothing" in evidence
    assert any(rid and rid.startswith("inflight-") for rid in seen.rids)


@every
def test_ranks_that_are_out_of_step(tiny_model, tmp_path):
    tp = ("--tp", "2")
    with Fleet(tmp_path / "servers", tiny_model, flags=(*FLAGS, "--enable-metrics", *tp), env=TCP) as fleet:
        assert fleet.both(generation(list(range(50)), 8))["decode"].status == 200
        victim = sorted(fleet.prefill.schedulers, key=lambda one: one.cmdline()[0])[-1]
        with ThreadPoolExecutor(8) as pool, signals.stopped(victim.pid):
            sent = waiting(fleet, pool, "step", 2, fleet.decode, tokens=50)
            time.sleep(3.5)
            seen = Seen("collective", *flags_of(fleet.servers), folder=tmp_path)
            signals.go_on(victim.pid)
            assert [one.result().status for one in sent.values()]
    assert seen.first["rule"] == "collective"
    assert seen.first["hop"].startswith(f"{named(fleet.prefill)}: rank tp")
    assert str(victim.pid) in " ".join(seen.first["todo"])


@every
def test_a_local_cluster_needs_no_target(tiny_model, tmp_path):
    with cluster(tmp_path, "seen", "--model", str(tiny_model), *FLAGS_OF_ALL, SOME_API_KEY=SECRET):
        seen = Seen("local_cluster", "--name", "seen", home=tmp_path, folder=tmp_path)
    assert seen.first["rule"] == "healthy", seen.said["findings"]
    assert {one["role"] for one in seen.said["targets"]} == {"prefill", "decode", "gateway"}
    assert SECRET not in seen.bundle
