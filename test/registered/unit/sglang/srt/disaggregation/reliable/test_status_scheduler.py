"""What is read of upstream's scheduler."""

import inspect
from types import SimpleNamespace

import pytest

from sglang.srt.disaggregation.reliable.status_scheduler import QUEUES, Turns


def scheduler(**more):
    return SimpleNamespace(**{"forward_ct": 0, "waiting_queue": [1, 2], **more})


def test_nothing_is_known_before_the_first_round():
    assert Turns().entry(100.0) is None


def test_no_batch_yet():
    turns = Turns()
    turns.note(scheduler(), 99.0)
    said = turns.entry(100.0)
    assert (said["batches"], said["last_batch_seconds"], said["in_batch"]) == (0, None, False)


def test_a_batch_counts_when_the_loop_comes_round_after_it():
    turns, one = Turns(), scheduler()
    turns.note(one, 99.0)
    one.forward_ct = 1
    assert (turns.entry(100.0)["in_batch"], turns.entry(100.0)["last_batch_seconds"]) == (True, None)
    turns.note(one, 101.0)
    turns.note(one, 103.0)
    said = turns.entry(105.0)
    assert (said["batches"], said["last_batch_seconds"], said["in_batch"]) == (1, 4.0, False)


def test_queues_that_a_role_does_not_have_are_null():
    turns = Turns()
    prealloc = SimpleNamespace(queue=[1], retracted_queue=[])
    turns.note(scheduler(disagg_decode_prealloc_queue=prealloc, disagg_prefill_inflight_queue=None), 99.0)
    assert turns.entry(100.0)["queues"] == {
        "waiting": 2,
        "running": None,
        "prefill_bootstrap": None,
        "prefill_inflight": None,
        "decode_prealloc": 1,
        "decode_retracted": 0,
        "decode_transfer": None,
    }


@pytest.mark.parametrize("name", QUEUES)
def test_upstream_still_has_what_is_read(name):
    from sglang.srt.disaggregation.decode import DecodePreallocQueue, DecodeTransferQueue
    from sglang.srt.disaggregation.prefill import PrefillBootstrapQueue
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.managers.scheduler import Scheduler

    where = {
        "waiting": (Scheduler, "self.waiting_queue: List[Req] ="),
        "running": (ScheduleBatch, "reqs: List[Req]"),
        "prefill_bootstrap": (PrefillBootstrapQueue, "self.queue: List[Req] ="),
        "prefill_inflight": (Scheduler, "self.disagg_prefill_inflight_queue: List[Req] ="),
        "decode_prealloc": (DecodePreallocQueue, "self.queue: List[DecodeRequest] ="),
        "decode_retracted": (DecodePreallocQueue, "self.retracted_queue: List[Req] ="),
        "decode_transfer": (DecodeTransferQueue, "self.queue: List[DecodeRequest] ="),
    }
    owner, line = where[name]
    assert line in inspect.getsource(owner)
    assert "self.forward_ct += 1" in inspect.getsource(Scheduler)
