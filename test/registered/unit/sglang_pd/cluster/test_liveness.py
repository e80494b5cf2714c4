"""A server that stands still is told from one that is slow, and from one that is only starting."""

from __future__ import annotations

import os
import signal

from harness import cluster_fakes as fakes
from harness.fake_cluster import PATIENCE_S, Cluster, eventually
from sglang_pd.cluster.liveness import EVERY_S, Liveness
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.procfs import alive


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.silent: set[str] = set()
        self.asked = 0

    def answers(self, name: str) -> bool:
        self.asked += 1
        return name not in self.silent


def watched(after_s: float = 5.0) -> tuple[World, Liveness]:
    world = World()
    return world, Liveness(after_s, world.answers, lambda: world.now)


def later(world: World, liveness: Liveness, seconds: int, names: str = "ab") -> list[str]:
    found = []
    for _ in range(seconds):
        world.now += EVERY_S
        found += liveness.hung(names)
    return found


def test_one_that_answers_now_and_then_lives():
    world, liveness = watched()
    for _ in range(5):
        world.silent = {"a"}
        assert later(world, liveness, 4) == []
        world.silent = set()
        assert later(world, liveness, 1) == []


def test_one_that_does_not_hangs_and_is_told_once():
    world, liveness = watched()
    later(world, liveness, 2)
    world.silent = {"a"}
    assert later(world, liveness, 5) == []
    assert later(world, liveness, 1) == ["a"]
    assert later(world, liveness, 5) == [], "it counts anew, as another process would"


def test_one_that_was_away_counts_from_its_return():
    world, liveness = watched()
    world.silent = {"a"}
    later(world, liveness, 4)
    assert later(world, liveness, 10, names="b") == []
    assert later(world, liveness, 5) == []


def test_it_asks_once_a_second_at_most():
    world, liveness = watched()
    for _ in range(10):
        liveness.hung("ab")
    assert world.asked == 2


def test_a_stopped_server_is_replaced_and_the_rest_goes_on(cluster: Cluster) -> None:
    cluster.up(fakes.plan("c", hung_after_s=1.0), "--detach").communicate(timeout=PATIENCE_S)
    before = cluster.ready()
    stopped = next(one for one in before.processes if one.name == "decode-0")
    assert stopped.identity is not None
    os.kill(stopped.identity.pid, signal.SIGSTOP)

    def replaced() -> bool:
        state = cluster.folder.load()
        return state is not None and [one.restarts for one in state.processes] == [0, 1, 0]

    eventually(replaced, "decode-0 was started again")
    assert not alive(stopped.identity)
    eventually(lambda: all(one.phase is Phase.READY for one in cluster.ready().processes), "all are ready")
    assert "decode-0 answers nothing for 1 s: killed" in cluster.folder.supervisor_log.read_text()


def test_a_time_that_cannot_be_is_refused(cluster: Cluster, tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    done = cluster.command("up", "--model", str(tmp_path), "--hung-after", "0")
    assert done.returncode == 2
    assert "--hung-after 0 is not possible" in done.stderr
