"""The alerts: promtool's tests of the rules, and that each has a test, a section of the runbook, and real metrics."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import promql

ROOT = Path(__file__).parents[4]
RULES = ROOT / "deploy/prometheus/sglang-pd.rules.yml"
TESTS = sorted((ROOT / "deploy/prometheus/tests").glob("*.test.yml"))
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
RECORDED = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: Debian's prometheus")


def anchors(page: Path) -> set[str]:
    """The addresses of a page's sections, as they are made of their headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@needs_promtool
def test_the_rules_are_well_formed():
    done = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS) + len(RECORDED)} rules found" in done.stdout


@needs_promtool
def test_alerts_fire_on_their_fault_and_on_nothing_else():
    done = subprocess.run(["promtool", "test", "rules", *TESTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_every_alert_is_tested_and_explained(alert):
    faults = next(path for path in TESTS if path.name == "faults.test.yml").read_text()
    assert f'alertname="{alert["alert"]}"' in faults
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor == alert["alert"].lower()
    assert anchor in anchors(ROOT / page)
    assert alert["labels"]["severity"] in ("critical", "warning")


def test_the_page_explains_no_alert_that_is_not_there():
    explained = re.findall(r"^### (Pd\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
    assert explained == [alert["alert"] for alert in ALERTS]


def test_every_link_of_the_page_leads_somewhere():
    page = ROOT / "docs/operations.md"
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        other = page.parent / name if name else page
        assert other.exists(), target
        assert not anchor or anchor in anchors(other), target
    for path in re.findall(r"`(deploy/[\w./-]+\.\w+)`", page.read_text()):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", [RULES, *TESTS], ids=lambda path: path.name)
def test_metrics_labels_and_their_values_exist(path: Path):
    assert promql.problems(path.read_text(), RECORDED) == []
    assert promql.names(path.read_text())


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.name)
def test_what_the_docs_name_exists(path: Path):
    assert promql.problems(path.read_text(), RECORDED) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("rate(sglang:pd_room_started_total[5m])", "no such metric: sglang:pd_room_started_total"),
        ("sglang:pd_phase_seconds_buckets", "no such metric: sglang:pd_phase_seconds_buckets"),
        ("sglang:num_runing_reqs", "no such metric: sglang:num_runing_reqs"),
        ("pd:rooms_ended:new5m > 0", "no such metric: pd:rooms_ended:new5m"),
        ('sglang:pd_rooms_live{reason="peer_lost"}', "sglang:pd_rooms_live has no label reason"),
        ('sglang:pd_rooms_live{phase="wait"}', "sglang:pd_rooms_live: no phase matches 'wait'"),
        ('pd:rooms_ended:new10m{reason=~"peer_(lost|gone)"}', "pd:rooms_ended:new10m: no reason matches 'peer_gone'"),
    ],
)
def test_a_wrong_name_is_found(text: str, problem: str):
    assert promql.problems(text, {"pd:rooms_ended:new10m"}) == [problem]


def test_a_real_scrape_has_what_rules_and_dashboard_name():
    # Of a prefill and a decode that served a tiny model on a CPU, with what this version exposes.
    scraped = set((Path(__file__).parent / "scraped_names.txt").read_text().split())
    named = promql.names(RULES.read_text() + (ROOT / "deploy/grafana/sglang-pd.json").read_text())
    assert {name for name in named if name.startswith("sglang:")} - scraped == set()
    assert promql.ours() - scraped == set()


def test_every_metric_is_somewhere_an_operator_looks():
    seen = RULES.read_text() + (ROOT / "deploy/grafana/sglang-pd.json").read_text()
    assert {name for name in promql.ours() if not name.endswith(("_sum", "_count"))} <= promql.names(seen)
