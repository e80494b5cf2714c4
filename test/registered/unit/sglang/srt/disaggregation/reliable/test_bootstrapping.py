"""What decode asks of bootstrap servers, with upstream's own queue of pending requests."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.decode import DecodePreallocQueue

from sglang.srt.disaggregation.reliable import bootstrapping
from sglang.srt.disaggregation.reliable.bootstrapping import BootstrapError, Bootstrapping, Rank
from sglang.srt.disaggregation.reliable.reasons import Reason

ADDRESS = "127.0.0.1:8998"


@pytest.fixture(autouse=True)
def servers(monkeypatch):
    """The incarnation of each bootstrap server by its address; none tells one but those in here."""
    servers = {}
    monkeypatch.setattr(bootstrapping.heartbeats, "ask", servers.get)
    return servers


class Upstream:
    """Upstream's manager as far as layouts go; ``answers`` by address: a layout, None, or an error."""

    def __init__(self, answers=()):
        self.prefill_info_table, self.connection_pool = {}, {}
        self.is_mla_backend = False
        self.connection_lock, self.watch = threading.Lock(), SimpleNamespace(ends={})
        self.answers, self.queried, self.asked = dict(answers), [], 0

    def try_ensure_parallel_info(self, address):
        self.asked += 1
        found = self.answers[address]
        if isinstance(found, Exception):
            raise found
        if found is not None:
            self.prefill_info_table[address] = found
        return found is not None

    def _ensure_prefill_recompute_executor(self):
        return self

    def submit(self, function, address, rooms):
        self.queried.append((tuple(rooms), Future()))
        return self.queried[-1][1]


class Manager(Bootstrapping, Upstream):
    pass


def layout(dp_size=1, tp_ranks=(0,), follow=False):
    return SimpleNamespace(
        dp_size=dp_size, follow_bootstrap_room=follow, target_cp_ranks=[0], target_tp_ranks=list(tp_ranks),
        target_tp_rank=tp_ranks[0], target_pp_ranks=[0, 1],
    )  # fmt: skip


class Receiver:
    conclude_state = abort_reason = None
    bootstrap_addr = ADDRESS

    def __init__(self):
        self.aborted_for, self.rank = None, None

    def abort(self):
        self.aborted_for = self.abort_reason.reason

    def init(self, rank):
        self.rank = rank


class Queue(DecodePreallocQueue):
    def __init__(self, manager, attempts=15):
        self.kv_manager, self.pending_reqs = manager, []
        self._prefill_dp_rank_queries = {}
        self._ensure_retry_count, self._ensure_last_attempt_time = {}, {}
        self._max_ensure_retries, self._ensure_retry_interval = attempts, 0.0

    def _init_receiver(self, decode_req, rank):
        decode_req.kv_receiver.init(rank)

    def _ensure_prefill_info(self, addr_to_reqs):
        return bootstrapping.keep_off_the_loop(DecodePreallocQueue._ensure_prefill_info, self, addr_to_reqs)

    def add(self, *rooms, address=ADDRESS):
        host, _, port = address.partition(":")
        for room in rooms:
            req = SimpleNamespace(
                bootstrap_room=room, bootstrap_host=host, bootstrap_port=int(port), disagg_prefill_dp_rank=None
            )
            self.pending_reqs.append(SimpleNamespace(req=req, kv_receiver=Receiver()))
        return self.pending_reqs[-len(rooms) :]

    def step(self):
        """What the scheduler's loop does with pending requests, the answers to its questions awaited in between."""
        self._resolve_pending_reqs()
        for answer in list(self.kv_manager._questions._open.values()):
            answer.exception(20)
        self._resolve_pending_reqs()


def test_a_layout_is_asked_for_and_its_requests_start_when_it_is_there():
    queue = Queue(Manager({ADDRESS: layout()}))
    one, two = queue.add(1, 2)
    queue.step()
    assert (one.kv_receiver.rank, two.kv_receiver.rank) == (0, 0)
    assert queue.pending_reqs == []


def test_upstream_counts_the_answers_and_gives_up_with_the_true_reason():
    queue = Queue(Manager({ADDRESS: None}), attempts=5)
    (one,) = queue.add(1)
    while queue.pending_reqs:
        assert one.kv_receiver.aborted_for is None
        queue.step()
    assert queue.kv_manager.asked == 5
    assert one.kv_receiver.aborted_for is Reason.BOOTSTRAP_UNREACHABLE
    assert one.kv_receiver.abort_reason is None


def test_a_prefill_that_does_not_fit_fails_its_requests_and_not_the_loop():
    queue = Queue(Manager({ADDRESS: RuntimeError("Page size mismatch"), "127.0.0.1:1": layout()}))
    (bad,), (good,) = queue.add(1), queue.add(2, address="127.0.0.1:1")
    queue.step()
    assert bad.kv_receiver.aborted_for is Reason.PEER_INCOMPATIBLE
    assert good.kv_receiver.rank == 0
    assert queue.pending_reqs == []


def test_dp_ranks_are_waited_for_by_their_own_requests_alone():
    manager = Manager()
    manager.prefill_info_table[ADDRESS] = layout(dp_size=2)
    queue = Queue(manager)
    one, two = queue.add(1, 2)
    queue._resolve_pending_reqs()
    ((rooms, answer),) = manager.queried
    assert rooms == (1, 2)
    queue._resolve_pending_reqs()
    assert queue.pending_reqs == [one, two]
    (three,) = queue.add(3)
    answer.set_result({"1": 1, "2": 0})
    queue._resolve_pending_reqs()
    assert (one.kv_receiver.rank, two.kv_receiver.rank) == (1, 0)
    assert queue.pending_reqs == [three]
    queue._resolve_pending_reqs()
    assert manager.queried[1][0] == (3,)


