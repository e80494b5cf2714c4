"""Decode's held pages, with upstream's own queue and the manager's own accounting of acknowledgements."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from sglang.srt.disaggregation.common.conn import CommonKVManager
from sglang.srt.disaggregation.decode import DecodeTransferQueue

from sglang.srt.disaggregation.reliable import holding
from sglang.srt.disaggregation.reliable.control import Supervisor
from sglang.srt.disaggregation.reliable.quarantine import Release, Writer
from sglang.srt.disaggregation.reliable.receiver import ReliableKVReceiver

ROOM, PAGES = 7, 5


class Manager(holding.Holding, CommonKVManager):
    """Upstream's acknowledgements and our quarantine, without sockets and buffers."""

    def __init__(self):
        self._deferred_abort_ack_tracker = {}
        self._deferred_abort_generation = 0
        self.control = Supervisor()
        self.enable_deferred_decode_kv_release = True
        self.quarantine = holding.Quarantine()


class Queue(DecodeTransferQueue):
    """Upstream's hold-back alone; a request's pages are its number in ``given_back``."""

    def __init__(self):
        self.given_back = []
        self._deferred_releases = []
        self.deferred_kv_release_timeout = 30.0
        self.enable_staging = self.enable_host_receive = False
        self.gloo_group = None
        self.metadata_buffers = SimpleNamespace(clear_slot=lambda idx: None)
        self.req_to_metadata_buffer_idx_allocator = SimpleNamespace(free=lambda idx: None)
        self.scheduler = SimpleNamespace(metrics_reporter=SimpleNamespace(enable_metrics=False))

    def _release_request(self, decode_req):
        self.given_back.append(decode_req.req.bootstrap_room)


@pytest.fixture(autouse=True)
def hooked(monkeypatch):
    """The hooks as the registry attaches them; one rank, so upstream's collective is a no-op."""

    def before(hook, original):
        return lambda *args: (hook(*args), original(*args))[1]

    monkeypatch.setattr(dist, "get_world_size", lambda group: 1)
    for name, hook in (("_defer_release", holding.hold), ("_do_release", holding.release)):
        monkeypatch.setattr(Queue, name, before(hook, getattr(DecodeTransferQueue, name)), raising=False)


@contextlib.contextmanager
def listening(code: str = "input()"):
    """A process that listens on a port of its own, and does nothing else: (process, writer)."""
    body = f"import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); {code}"
    with subprocess.Popen([sys.executable, "-c", body], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        yield process, Writer("127.0.0.1", int(process.stdout.readline()))
        process.send_signal(signal.SIGCONT)
        process.kill()


def held(queue: Queue, manager: Manager, *writers: Writer):
    receiver = ReliableKVReceiver.__new__(ReliableKVReceiver)
    receiver.kv_mgr, receiver.bootstrap_room, receiver.bootstrap_addr = manager, ROOM, "127.0.0.1:8998"
    receiver.pages, receiver.abort_notified, receiver._cleared = PAGES, True, True
    receiver.bootstrap_infos = [{"rank_ip": writer.ip, "rank_port": writer.port} for writer in writers]
    manager.register_deferred_abort_room(ROOM)
    request = SimpleNamespace(
        kv_receiver=receiver, req=SimpleNamespace(bootstrap_room=ROOM), metadata_buffer_index=3, host_staged=False
    )
    queue._defer_release(request)
    return request


NOBODY = Writer("127.0.0.1", 1)


def test_pages_are_given_back_when_all_ranks_acknowledged():
    queue, manager = Queue(), Manager()
    held(queue, manager, Writer("127.0.0.1", 1), Writer("127.0.0.1", 2))
    assert manager.quarantine.counts().pages == PAGES
    manager.note_abort_ack(ROOM, prefill_rank=0, generation=1)
    queue.resolve_deferred_releases()
    assert queue.given_back == []
    manager.note_abort_ack(ROOM, prefill_rank=1, generation=1)
    queue.resolve_deferred_releases()
    assert queue.given_back == [ROOM]
    counts = manager.quarantine.counts()
    assert (counts.pages, counts.released[Release.ACKNOWLEDGED]) == (0, 1)


def test_pages_are_given_back_when_the_writer_is_gone():
    queue, manager = Queue(), Manager()
    manager.watch_writers()
    with listening() as (process, writer):
        held(queue, manager, writer)
        process.kill()
        process.wait()
        deadline = time.monotonic() + 20
        while not queue.given_back:
            assert time.monotonic() < deadline
            queue.resolve_deferred_releases()
            time.sleep(0.01)
    assert manager.quarantine.counts().released[Release.PROVEN_DEAD] == 1


def test_without_a_proof_they_are_held_far_longer_than_upstream_does_and_then_it_is_an_error(monkeypatch, caplog):
    monkeypatch.setenv("SGLANG_PD_QUARANTINE_TIMEOUT", "1000")
    queue, manager = Queue(), Manager()
    held(queue, manager, NOBODY)
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 999)
    queue.resolve_deferred_releases()
    assert queue.given_back == []
    monkeypatch.setattr(time, "monotonic", lambda: now + 1001)
    with caplog.at_level(logging.ERROR):
        queue.resolve_deferred_releases()
    assert queue.given_back == [ROOM]
    assert manager.quarantine.counts().released[Release.TIMEOUT] == 1
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"room={ROOM} pages={PAGES} peer=127.0.0.1:8998" in line


def test_a_rank_that_only_holds_for_another_waits_for_nobody():
    queue, manager = Queue(), Manager()
    request = held(queue, manager, NOBODY)
    queue._deferred_releases.clear()
    manager.quarantine.clear()
    request.kv_receiver.abort_notified = False
    queue._defer_release(request)
    queue.resolve_deferred_releases()
    assert queue.given_back == [ROOM]
    assert manager.quarantine.counts().released[Release.ACKNOWLEDGED] == 1


def test_the_pool_is_torn_down():
    manager = Manager()
    held(Queue(), manager, NOBODY)
    queue = SimpleNamespace(scheduler=SimpleNamespace(disagg_decode_prealloc_queue=SimpleNamespace(kv_manager=manager)))
    holding.forget(None, queue)
    assert manager.quarantine.counts().pages == 0


def test_a_process_is_gone_when_nobody_listens_on_its_port():
    with listening() as (process, writer):
        assert not holding.is_gone(writer)
        process.kill()
        process.wait()
        assert holding.is_gone(writer)


def test_a_stopped_process_is_not_gone():
    with listening() as (process, writer):
        os.kill(process.pid, signal.SIGSTOP)
        assert not holding.is_gone(writer)


def test_a_process_whose_backlog_is_full_is_not_gone():
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        writer = Writer("127.0.0.1", server.getsockname()[1])
        for _ in range(4):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex((writer.ip, writer.port))
        assert not holding.is_gone(writer)
