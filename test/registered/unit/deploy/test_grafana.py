"""The dashboard: its queries name what exists, and its panels lie side by side."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from harness import promql

ROOT = Path(__file__).parents[4]
DASHBOARD = json.loads((ROOT / "deploy/grafana/sglang-pd.json").read_text())
RULES = yaml.safe_load((ROOT / "deploy/prometheus/sglang-pd.rules.yml").read_text())
RECORDED = {rule["record"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_queries_name_what_exists(panel):
    assert panel["targets"]
    for target in panel["targets"]:
        assert promql.names(target["expr"])
        assert promql.problems(target["expr"], RECORDED) == []
        assert 'pd=~"$pd", instance=~"$instance"' in target["expr"]
        assert target["expr"].count("(") == target["expr"].count(")")


def test_variables_name_what_exists():
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            assert promql.names(variable["definition"])
            assert promql.problems(variable["definition"]) == []


def test_panels_have_a_place_of_their_own():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool: Debian's prometheus")
def test_promtool_can_read_the_queries(tmp_path: Path):
    queries = [
        target["expr"].replace("$pd", ".*").replace("$instance", ".*") for p in PANELS for target in p["targets"]
    ]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
