import os
from pathlib import Path

import pytest

from harness import cluster_fakes as fakes
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.procfs import Identity, identify
from sglang_pd.cluster.state import Busy, ClusterDir, ClusterState, Failure, ProcessState, is_stale, port_allocation
from sglang_pd.errors import UserError


def state(supervisor: Identity, phase: Phase = Phase.READY) -> ClusterState:
    process = ProcessState(
        "gateway", "gateway", 1, "http://127.0.0.1:1", None, "/log", Identity(5, 6), Phase.READY, "2/2"
    )
    return ClusterState("c", "/m", "m", supervisor, 1.5, [process], phase, 2.5, Failure("gateway", "why", "/log"), [1])


def me() -> Identity:
    own = identify(os.getpid())
    assert own is not None
    return own


def test_state_survives_the_file(tmp_path: Path) -> None:
    folder = ClusterDir(tmp_path)
    assert folder.load() is None
    folder.save(state(me()))
    assert folder.load() == state(me())
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]
    folder.forget()
    assert folder.load() is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"version": 99}', '{"version": 1}'])
def test_a_file_that_is_no_state_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UserError, match=r"state\.json cannot be read"):
        ClusterDir(tmp_path).load()


def test_stale_is_told_by_pid_and_start_time() -> None:
    own = me()
    assert not is_stale(state(own))
    assert is_stale(state(Identity(own.pid, own.started - 1)))
    assert not is_stale(state(Identity(own.pid, own.started - 1), Phase.STOPPED))


def test_lock_excludes_and_ends_with_its_file(tmp_path: Path) -> None:
    folder = ClusterDir(tmp_path / "c")
    assert not folder.is_locked()
    handle = folder.lock()
    with pytest.raises(Busy, match="already up"):
        folder.lock()
    assert folder.is_locked()
    os.close(handle)
    assert not folder.is_locked()


def test_ports_of_clusters_that_run_are_taken(tmp_path: Path) -> None:
    running, gone, own = (ClusterDir(tmp_path / name) for name in ("running", "gone", "own"))
    locks = [running.lock(), own.lock()]
    os.close(gone.lock())
    for folder in (running, gone, own):
        folder.save_plan(fakes.plan(folder.name))
    with port_allocation(own) as taken:
        assert taken == set(running.load_plan().ports)
    for lock in locks:
        os.close(lock)


@pytest.mark.parametrize("name", ["../x", ""])
def test_a_name_cannot_leave_the_home(name: str) -> None:
    with pytest.raises(UserError):
        ClusterDir.named(name)
