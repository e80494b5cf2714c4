"""Bundles that ``test_doctor.py`` recorded from servers under real faults are still read, and still judged right."""

import gzip
import json
import re
from pathlib import Path

import pytest

from sglang_pd.doctor import bundle, report
from sglang_pd.doctor.case import Case
from sglang_pd.doctor.rules import RULES, judge

FOLDER = Path(__file__).parents[4] / "fixtures" / "doctor"
SERVER = r"127\.0\.0\.1:\d+"
SECRET = "sk-doctor-4711-secret"

# What each run of the recorder must begin with: the rule, the hop, and a request that has to be among its rooms.
RECORDED = {
    "healthy_busy": ("healthy", "none", None),
    "local_cluster": ("healthy", "none", None),
    "api_key": ("healthy|failing", ".*", None),
    "transfer_stalled": ("transfer_stalled", rf"prefill {SERVER} → decode {SERVER} \(KV transfer\)", "stalled-0"),
    "dead_scheduler": ("dead_scheduler", rf"prefill {SERVER}: HTTP → scheduler", "orphan-"),
    "collective": ("collective", rf"prefill {SERVER}: rank tp1", "step-"),
    "hung_front": ("unreachable", rf"gateway → decode {SERVER}", None),
    "mute_target": ("unreachable", rf"gateway → decode {SERVER}", None),
    "closed_port": ("unreachable", rf"gateway → decode {SERVER}", None),
    "starved": ("starved", "gateway → decodes", "alone-0"),
    "registration": ("registration", rf"decode {SERVER} → a prefill at {SERVER} \(bootstrap, {SERVER}\)", "astray-0"),
    "pool_exhausted": ("pool_exhausted", rf"decode {SERVER}: KV pool", "full-"),
    "layout_mismatch": ("layout_mismatch", rf"decode {SERVER} → prefill {SERVER} \(registration\)", "layout-0"),
    "one_bad_peer": ("one_bad_peer", rf"prefill {SERVER} → decode {SERVER}", "bad-0"),
    "clock_skew": ("clock_skew", "the doctor's machine ↔ all servers", None),
    "incident": ("stale_peer", rf"prefill {SERVER} → decode {SERVER} \(KV transfer, registration\)", "inflight-"),
}


def judged(name):
    case = Case(bundle.read(FOLDER / f"{name}.json.gz"))
    return case, judge(case)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_fault(name):
    rule, hop, rid = RECORDED[name]
    case, findings = judged(name)
    assert re.fullmatch(rule, findings[0].rule), [one.headline for one in findings]
    assert re.fullmatch(hop, findings[0].hop)
    if rid is not None:
        assert any((room.rid or "").startswith(rid) for room in findings[0].rooms)
    text = report.text(case, findings)
    assert max(map(len, text.splitlines())) <= report.WIDTH
    assert findings[0].headline[:20] in " ".join(text.split())
    json.dumps(report.to_data(case, findings))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_bundle_is_small_and_holds_no_secret(name):
    path = FOLDER / f"{name}.json.gz"
    assert path.stat().st_size < 60_000
    text = gzip.decompress(path.read_bytes()).decode()
    assert SECRET not in text
    assert "/work/" not in text
    assert "/tmp/pytest" not in text


def test_every_bundle_is_judged():
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json.gz" for name in RECORDED}


def test_every_rule_of_a_fault_that_can_be_made_here_is_recorded():
    """The others have evidence that is made up, in the tests beside this one."""
    made_up = {"stopped_scheduler", "control_thread", "watchdog", "gateway", "failing"}
    assert {rule.name for rule in RULES} - made_up == {rule for rule, _, _ in RECORDED.values()} & {
        rule.name for rule in RULES
    }
