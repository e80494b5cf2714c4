import pickle

from sglang.srt.disaggregation.common.conn import KVTransferError

from sglang.srt.disaggregation.reliable.failure import Failure, failure
from sglang.srt.disaggregation.reliable.reasons import Reason


def test_it_is_a_text_that_leads_with_its_reason():
    found = failure(Reason.LENGTH_MISMATCH, "prefill has 4 pages, decode 2")
    assert found == "length_mismatch: prefill has 4 pages, decode 2"
    assert found.reason is Reason.LENGTH_MISMATCH


def test_without_a_detail_it_says_what_the_reason_means():
    assert failure(Reason.PEER_LOST) == f"peer_lost: {Reason.PEER_LOST.sentence}"


def test_the_reason_survives_the_way_through_upstream():
    """``record_failure`` puts it into a dict, ``failure_exception`` raises what it takes out."""
    records = {7: failure(Reason.NIXL_BACKEND, "x")}
    error = KVTransferError(7, records.setdefault(7, "later") or "unknown")
    assert isinstance(error.failure_reason, Failure)
    assert error.failure_reason.reason is Reason.NIXL_BACKEND
    assert "nixl_backend: x" in str(error)


def test_the_reason_survives_upstreams_text_of_an_error():
    """Its transfer worker concludes a room with ``str(error)``."""
    text = str(RuntimeError(failure(Reason.TRANSFER_TIMEOUT, "x")))
    assert isinstance(text, Failure)
    assert text.reason is Reason.TRANSFER_TIMEOUT


def test_it_joins_other_texts_as_a_text():
    assert f"{failure(Reason.PEER_LOST, 'x')}." == "peer_lost: x."


def test_it_reaches_another_process_as_a_text():
    there = pickle.loads(pickle.dumps(failure(Reason.PEER_LOST, "x")))
    assert there == "peer_lost: x"
    assert type(there) is str
