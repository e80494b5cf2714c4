"""One process of a cluster is ended and started again; every other one goes on."""

from __future__ import annotations

import http.client
import signal

import pytest

from harness import cluster_fakes as fakes
from harness.fake_cluster import PATIENCE_S, Cluster, eventually
from sglang_pd.cluster.phases import Phase
from sglang_pd.cluster.plan import Plan
from sglang_pd.cluster.procfs import Identity, alive
from sglang_pd.cluster.state import ClusterState


def identities(state: ClusterState) -> dict[str, Identity | None]:
    return {one.name: one.identity for one in state.processes}


def up(cluster: Cluster, plan: Plan) -> ClusterState:
    cluster.up(plan, "--detach").communicate(timeout=PATIENCE_S)
    return cluster.ready()


@pytest.mark.parametrize("how", [[], ["--kill"]])
def test_another_process_on_the_same_port_and_the_rest_goes_on(cluster: Cluster, how: list[str]) -> None:
    before = identities(up(cluster, fakes.plan("c")))
    done = cluster.command("restart", "decode-0", *how, "--name", "c")
    assert done.returncode == 0, done.stderr
    state = cluster.ready()
    after = identities(state)
    assert {name for name in after if after[name] != before[name]} == {"decode-0"}
    decode = next(one for one in state.processes if one.name == "decode-0")
    assert (decode.phase, decode.restarts) == (Phase.READY, 1)
    assert f"pid {decode.identity.pid if decode.identity else 0}: " in done.stdout
    assert not alive(before["decode-0"])
    connection = http.client.HTTPConnection("127.0.0.1", decode.port, timeout=PATIENCE_S)
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200


def test_several_at_once_and_again(cluster: Cluster) -> None:
    up(cluster, fakes.plan("c"))
    for count in (1, 2):
        assert cluster.command("restart", "prefill-0", "decode-0", "--kill", "--name", "c").returncode == 0
        assert [one.restarts for one in cluster.ready().processes] == [count, count, 0]


def test_the_gateway_too(cluster: Cluster) -> None:
    up(cluster, fakes.plan("c"))
    assert cluster.command("restart", "gateway", "--name", "c").returncode == 0
    assert [one.restarts for one in cluster.ready().processes] == [0, 0, 1]


def test_stubborn_helpers_are_gone_before_the_new_one_starts(cluster: Cluster) -> None:
    up(cluster, fakes.plan("c", server="stubborn"))
    before = {one.pid for one in cluster.processes() if one.parent != 1}
    assert cluster.command("restart", "prefill-0", "--grace", "0.2", "--name", "c").returncode == 0
    state = cluster.ready()
    assert state.processes[0].restarts == 1
    old = before - {one.pid for one in cluster.processes()}
    assert len(old) == 2, "the server and its helper"


def test_an_end_that_nobody_asked_for_is_a_failure_still(cluster: Cluster) -> None:
    plan = fakes.plan("c", server="die-when-asked")
    up(cluster, plan)
    assert cluster.command("restart", "prefill-0", "--name", "c").returncode == 0
    http.client.HTTPConnection("127.0.0.1", plan.servers[0].port, timeout=PATIENCE_S).request("GET", "/die")

    def failed() -> bool:
        state = cluster.folder.load()
        return state is not None and state.phase is Phase.FAILED

    eventually(failed, "the cluster failed")


def test_one_that_does_not_come_back_is_said_to(cluster: Cluster) -> None:
    plan = fakes.plan("c")
    up(cluster, plan)
    cluster.folder.want_restart("decode-0")
    done = cluster.command("restart", "decode-0", "--timeout", "0", "--name", "c")
    assert done.returncode == 1
    assert "not ready in time: decode-0 (" in done.stderr


def test_bad_input(cluster: Cluster) -> None:
    none = cluster.command("restart", "decode-0", "--name", "c")
    assert none.returncode == 2
    assert "no cluster 'c' is up" in none.stderr
    up_ = cluster.up(fakes.plan("c"))
    cluster.ready()
    wrong = cluster.command("restart", "decode-7", "--name", "c")
    assert wrong.returncode == 2
    assert "no process 'decode-7' in cluster 'c'; there are: prefill-0, decode-0, gateway" in wrong.stderr
    up_.send_signal(signal.SIGINT)
    up_.communicate(timeout=PATIENCE_S)


def test_what_was_asked_for_is_forgotten_with_the_cluster(cluster: Cluster) -> None:
    cluster.folder.want_restart("decode-0")
    cluster.folder.forget()
    assert not cluster.folder.restart_wanted("decode-0")
