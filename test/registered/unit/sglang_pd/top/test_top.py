"""The live view, from answers as docs/status.md shows them to lines of text."""

import io
import json
import re
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.targets import Target
from sglang_pd.errors import UserError
from sglang_pd.top import commands, fetch, loop, screen
from sglang_pd.top.rates import Rates, new_failures, rates
from sglang_pd.top.reading import NOT_READY, READY, SILENT, Answers, Load, Totals, read

PAGE = (Path(__file__).parents[5] / "docs/status.md").read_text()
# The examples of the page: a rank's status, rooms, and the peers of a prefill and of a decode.
EXAMPLES = [json.loads(text) for text in re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)]
BY_KIND = {(one["schema"]["name"], one["role"]): one for one in EXAMPLES}
STATUS = BY_KIND["sglang-pd/status", "decode"]
ROOMS = BY_KIND["sglang-pd/rooms", "decode"]
PEERS = {role: BY_KIND["sglang-pd/peers", role] for role in ("prefill", "decode")}
AT = 1_700_000_000.0


def server(said, pid: int = 71, rank: str = "tp0"):
    """A server's answer of one rank, which said that."""
    return {"ranks": [{"rank": rank, "pid": pid, "seconds": 0.0, "problem": None, "said": said}]}


def decode(at: float = 10.0, **changes) -> Answers:
    whole = Answers(
        "decode-0", "decode", at, {"ready": True, "reasons": []}, server(STATUS), server(ROOMS), server(PEERS["decode"])
    )
    return replace(whole, **changes)


def told(**changes):
    """The example's status with other rooms."""
    return {**STATUS, "rooms": {**STATUS["rooms"], **changes}}


def text_of(answers, before=(), width: int = 80) -> str:
    seen = {one.name: read(one) for one in before}
    lines = screen.lines([read(one) for one in answers], seen, AT, width)
    assert max(len(line.text) for line in lines) <= width
    return "\n".join(line.text for line in lines)


def test_a_server_is_read():
    found = read(decode())
    assert (found.state, found.accounts, found.processes, found.age) == (READY, True, (71,), 60.0)
    assert found.totals == Totals(started=120, succeeded=117, failed=1, aborted=0, bytes=671088640)
    assert found.phases["waiting"] == Load(2, 0.214)
    assert (found.live, found.oldest) == (2, 0.214)
    assert found.failed_by_reason == {"peer_lost": 1}
    assert [(peer.address, peer.live, round(peer.heard, 1), peer.trouble) for peer in found.peers] == [
        ("10.0.0.7:8998", 2, 0.1, "")
    ]
    assert [(room.room, room.phase, room.age, room.phase_age) for room in found.rooms] == [(17, "waiting", 2.0, 0.5)]
    assert found.alarms == ("stall: 2 rooms waiting with 10.0.0.7:8998 for 31 s: waiting_for_peer",)


def test_a_room_counts_once_however_many_ranks_have_it():
    ranks = [*server(STATUS)["ranks"], *server({**STATUS, "rank": "tp1", "speaks": False}, 72, "tp1")["ranks"]]
    rooms = [*server(ROOMS)["ranks"], *server({**ROOMS, "rank": "tp1"}, 72, "tp1")["ranks"]]
    found = read(decode(status={"ranks": ranks}, rooms={"ranks": rooms}))
    assert found.totals.started == 120
    assert len(found.rooms) == 1
    assert found.processes == (71, 72)


def test_data_parallel_ranks_are_added_up():
    other = {**STATUS, "rank": "dp1-tp0"}
    ranks = [*server(STATUS)["ranks"], *server(other, 72, "dp1-tp0")["ranks"]]
    found = read(decode(status={"ranks": ranks}))
    assert found.totals.started == 240
    assert found.phases["waiting"] == Load(4, 0.214)
    assert found.failed_by_reason == {"peer_lost": 2}


def test_a_server_that_does_not_answer_is_silent():
    found = read(Answers("prefill-0", "prefill", 1.0, problem="no answer within 2.9 s"))
    assert (found.state, found.accounts, found.alarms) == (SILENT, False, ("no answer within 2.9 s",))
    assert "prefill-0               silent" in text_of([Answers("prefill-0", "prefill", 1.0, problem="gone")])


def test_a_rank_that_does_not_answer_shows():
    nothing = {"ranks": [{"rank": "tp0", "pid": 71, "seconds": 1.0, "problem": "no answer within 1 s", "said": None}]}
    ready = {"ready": False, "reasons": ["rank tp0: no answer within 1.5 s"]}
    found = read(decode(ready=ready, status=nothing, rooms=nothing, peers=nothing))
    assert found.state == NOT_READY
    assert found.alarms == ("rank tp0: no answer within 1.5 s",)
    assert not found.accounts


def test_stock_classes_have_no_accounts():
    bare = {**STATUS, "speaks": None, "rooms": None, "stalls": None, "quarantine": None}
    text = text_of([decode(status=server(bare), rooms=server({**ROOMS, "rooms": None}), peers=None)])
    assert "no accounts" in text


def test_rates_are_the_growth_between_two_looks():
    later = read(decode(12.0, status=server(told(started=140, bytes=671088640 + 4096))))
    assert rates(read(decode()), later) == Rates(10.0, 0.0, 0.0, 0.0, 2048.0)
    assert rates(None, later) is None
    assert rates(later, later) is None


