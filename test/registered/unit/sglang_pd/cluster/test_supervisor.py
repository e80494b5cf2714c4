"""The supervisor with real processes: whatever ends, and however, nothing is left."""

from __future__ import annotations

import http.client
import os
import signal

import pytest

from harness import cluster_fakes as fakes
from harness.fake_cluster import PATIENCE_S, Cluster, eventually
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.ports import listening
from sglang_pd.cluster.procfs import alive
from sglang_pd.cluster.state import ClusterState


def test_up_gets_ready_and_ctrl_c_leaves_nothing(cluster: Cluster) -> None:
    plan = fakes.plan("c")
    up = cluster.up(plan)
    state = cluster.ready()
    assert all(one.ready_s is not None and one.phase is Phase.READY for one in state.processes)
    assert state.ready_s is not None
    output = cluster.wait_for_line(up, "Ctrl-C stops it")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    assert "is ready after" in output
    assert f"curl -s {plan.gateway.url}/v1/chat/completions" in output
    cluster.gone()
    assert listening(plan.ports) == []
    assert not cluster.folder.is_locked()


def test_lines_tell_the_phases(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c", server="never"))
    cluster.wait_for_line(up, "prefill-0  warming up")
    up.send_signal(signal.SIGTERM)
    up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    cluster.gone()


def test_one_dies_at_start_and_the_rest_is_stopped(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c", decode="die"))
    output, _ = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 1
    assert "decode-0 ended by itself: exit code 3" in output
    assert "RuntimeError: the fake model is broken" in output
    assert "is ready" not in output
    cluster.gone()
    shown = cluster.command("status", "--name", "c")
    assert shown.returncode == 1
    assert "RuntimeError: the fake model is broken" in shown.stdout


@pytest.mark.parametrize("detach", [False, True])
def test_one_dies_later_and_the_rest_is_stopped(cluster: Cluster, detach: bool) -> None:
    plan = fakes.plan("c", server="die-when-asked")
    up = cluster.up(plan, *(["--detach"] if detach else []))
    cluster.ready()
    if detach:
        up.communicate(timeout=PATIENCE_S)
        assert up.returncode == 0
    connection = http.client.HTTPConnection("127.0.0.1", plan.servers[0].port, timeout=PATIENCE_S)
    connection.request("GET", "/die")
    cluster.gone()
    connection.close()
    if not detach:
        output, _ = up.communicate(timeout=PATIENCE_S)
        assert up.returncode == 1
        assert "prefill-0 ended by itself: exit code 4" in output
        assert "FatalError: asked to die" in output
    state = cluster.folder.load()
    assert state is not None
    assert state.phase is Phase.FAILED
    assert state.failure is not None
    assert state.failure.process == "prefill-0"


def test_too_late_is_a_failure(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c", decode="never", timeout_s=1.5))
    output, _ = up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 1
    assert "decode-0 not ready after 1.5 s (it is warming up)" in output
    cluster.gone()


@pytest.mark.parametrize("detach", [False, True])
def test_kill_9_of_the_supervisor_leaves_nothing(cluster: Cluster, detach: bool) -> None:
    up = cluster.up(fakes.plan("c"), *(["--detach"] if detach else []))
    os.kill(cluster.ready().supervisor.pid, signal.SIGKILL)
    output, _ = up.communicate(timeout=PATIENCE_S)
    cluster.gone()
    if detach:
        assert up.returncode == 0
        assert cluster.command("status", "--name", "c").returncode == 1
        assert "had been killed" in cluster.command("down", "--name", "c").stdout
        assert cluster.command("down", "--name", "c").returncode == 2
    else:
        assert up.returncode == 1
        assert "supervisor ended without stopping" in output


def test_kill_9_of_the_foreground_command_stops_the_cluster(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c"))
    cluster.ready()
    up.kill()
    cluster.gone()
    state = cluster.folder.load()
    assert state is not None
    assert state.phase is Phase.STOPPED


def test_stubborn_processes_and_their_helpers_are_killed(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c", server="stubborn", grace_s=0.5))
    cluster.ready()
    eventually(lambda: sum(b"helper" in command(one.pid) for one in cluster.processes()) == 2, "helpers run")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=PATIENCE_S)
    cluster.gone()


def test_a_second_ctrl_c_ends_the_grace(cluster: Cluster) -> None:
    up = cluster.up(fakes.plan("c", server="stubborn", grace_s=600))
    cluster.ready()
    up.send_signal(signal.SIGINT)
    eventually(lambda: phase(cluster.folder.load()) is Phase.STOPPING, "it is stopping")
    up.send_signal(signal.SIGINT)
    up.communicate(timeout=PATIENCE_S)
    assert up.returncode == 130
    cluster.gone()


def test_a_stale_state_is_cleaned_up_by_session(cluster: Cluster) -> None:
    """The helpers of a server that was killed with its supervisor outlive both, and are found all the same."""
    up = cluster.up(fakes.plan("c", server="stubborn"), "--detach")
    up.communicate(timeout=PATIENCE_S)
    eventually(lambda: sum(b"helper" in command(one.pid) for one in cluster.processes()) == 2, "helpers run")
    state = cluster.ready()
    os.kill(state.supervisor.pid, signal.SIGKILL)
    eventually(lambda: not any(alive(one.identity) for one in state.processes), "the servers are gone")
    assert len(cluster.processes()) == 2
    done = cluster.command("down", "--name", "c")
    assert done.returncode == 0, done.stderr
    assert cluster.processes() == []


def command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def phase(state: ClusterState | None) -> Phase | None:
    return state.phase if state else None
