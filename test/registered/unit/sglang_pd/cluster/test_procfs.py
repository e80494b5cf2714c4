import os
import signal
import subprocess
import sys

from harness.fake_cluster import eventually
from sglang_pd.cluster import memory
from sglang_pd.cluster.procfs import Identity, Stat, alive, identify, members, parse_stat, send, stat


def one(pid: int, parent: int = 1, session: int = 0, started: int = 100, state: str = "S") -> Stat:
    return Stat(pid, "p", state, parent, session or pid, 1, started)


def test_a_name_may_hold_anything() -> None:
    line = "42 (a) b (c) S 7 41 40 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2"
    assert parse_stat(line) == Stat(42, "a) b (c", "S", 7, 40, 1, 98765)


def test_members_are_descendants_and_session() -> None:
    root = one(10)
    child = one(11, parent=10, session=10)
    grandchild_with_own_session = one(12, parent=11)
    orphan = one(13, parent=1, session=10)
    child_of_orphan = one(14, parent=13)
    stranger, elder, zombie = one(20), one(9, parent=10, started=1), one(15, parent=10, state="Z")
    processes = [child_of_orphan, stranger, orphan, grandchild_with_own_session, child, root, elder, zombie]
    assert {p.pid for p in members(root.identity, processes)} == {10, 11, 12, 13, 14}
    assert {p.pid for p in members(root.identity, [p for p in processes if p is not root])} == {11, 12, 13, 14}


def test_a_pid_given_anew_has_no_members_of_the_old_one() -> None:
    assert members(Identity(10, 100), [one(10, started=200), one(11, parent=10, started=201)]) == []


def test_only_that_very_process_is_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        real = identify(process.pid)
        assert real is not None
        assert alive(real)
        impostor = Identity(real.pid, real.started - 1)
        assert not alive(impostor)
        assert not send(impostor, signal.SIGKILL)
        assert process.poll() is None
        assert send(real, signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    assert not alive(real)
    assert not send(real, signal.SIGKILL)
    assert stat(process.pid) is None or stat(process.pid) != real


def test_memory_of_this_process() -> None:
    mine = memory.of(os.getpid())
    assert mine.rss is not None
    assert mine.rss > 1 << 20
    assert mine.pss is None or 0 < mine.pss <= mine.rss


def test_memory_adds_and_does_not_guess() -> None:
    assert memory.Memory(1, 2) + memory.Memory(3, None) == memory.Memory(4, None)
    text = "x - y\nRss:   10 kB\nPss:    4 kB\nPss_Dirty: 1 kB\n"
    assert memory.parse_rollup(text) == memory.Memory(10240, 4096)


def test_a_process_whose_main_thread_alone_has_ended_still_runs() -> None:
    """The kernel shows it as a zombie, and its files and ports are open as long as a thread lives."""
    code = (
        "import ctypes, threading, sys\n"
        "threading.Thread(target=sys.stdin.read).start()\n"
        "print('up', flush=True)\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"up\n"
        eventually(lambda: stat(process.pid).state == "Z", "the main thread has ended")
        assert stat(process.pid).runs
    finally:
        process.kill()
        process.stdin.close()
        process.stdout.close()
    eventually(lambda: not stat(process.pid).runs, "all of it has ended")
    process.wait()
