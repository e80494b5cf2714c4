"""The command: exit codes, the two forms of its output, and wrong input."""

import json
import re

import pytest

from harness.evidence import ended, room, server, silent, snapshot
from sglang_pd import cli
from sglang_pd.doctor import bundle

HEALTHY = snapshot(server("prefill"), server("decode", rooms=[ended(1)]))
FAULTY = snapshot(server("prefill", rooms=[room(1, "bootstrapping", 9.0)]), silent("decode"))
THIN = snapshot(server("prefill"))


@pytest.mark.parametrize(
    ("evidence", "code", "begins"),
    [(HEALTHY, 0, "HEALTHY: idle\n"), (FAULTY, 1, "FAULT, sure: decode-0 hangs"), (THIN, 3, "NOT ENOUGH EVIDENCE: ")],
)
def test_exit_codes(evidence, code, begins, tmp_path, capsys):
    path = tmp_path / "b.json"
    bundle.write(path, evidence)
    assert cli.main(["doctor", "--from-bundle", str(path)]) == code
    assert capsys.readouterr().out.startswith(begins)


def test_json(tmp_path, capsys):
    path = tmp_path / "b.json.gz"
    bundle.write(path, FAULTY)
    assert cli.main(["doctor", "--from-bundle", str(path), "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["findings"][0]["rule"] == "unreachable"


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--timeout", "0"], "--timeout '0' is not possible; allowed: 1 to 120 seconds"),
        (["--timeout", "nan"], "--timeout 'nan' is not possible"),
        (["--timeout", "soon"], "--timeout 'soon' is not possible"),
        (["--pid", "x"], "--pid 'x' is no process id; allowed: a whole number"),
        (["--prefill", "ftp://a"], "--prefill 'ftp://a' is no URL of a server; allowed: http://HOST:PORT"),
        (["--gateway", "http://a:99999"], "--gateway 'http://a:99999' is no URL"),
        (["--name", "x", "--pid", "1"], "--name cannot be given with --pid"),
        (["--name", "../x"], "--name '../x' cannot name a cluster"),
        (
            ["--from-bundle", "/b", "--decode", "http://a:1", "--stacks"],
            "--from-bundle cannot be given with --decode, --stacks",
        ),
        (["--from-bundle", "/nowhere/b"], "--from-bundle /nowhere/b: No such file"),
        (["--api-key-file", "/nowhere/k", "--decode", "http://a:1"], "--api-key-file /nowhere/k: cannot be read"),
        ([], "no cluster 'default' here, and no target given; give --prefill URL --decode URL"),
    ],
)
def test_wrong_input_is_refused_by_name(flags, text, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SGLANG_PD_HOME", str(tmp_path))
    assert cli.main(["doctor", *flags]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("content", ["", "two words\n"])
def test_a_file_with_no_key(content, tmp_path, capsys):
    path = tmp_path / "key"
    path.write_text(content)
    assert cli.main(["doctor", "--api-key-file", str(path), "--decode", "http://a:1"]) == 2
    assert re.search(r"it holds \d words; allowed: the key", capsys.readouterr().err)
