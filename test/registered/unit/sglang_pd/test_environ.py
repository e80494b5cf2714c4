from pathlib import Path

import pytest

from sglang_pd import environ
from sglang_pd.environ import EnvError, envs

ROOT = Path(__file__).parents[4]


def test_default_where_not_set():
    assert envs.SGLANG_PD_CPU_PLATFORM.get({}) is True


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("TRUE", True), ("0", False), ("n", False)])
def test_bool_values(text, value):
    assert envs.SGLANG_PD_PRELOAD.get({"SGLANG_PD_PRELOAD": text}) is value


@pytest.mark.parametrize("text", ["", "2", "on", "maybe"])
def test_bad_bool_names_variable_value_and_what_is_allowed(text):
    with pytest.raises(EnvError) as error:
        envs.SGLANG_PD_PRELOAD.get({"SGLANG_PD_PRELOAD": text})
    assert "SGLANG_PD_PRELOAD" in str(error.value)
    assert repr(text) in str(error.value)
    assert "1, true, yes" in str(error.value)


def test_path_is_expanded_and_must_be_absolute():
    assert envs.SGLANG_PD_HOME.get({"SGLANG_PD_HOME": "~/x"}) == Path.home() / "x"
    with pytest.raises(EnvError, match="absolute"):
        envs.SGLANG_PD_HOME.get({"SGLANG_PD_HOME": "x/y"})


def test_validate_lists_every_bad_value():
    with pytest.raises(EnvError) as error:
        environ.validate({"SGLANG_PD_HOME": "x", "SGLANG_PD_PRELOAD": "7", "SGLANG_PD_CPU_PLATFORM": "1"})
    assert "SGLANG_PD_HOME" in str(error.value)
    assert "SGLANG_PD_PRELOAD" in str(error.value)
    assert "CPU_PLATFORM" not in str(error.value)


def test_unknown_name_is_warned_about_with_the_nearest_known_one():
    warnings = environ.validate({"SGLANG_PD_PRELOD": "1", "SGLANG_OTHER": "1", "PATH": "/bin"})
    assert warnings == ["unknown variable SGLANG_PD_PRELOD; the nearest known one is SGLANG_PD_PRELOAD"]


def test_set_default_lets_the_user_win(monkeypatch):
    monkeypatch.setenv("UPSTREAM_THING", "mine")
    assert not environ.set_default("UPSTREAM_THING", "ours")
    assert environ.upstream("UPSTREAM_THING") == "mine"
    monkeypatch.delenv("UPSTREAM_THING")
    assert environ.set_default("UPSTREAM_THING", "ours")
    assert environ.upstream("UPSTREAM_THING") == "ours"


def test_the_page_is_what_the_registry_says():
    assert (ROOT / "docs/environment.md").read_text() == environ.markdown(), "run: make docs"


def test_every_variable_has_help():
    assert all(field.help for field in environ.fields().values())
