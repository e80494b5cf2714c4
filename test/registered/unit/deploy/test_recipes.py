"""The recipes: their command lines are understood by what they start, and their variables exist."""

import argparse
import re
import shlex
from pathlib import Path

import pytest

from sglang_pd import environ

RECIPE = Path(__file__).parents[4] / "docs/recipes/deepseek-v4-flash.md"
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"^```bash\n(.*?)^```", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
SERVERS = [command for command in COMMANDS if "sglang.launch_server" in command]
VARIABLES = dict(part.split("=", 1) for command in COMMANDS if command[0] == "export" for part in command[1:])


def test_the_settings_are_those_of_the_deployment():
    assert VARIABLES == {
        "SGLANG_DSV4_BF16_INDEX_K": "1",
        "SGLANG_SM120_MMA_TARGET_CTAS": "512",
        "SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "0",
    }
    assert [command[command.index("--disaggregation-mode") + 1] for command in SERVERS] == ["prefill", "decode"]
    for command in SERVERS:
        text = " ".join(command)
        for part in (
            "--cuda-graph-max-bs-decode 96",
            "--disable-overlap-schedule",
            "--disaggregation-transfer-backend nixl",
        ):
            assert part in text


@pytest.mark.parametrize("command", SERVERS, ids=["prefill", "decode"])
def test_upstream_understands_the_servers_flags(command):
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found, unknown = parser.parse_known_args(command[3:])
    assert unknown == []
    assert found.tp_size == 4


def test_the_gateway_understands_its_flags():
    from smg.router_args import RouterArgs

    [command] = [command for command in COMMANDS if "smg" in command]
    parser = argparse.ArgumentParser()
    RouterArgs.add_cli_args(parser)
    assert parser.parse_known_args(command[4:])[1] == []


def test_variables_are_declared_and_have_good_values(monkeypatch: pytest.MonkeyPatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    assert environ.validate() == []
    named = set(re.findall(r"\bSGLANG_(?:PD|DSV4_BF16|SM120_MMA)_\w+[a-zA-Z]\b", RECIPE.read_text()))
    assert named
    assert named - set(vars(environ.Envs)) == set()


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)", RECIPE.read_text()):
        assert (RECIPE.parent / target).exists(), target