def test_a_question_whose_request_is_gone_is_asked_anew():
    manager = Manager()
    manager.prefill_info_table[ADDRESS] = layout(dp_size=2)
    queue = Queue(manager)
    one, two = queue.add(1, 2)
    queue._resolve_pending_reqs()
    queue.pending_reqs.remove(one)
    queue._resolve_pending_reqs()
    assert [rooms for rooms, _ in manager.queried] == [(1, 2), (2,)]
    manager.queried[1][1].set_result({"2": 1})
    queue._resolve_pending_reqs()
    assert two.kv_receiver.rank == 1


def test_a_request_that_names_its_rank_does_not_wait_for_those_that_do_not():
    manager = Manager()
    manager.prefill_info_table[ADDRESS] = layout(dp_size=2)
    queue = Queue(manager)
    one, two = queue.add(1, 2)
    two.req.disagg_prefill_dp_rank = 1
    queue._resolve_pending_reqs()
    assert two.kv_receiver.rank == 1
    assert queue.pending_reqs == [one]


def test_the_ranks_to_be_asked_for_are_those_without_a_connection(monkeypatch):
    manager = Manager()
    assert manager.ask_ranks(ADDRESS, 0) is None
    manager.prefill_info_table[ADDRESS] = layout(tp_ranks=(2, 3))
    monkeypatch.setattr(bootstrapping, "locate", lambda address, rank: {"rank": rank})
    found = manager.ask_ranks(ADDRESS, 1).result(20)
    assert list(found) == [Rank(1, 0, tp, pp) for tp in (2, 3) for pp in (1, 0)]
    manager.connection_pool[f"{ADDRESS}_1_0_2"] = []
    assert manager.ask_ranks(ADDRESS, 1) is None


class Waiting(Receiver):
    """A room that registered with a prefill, whose bootstrap server was ``server``."""

    def __init__(self, server):
        super().__init__()
        self.bootstrap_infos, self.given_up = [{"server": server}], None

    def give_up(self, reason):
        self.given_up = reason.reason


def known(servers, server="old"):
    """A manager that knows the prefill, two ranks of it, and has rooms there."""
    servers[ADDRESS] = server
    manager = Manager({ADDRESS: layout()})
    assert manager.ask_layout(ADDRESS).result(20)
    manager.forget_layout(ADDRESS)
    manager.connection_pool |= {f"{ADDRESS}_0_0_0": [{"server": server}], "127.0.0.1:89980_0_0_0": [{"server": "x"}]}
    manager.watch.ends |= {1: Waiting("old"), 2: Waiting("new"), 3: Waiting(None)}
    return manager


def test_a_prefill_that_was_replaced_is_found_out_and_only_its_own_rooms_end(servers):
    manager = known(servers)
    manager.met(ADDRESS, "new")
    assert [one.given_up for one in manager.watch.ends.values()] == [Reason.PEER_REPLACED, None, None]
    assert list(manager.connection_pool) == ["127.0.0.1:89980_0_0_0"]
    assert ADDRESS not in manager.prefill_info_table
    manager.met(ADDRESS, "new")


@pytest.mark.parametrize("server", ["old", None])
def test_one_that_is_the_same_or_does_not_tell_stays_known(servers, server):
    manager = known(servers)
    manager.met(ADDRESS, server)
    assert [one.given_up for one in manager.watch.ends.values()] == [None] * 3
    assert len(manager.connection_pool) == 2
    assert ADDRESS in manager.prefill_info_table


def test_the_layout_that_is_asked_for_after_a_replacement_is_the_new_ones(servers):
    manager = known(servers)
    manager.prefill_info_table.clear()
    servers[ADDRESS] = "new"
    assert manager.ask_layout(ADDRESS).result(20)
    manager.met(ADDRESS, "new")
    assert ADDRESS in manager.prefill_info_table


def test_a_prefill_that_is_configured_differently_is_refused_with_every_field(servers, monkeypatch):
    servers[ADDRESS] = "old"
    mine = {"page_size": 16, "kv_cache_dtype": "auto"}
    theirs = {"page_size": 32, "kv_cache_dtype": "fp8"}
    monkeypatch.setattr(bootstrapping.configuration, "of", lambda manager: mine)
    monkeypatch.setattr(bootstrapping, "locate", lambda address, rank: {"configuration": theirs})
    manager = Manager({ADDRESS: layout()})
    error = manager.ask_layout(ADDRESS).exception(20)
    assert isinstance(error, RuntimeError)
    assert "page_size: prefill 32, decode 16; kv_cache_dtype: prefill fp8, decode auto" in str(error)
    assert ADDRESS not in manager.prefill_info_table


@pytest.mark.parametrize(("status", "reason"), [(404, Reason.BOOTSTRAP_REJECTED), (None, Reason.BOOTSTRAP_UNREACHABLE)])
def test_why_a_rank_was_not_found(monkeypatch, status, reason):
    def get(*args, **kwargs):
        if status is None:
            raise bootstrapping.requests.ConnectionError("refused")
        return SimpleNamespace(status_code=status, text="no such rank")

    monkeypatch.setattr(bootstrapping.requests, "get", get)
    with pytest.raises(BootstrapError) as error:
        bootstrapping.locate(ADDRESS, Rank(0, 0, 0, 0))
    assert error.value.failure.reason is reason
    assert ADDRESS in error.value.failure
