"""Upstream's sentences, as 0.5.23 writes them, and the reason each stands for."""

import pytest

from sglang.srt.disaggregation.reliable.classify import classify
from sglang.srt.disaggregation.reliable.phases import PHASES, DecodePhase, PrefillPhase, Role
from sglang.srt.disaggregation.reliable.reasons import Reason

DECODE = [
    ("Aborted by AbortReq.", Reason.CLIENT_ABORT),
    ("Lost connection with prefill instance (bootstrap_addr: 10.0.0.1:8998)", Reason.PEER_LOST),
    ("Prefill server with bootstrap_addr: a:1 is healthy before, but now it is down. Request", Reason.PEER_LOST),
    ("Could not fetch bootstrap info for: prefill_dp_rank: 0 prefill_cp_rank: 0", Reason.BOOTSTRAP_REJECTED),
    ("Could not fetch prefill parallel info from bootstrap_addr: a:1", Reason.BOOTSTRAP_UNREACHABLE),
    ("send_metadata to prefill 10.0.0.1:4711 failed", Reason.CONTROL_SEND_FAILED),
    ("Duplicate decode bootstrap room", Reason.ROOM_CONFLICT),
    ("Disaggregation decode allocation policy mismatch: prefill=a, decode=b.", Reason.PEER_INCOMPATIBLE),
    ("Failed due to an unknown reason from another rank", Reason.OTHER_RANK_FAILED),
    ("something nobody has seen before", Reason.INTERNAL_ERROR),
    (None, Reason.OTHER_RANK_FAILED),
    ("", Reason.OTHER_RANK_FAILED),
]
PREFILL = [
    ("Aborted by decode-side abort notification.", Reason.DECODE_ABORT),
    ("follow_bootstrap_room conflict: dispatched to dp_rank 1", Reason.ROUTE_CONFLICT),
    ("Duplicate or cancelled bootstrap room", Reason.ROOM_CONFLICT),
    ("NIXL_ERR_REMOTE_DISCONNECT", Reason.PEER_DISCONNECTED),
    ("NIXL_ERR_BACKEND", Reason.NIXL_BACKEND),
    ("NIXL transfer encountered ERR room=5", Reason.NIXL_BACKEND),
    ("KVSender failed to create prepped transfer", Reason.NIXL_OTHER),
]


@pytest.mark.parametrize(("text", "reason"), DECODE)
def test_decode(text, reason):
    assert classify(Role.DECODE, DecodePhase.WAITING, text) is reason


@pytest.mark.parametrize(("text", "reason"), PREFILL)
def test_prefill(text, reason):
    assert classify(Role.PREFILL, PrefillPhase.TRANSFERRING, text) is reason


@pytest.mark.parametrize("role", list(Role))
def test_a_time_out_is_the_one_of_its_phase(role):
    reasons = {
        classify(role, phase, "Request 5 timed out after 30.0s in KVPoll.Bootstrapping") for phase in PHASES[role]
    }
    assert len(reasons) == len(PHASES[role])
    assert Reason.INTERNAL_ERROR not in reasons
