"""Prefill's bootstrap server over HTTP: whom it speaks of, and whether its ranks are there."""

import os
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
import requests

from harness.servers import free_port
from sglang.srt.disaggregation.reliable import heartbeats, incarnation
from sglang.srt.disaggregation.reliable.bootstrap_server import HEADER, KEEP_S, ReliableBootstrapServer
from sglang.srt.disaggregation.reliable.bootstrapping import SERVER, BootstrapError, Rank, locate
from sglang_pd import ranks

RANK = "0a1b2c3d@1764534196"
REGISTERED = {
    "attn_tp_size": 1, "attn_tp_rank": 0, "attn_cp_size": 1, "attn_cp_rank": 0, "attn_dp_size": 1, "attn_dp_rank": 0,
    "pp_size": 1, "pp_rank": 0, "system_dp_size": 1, "system_dp_rank": 0, "rank_ip": "127.0.0.1", "rank_port": 4711,
    "page_size": 4, "kv_cache_dtype": "auto", "incarnation": RANK,
    "configuration": {"page_size": 4},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ranks.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    server = ReliableBootstrapServer("127.0.0.1", free_port())
    address = f"127.0.0.1:{server.port}"
    deadline = time.monotonic() + 10
    while True:
        try:
            requests.get(f"http://{address}/health", timeout=1)
            break
        except requests.ConnectionError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    yield address
    server._loop.call_soon_threadsafe(server._loop.stop)
    server.thread.join(5)


def register(address: str, **more: Any) -> None:
    answer = requests.put(f"http://{address}/route", json={**REGISTERED, **more}, timeout=5)
    assert answer.status_code == HTTPStatus.OK


def test_a_rank_is_told_with_its_incarnation_and_that_of_the_server(address: str):
    register(address)
    found = locate(address, Rank(0, 0, 0, 0))
    assert (found["incarnation"], found[SERVER]) == (RANK, incarnation.mine())
    assert found["configuration"] == {"page_size": 4}
    assert heartbeats.ask(address) == incarnation.mine()


def test_a_stock_decode_reads_the_layout(address: str):
    """It takes no field that it does not know."""
    from sglang.srt.disaggregation.common.conn import PrefillServerInfo

    register(address)
    query = "prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
    answer = requests.get(f"http://{address}/route?{query}", timeout=5)
    assert PrefillServerInfo(**answer.json()).page_size == 4
    assert answer.headers[HEADER] == incarnation.mine()


@pytest.mark.parametrize("told", [None, "yesterday"])
def test_a_stock_rank_is_told_without(address: str, told: str | None):
    register(address, incarnation=told)
    assert "incarnation" not in locate(address, Rank(0, 0, 0, 0))


def test_a_rank_that_is_gone_is_not_hidden(address: str, folder: Path):
    register(address)
    child = os.fork()
    if child == 0:
        ranks.announce(folder, "tp0", "prefill", 1)
        os._exit(0)
    os.waitpid(child, 0)
    time.sleep(KEEP_S)
    with pytest.raises(ConnectionError, match=r"503.*tp0: its process \d+ is gone"):
        heartbeats.ask(address)
    with pytest.raises(BootstrapError, match=r"503.*tp0: its process \d+ is gone"):
        locate(address, Rank(0, 0, 0, 0))
