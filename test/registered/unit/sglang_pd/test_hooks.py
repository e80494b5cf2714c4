"""The table against the installed upstream, and what a row that does not take looks like.

The live checks run in a subprocess: attaching hooks is for the life of a process.
"""

import dataclasses
import importlib
import subprocess
import sys

import pytest

from sglang_pd import upstream
from sglang_pd.hooks import HOOKS, Hook
from sglang_pd.upstream import Fingerprint


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.target.rpartition(".")[2])
def test_each_target_is_as_recorded(hook):
    assert upstream.broken([(hook.target, hook.recorded)]) == {}


@pytest.mark.parametrize("hook", HOOKS, ids=lambda hook: hook.target.rpartition(".")[2])
def test_each_row_says_why_and_until_when_and_loads(hook):
    assert hook.why
    assert hook.until
    module, _, name = hook.ours.partition(":")
    if not module.startswith("sglang."):  # those import upstream, and run in the test below
        assert callable(getattr(importlib.import_module(module), name))


def test_no_target_stands_twice_for_the_same_reason():
    targets = [(hook.target, hook.where) for hook in HOOKS]
    assert len(targets) == len(set(targets))


def test_no_target_has_two_rows_of_which_one_may_bypass_the_other():
    targets = [hook.target for hook in HOOKS if hook.kind in ("around", "replace")]
    assert len(targets) == len(set(targets))


LIVE = """
import sglang.srt.utils
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang_pd import hooks, startup
assert hooks.selected(), "no row is meant for this process"
assert hooks.not_live(hooks.selected()) == {}, hooks.not_live(hooks.selected())
startup.verify()

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.disaggregation.nixl import conn

# Another plugin wraps a function of ours' again: ours is still found beneath.
HookRegistry.register("sglang.srt.runtime_context.publish", lambda *a, **k: None, HookType.BEFORE)
HookRegistry._patched.discard("sglang.srt.runtime_context.publish")
HookRegistry.apply_hooks()
assert hooks.not_live(hooks.selected()) == {}

# Something takes a hook off: noticed, and the process exits with its name and reason.
conn.NixlKVManager.__init__ = conn.NixlKVManager.__init__.__wrapped__
startup.verify.cache_clear()
startup.verify()
"""


def test_live_in_a_process_and_refused_when_one_did_not_take():
    done = subprocess.run([sys.executable, "-c", LIVE], capture_output=True, text=True, timeout=200)
    assert done.returncode == 1, done.stderr
    assert "AssertionError" not in done.stderr
    last = done.stderr.strip().splitlines()[-2:]
    assert "refusing to start: these hooks did not take" in last[0]
    assert "NixlKVManager.__init__: sglang.srt.disaggregation.reliable.host:prepare is not attached" in last[1]


def moved(hook: Hook) -> Hook:
    return dataclasses.replace(hook, target=hook.target + "_moved")


def test_check_exits_non_zero_and_names_a_row_that_moved(monkeypatch, capsys):
    from sglang_pd import cli, hooks

    monkeypatch.setattr(hooks, "HOOKS", (moved(HOOKS[0]), *HOOKS[1:]))
    assert cli.main(["check", "--static"]) == 1
    printed = capsys.readouterr()
    assert "1 of" in printed.err
    assert "broken" in printed.out


def test_check_static_passes_on_the_pinned_version(capsys):
    from sglang_pd import cli

    assert cli.main(["check", "--static"]) == 0
    assert "broken" not in capsys.readouterr().out


def test_a_changed_source_is_broken():
    stale = Fingerprint(HOOKS[0].recorded.signature, "0" * 16)
    assert "digest" in upstream.broken([(HOOKS[0].target, stale)])[HOOKS[0].target]