def test_a_restarted_server_has_no_rate():
    again = read(decode(12.0, status=server(told(started=3), pid=99)))
    assert rates(read(decode()), again) is None
    assert new_failures(read(decode()), again) == {}


def test_new_failures_show_beside_the_old_ones():
    before, now = decode(), decode(12.0, status=server(told(failed_by_reason={"peer_lost": 4, "no_memory": 1})))
    assert new_failures(read(before), read(now)) == {"peer_lost": 3, "no_memory": 1}
    text = text_of([now], [before])
    assert re.search(r"^  peer_lost +0 +\+3  4$", text, re.MULTILINE)
    assert re.search(r"^  no_memory +0 +\+1  1$", text, re.MULTILINE)


def test_the_whole_view():
    prefill = Answers(
        "prefill-0", "prefill", 10.0, {"ready": True, "reasons": []}, server({**STATUS, "stalls": None}), None,
        server(PEERS["prefill"]),
    )  # fmt: skip
    lines = text_of([prefill, decode()]).splitlines()
    assert lines[0].startswith("sglang-pd top  2023-11-1")
    assert lines[0].endswith("1 prefill, 1 decode")
    assert lines[2:6] == [
        "server                  state         up  live oldest  new/s done/s fail/s  KV/s",
        "prefill-0               ready      1m00s     2   0.2s      -      -      -     -",
        "decode-0                ready      1m00s     2   0.2s      -      -      -     -",
        "  ! stall: 2 rooms waiting with 10.0.0.7:8998 for 31 s: waiting_for_peer",
    ]
    assert "prefill-0               waiting 2 (0.2s)" in lines
    assert "  prefill-0 > 10.0.0.2:41233             live 2   ok 1022 failed 1    0.2s ago" in lines
    assert "  waiting          0.5s of 2.0s   decode-0 > 10.0.0.7:8998" in lines
    assert "      room 17  rid a1" in lines


def test_names_and_ids_of_any_length_and_kind_fit():
    rooms = {**ROOMS, "rooms": [{**ROOMS["rooms"][0], "rid": "\x1b[2Jx" * 60, "room": 2**63 - 1}]}
    long = decode(name="decode " + "very-long-host-name." * 6 + ":30001", rooms=server(rooms))
    text = text_of([long])
    assert "\x1b" not in text
    assert "~" in text
    assert len(max(text_of([long], width=120).splitlines(), key=len)) > 80


def test_what_tells_servers_apart_is_not_cut():
    text = text_of([decode(name="decode 192.168.100.100:30001"), decode(name="decode 192.168.100.100:30002")])
    assert ":30001 " in text
    assert ":30002 " in text
    assert "decode 127.0.0.1:30002 " in text_of([decode(name="decode 127.0.0.1:30002")])


def test_a_low_window_says_what_is_missing():
    view = [screen.Line(str(number)) for number in range(30)]
    assert screen.fitted(view, 30) == view
    cut = screen.fitted(view, 10)
    assert len(cut) == 10
    assert cut[-1].text == "... 21 more lines: make the window higher"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.04, "0.0s"), (9.9, "9.9s"), (42.0, "42s"), (312.0, "5m12s")]
)
def test_ages(seconds, text):
    assert screen.age(seconds) == text


def test_the_reasons_of_a_server_that_is_not_ready_come_with_a_503():
    body = {"ready": False, "reasons": ["it is starting"]}
    replies = {name: Reply(path, 200, body={"ranks": []}) for name, path in fetch.PATHS.items()}
    found = fetch.answers("d", "decode", 0.0, {**replies, "ready": Reply("/pd/ready", 503, body=body)})
    assert (found.ready, found.problem) == (body, None)


def test_a_refused_status_says_so():
    replies = {name: Reply(path, 401, body={"error": "Unauthorized"}) for name, path in fetch.PATHS.items()}
    found = fetch.answers("d", "decode", 0.0, replies)
    assert found.problem == "/pd/status answered 401"
    assert read(found).state == SILENT


def test_the_gateway_is_not_asked():
    targets = [Target("gateway", "gateway", "http://x:1"), Target("decode-0", "decode", "http://x:2")]
    assert [target.name for target in fetch.servers(targets)] == ["decode-0"]


@pytest.fixture
def hanging():
    """A server that takes connections and answers nothing, by its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_server_that_hangs_costs_the_timeout_once(hanging: str):
    targets = [Target(name, "decode", hanging) for name in ("a", "b", "c")]
    start = time.monotonic()
    found = fetch.ask(targets, fetch.keys(targets, None), timeout_s=0.5)
    assert time.monotonic() - start < 1.4
    assert [read(one).state for one in found] == [SILENT] * 3
    assert all(one.problem for one in found)


def test_once_prints_one_view_in_80_columns():
    looks = iter([[decode()], [decode(12.0, status=server(told(started=140)))]])
    view, out = loop.View(lambda: next(looks), lambda: AT), io.StringIO()
    view.look()
    view.look()
    loop.print_once(view, out)
    assert view.well
    assert out.getvalue().count("sglang-pd top") == 1
    assert re.search(r"^decode-0 +ready +1m00s +2 +0.2s +10.0 +0.0 +0.0 +0K$", out.getvalue(), re.MULTILINE)
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("text", ["0.4", "61", "nan", "soon", "-1"])
def test_a_bad_interval_is_refused(text: str):
    with pytest.raises(UserError, match=rf"--interval '{text}' is not possible; allowed: 0.5 to 60 seconds"):
        commands.interval_of(text)
