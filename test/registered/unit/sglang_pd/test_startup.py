"""``register`` is called by upstream inside ``except Exception``: whatever is wrong must leave as SystemExit."""

import pytest

import sglang_pd
from sglang_pd import startup, upstream
from sglang_pd.environ import EnvError
from sglang_pd.upstream import ContractError


@pytest.mark.parametrize(
    "error",
    [ContractError("sglang 9 is installed"), EnvError("SGLANG_PD_X='y' is not valid"), RuntimeError("unforeseen")],
)
def test_every_failure_is_an_exit_that_says_why(monkeypatch, error):
    def fail():
        raise error

    monkeypatch.setattr(startup, "run", fail)
    with pytest.raises(SystemExit) as exit:
        sglang_pd.register()
    assert "refusing to start" in str(exit.value)
    assert str(error) in str(exit.value)


def test_run_refuses_another_version_before_anything_else(monkeypatch):
    monkeypatch.setattr(upstream.importlib.metadata, "version", lambda name: "0.5.22")
    with pytest.raises(ContractError, match=r"0\.5\.22.*0\.5\.23"):
        startup.run()


def test_run_refuses_a_bad_environment(monkeypatch):
    monkeypatch.setenv("SGLANG_PD_PRELOAD", "perhaps")
    with pytest.raises(EnvError, match="SGLANG_PD_PRELOAD='perhaps'"):
        startup.run()


def test_run_refuses_a_target_that_moved(monkeypatch):
    monkeypatch.setattr(upstream, "broken", lambda targets, root=None: {"sglang.x.y": "it moved"})
    with pytest.raises(ContractError, match=r"sglang\.x\.y: it moved"):
        startup.run()
