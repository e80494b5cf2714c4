"""The launcher with a real preload process, whose modules are a small fake instead of a server's."""

import os
import signal
import sys
import textwrap

import pytest

from harness.fake_cluster import eventually
from sglang_pd.cluster.launcher import SubprocessLauncher
from sglang_pd.cluster.preload_launcher import PreloadLauncher, is_server
from sglang_pd.cluster.procfs import identify, stat


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """A preload process that imports quickly; ``sglang.launch_server`` is a script of ours that does as it is told."""
    fake = tmp_path / "site" / "sglang"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("")
    (fake / "launch_server.py").write_text(
        textwrap.dedent("""
            import os, signal, sys, time
            print("argv", sys.argv[1:], "env", os.environ.get("TOLD"), "pid", os.getpid(), flush=True)
            if sys.argv[1] == "wait":
                signal.pause()
            sys.exit(int(sys.argv[2]))
        """)
    )
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "from sglang_pd.cluster import preload\npreload.MODULES = ('json',)\npreload.attach_hooks = lambda: None\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    one = PreloadLauncher(tmp_path / "preload.log")
    yield one
    one.close()


def start(launcher, log, *args, env=None):
    argv = ["-m", "sglang.launch_server", *args]
    eventually(lambda: launcher.can_start(argv), "the preload process is ready")
    return launcher.start("server", argv, log, env or {})


def test_forks_with_arguments_environment_and_log(launcher, tmp_path):
    pid = start(launcher, tmp_path / "log", "exit", "7", env={"TOLD": "yes"})
    assert eventually(lambda: launcher.ended(pid), "it ended") == "exit code 7"
    assert (tmp_path / "log").read_text() == f"argv ['exit', '7'] env yes pid {pid}\n"


def test_a_forked_process_leads_its_session_under_the_preload_process(launcher, tmp_path):
    pid = start(launcher, tmp_path / "log", "wait")
    assert launcher.ended(pid) is None
    assert stat(pid).session == pid
    assert stat(pid).parent == launcher.preload.pid
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: launcher.ended(pid), "it ended") == "killed by SIGKILL"


def test_the_end_of_the_preload_process_ends_what_it_forked_and_is_said(launcher, tmp_path):
    pid = start(launcher, tmp_path / "log", "wait")
    process = identify(pid)
    os.kill(launcher.preload.pid, signal.SIGKILL)
    assert eventually(lambda: launcher.ended(pid), "noticed") == "with the preload process (killed by SIGKILL)"
    eventually(lambda: identify(pid) != process or not stat(pid).runs, "the kernel killed it")
    with pytest.raises(OSError, match="the process that imports for all servers ended"):
        launcher.can_start(["-m", "sglang.launch_server"])
    launcher.close()


def test_anything_else_is_a_new_interpreter(launcher, tmp_path):
    argv = ["-c", "print('plain')"]
    assert not is_server(argv)
    assert launcher.can_start(argv)
    pid = launcher.start("gateway", argv, tmp_path / "log", {})
    assert eventually(lambda: launcher.ended(pid), "it ended") == "exit code 0"
    assert (tmp_path / "log").read_text() == "plain\n"


def test_fork_is_refused_beside_threads(monkeypatch, caplog):
    import multiprocessing
    from types import SimpleNamespace

    from sglang_pd.cluster import preload

    chosen = []
    monkeypatch.setattr(multiprocessing, "set_start_method", lambda method, force: chosen.append(method))
    args = SimpleNamespace(dp_size=1, tokenizer_worker_num=1)
    monkeypatch.setattr(preload, "thread_count", lambda: 2)
    preload.fork_helpers(None, args)
    assert "2 threads" in caplog.text
    monkeypatch.setattr(preload, "thread_count", lambda: 1)
    preload.fork_helpers(None, SimpleNamespace(dp_size=2, tokenizer_worker_num=1))
    assert chosen == []
    preload.fork_helpers(None, args)
    assert chosen == ["fork"]


@pytest.mark.parametrize(("value", "kind"), [("0", SubprocessLauncher), ("1", PreloadLauncher)])
def test_chosen_by_the_variable(monkeypatch, tmp_path, value, kind):
    from sglang_pd.cluster import gpus
    from sglang_pd.cluster.launcher import create

    monkeypatch.setenv("SGLANG_PD_PRELOAD", value)
    monkeypatch.setattr(gpus, "visible", lambda: 0)
    monkeypatch.setattr(sys, "executable", "/bin/true")
    chosen = create([("-m", "sglang.launch_server")], tmp_path / "log")
    assert type(chosen) is kind
    chosen.close()
    monkeypatch.setattr(gpus, "visible", lambda: 4)
    assert type(create([("-m", "sglang.launch_server")], tmp_path / "log")) is SubprocessLauncher
