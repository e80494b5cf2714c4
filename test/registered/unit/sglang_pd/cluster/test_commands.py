from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from harness import cluster_fakes as fakes
from harness.fake_cluster import PATIENCE_S, Cluster
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.ports import listening
from sglang_pd.cluster.status import table_lines
from sglang_pd.cluster.words import curl_line, duration, size


@pytest.fixture
def model(tmp_path: Path) -> str:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


def test_importing_the_commands_is_cheap() -> None:
    code = (
        "import sys, sglang_pd.cluster.commands\n"
        "heavy = {'torch', 'sglang', 'rich', 'psutil', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr


def test_nothing_to_stop_and_nothing_to_show(cluster: Cluster) -> None:
    done = cluster.command("down")
    assert (done.returncode, done.stderr.strip()) == (2, "no cluster 'default' to stop; none is up")
    shown = cluster.command("status", "--name", "x")
    assert shown.returncode == 1
    assert "no cluster 'x'" in shown.stdout
    assert json.loads(cluster.command("status", "--json").stdout) == {"cluster": "default", "status": "none"}


def test_detach_status_down(cluster: Cluster) -> None:
    plan = fakes.plan("c")
    up = cluster.up(plan, "--detach")
    output, _ = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 0
    assert "sglang-pd down --name c" in output

    shown = cluster.command("status", "--name", "c", "--json")
    assert shown.returncode == 0
    facts = json.loads(shown.stdout)
    assert facts["status"] == "ready"
    assert facts["startup_seconds"] > 0
    assert [one["name"] for one in facts["processes"]] == ["prefill-0", "decode-0", "gateway"]
    for one in facts["processes"]:
        assert one["phase"] == "ready"
        assert one["startup_seconds"] > 0
        assert one["memory"]["rss_bytes"] == sum(part["rss_bytes"] for part in one["members"]) > 0
        assert Path(one["log"]).exists()
    text = cluster.command("status", "--name", "c").stdout
    assert all(len(line) <= 80 for line in text.splitlines() if "/" not in line)
    assert "total" in text

    again = cluster.command("up", "--name", "c")
    assert again.returncode == 2
    assert "already up" in again.stderr
    other = cluster.command("down")
    assert other.returncode == 2
    assert "up are: c" in other.stderr

    done = cluster.command("down", "--name", "c")
    assert done.returncode == 0, done.stderr
    assert "no process and no listening port is left" in done.stdout
    assert cluster.processes() == []
    assert listening(plan.ports) == []


def test_down_ends_a_foreground_up(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c"))
    cluster.ready()
    assert cluster.command("down", "--name", "c").returncode == 0
    output, _ = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 0, output


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--prefill", "0"], "--prefill 0"),
        (["--decode", "100"], "allowed: 1 to 64"),
        (["--port", "70000"], "allowed: 1 to 65535"),
        (["--name", "a/b"], "'a/b'"),
        (["--", "--host", "::"], "--host cannot be given"),
        (["--prefill-args", "'"], "--prefill-args"),
    ],
)
def test_bad_input(cluster: Cluster, model: str, argv: list[str], said: str) -> None:
    done = cluster.command("up", "--model", model, *argv)
    assert done.returncode == 2
    assert said in done.stderr


def test_missing_model(cluster: Cluster) -> None:
    done = cluster.command("up", "--model", "/nowhere/at-all")
    assert done.returncode == 2
    assert "/nowhere/at-all" in done.stderr


def test_port_in_use_names_port_and_process(cluster: Cluster, model: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = cluster.command("up", "--model", model, "--port", str(port))
    assert done.returncode == 2
    assert f"port {port} is in use by" in done.stderr


def test_curl_line_is_one_shell_line() -> None:
    words = shlex.split(curl_line("http://127.0.0.1:1", "it's"))
    assert words[:3] == ["curl", "-s", "http://127.0.0.1:1/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == "it's"


def test_status_table_fits_80_columns() -> None:
    memory = {"rss_bytes": 1 << 40, "pss_bytes": 1 << 35}
    widest = max((phase.value for phase in Phase), key=len)
    titles = ("main", "sglang::scheduler", "sglang::detokenizer", "tracker")
    process = {
        "name": "prefill-10", "role": "prefill", "pid": 123456, "port": 12345, "phase": widest, "detail": "",
        "startup_seconds": None, "uptime_seconds": 754.0, "memory": memory,
        "members": [{"pid": 123456, "title": title, **memory} for title in titles],
    }  # fmt: skip
    lines = table_lines({"memory": memory, "processes": [process], "preload": {"pid": 123457, **memory}})
    assert len(lines) == 1 + 1 + len(titles) + 1 + 1
    assert lines[-2].startswith("preload")
    assert max(map(len, lines)) <= 80, lines
    assert widest in lines[1]


def test_words() -> None:
    assert [duration(x) for x in (3.9, 61, 3700, 90000)] == ["3s", "1m01s", "1h01m", "1d01h"]
    assert [size(x) for x in (None, 2048, 5 << 20, 3 << 29)] == ["-", "2K", "5M", "1.5G"]
