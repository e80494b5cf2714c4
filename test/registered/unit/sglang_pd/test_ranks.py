"""The folder in which the ranks of a server announce themselves."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace

import pytest

from sglang_pd import ranks
from sglang_pd.cluster import procfs


@pytest.fixture
def home(tmp_path, monkeypatch):
    """What ``make_folder`` takes for the temporary folder; the variable it sets is gone again afterwards."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(ranks.VARIABLE, "/what/was/there")
    return tmp_path / f"sglang-pd-{os.getuid()}"


def test_a_server_has_a_folder_of_its_own_that_no_other_user_reads(home):
    ranks.make_folder()
    assert ranks.folder().parent == home
    assert ranks.folder().name.startswith(f"{os.getpid()}-")
    assert (ranks.folder().stat().st_mode & 0o777, home.stat().st_mode & 0o777) == (0o700, 0o700)


def test_the_processes_it_starts_are_told(home):
    ranks.make_folder()
    told = subprocess.run(
        [sys.executable, "-c", "from sglang_pd import ranks; print(ranks.folder())"], capture_output=True, text=True
    )
    assert told.stdout.strip() == str(ranks.folder())


def test_folders_of_servers_that_are_gone_are_removed_and_those_of_running_ones_stay(home):
    home.mkdir(mode=0o700)
    own = procfs.identify(os.getpid())
    gone, parent = home / f"{own.pid}-{own.started + 1}", procfs.identify(os.getppid())
    running = home / f"{parent.pid}-{parent.started}"
    for path in (gone, running):
        path.mkdir()
        (path / "rank-tp0.json").write_text("{}")
    (home / "notes.txt").write_text("not ours")
    ranks.make_folder()
    assert not gone.exists()
    assert (running / "rank-tp0.json").exists()
    assert (home / "notes.txt").exists()


def test_ranks_that_this_process_started_before_are_forgotten(home):
    ranks.make_folder()
    ranks.announce(ranks.folder(), "tp7", "decode", 1)
    ranks.make_folder()
    assert ranks.announced(ranks.folder()) == []


def test_a_folder_that_somebody_else_may_have_put_there_is_refused(home, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    home.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match=str(home)):
        ranks.make_folder()


def test_outside_a_server_there_is_none(monkeypatch):
    monkeypatch.delenv(ranks.VARIABLE, raising=False)
    with pytest.raises(RuntimeError, match=ranks.VARIABLE):
        ranks.folder()


def test_what_was_announced_is_found_by_name_once_per_rank(tmp_path):
    ranks.announce(tmp_path, "tp1", "decode", 2)
    ranks.announce(tmp_path, "tp0", "decode", 1)
    ranks.announce(tmp_path, "tp0", "prefill", 3)
    assert [(one.name, one.role, one.port) for one in ranks.announced(tmp_path)] == [
        ("tp0", "prefill", 3),
        ("tp1", "decode", 2),
    ]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_rank_lives_as_long_as_that_very_process(tmp_path):
    rank = ranks.announce(tmp_path, "tp0", "decode", 1)
    assert rank.lives
    assert not replace(rank, started=rank.started + 1).lives, "a later process with its pid"
    child = subprocess.Popen(["sleep", "100"])
    other = replace(rank, pid=child.pid, started=procfs.identify(child.pid).started)
    assert other.lives
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not other.lives, "a zombie"
    child.wait()
