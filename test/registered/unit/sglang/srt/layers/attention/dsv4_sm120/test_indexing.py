"""Upstream's compressor and indexer mixins over a real pool, our hooks live, kernels interpreted."""

import numpy as np
import pytest
import torch

from harness.lab import Lab

# Upstream then asks for no schedule of DeepGEMM's, which is for GPUs.
NO_GEMM = {"SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1"}


@pytest.mark.parametrize("alias", ["forward_indexer_compressor", "forward_unified"])
@pytest.mark.parametrize(("decode", "slots"), [(True, [0, 63, 64]), (False, [63, 67, 69, 73])])
def test_keys_are_stored_in_bf16_by_either_name(lab: Lab, alias: str, decode: bool, slots: list[int]):
    seen = lab.call("harness.dsv4.indexing:stored", alias, decode, on=True)
    assert seen["changed"] == slots
    pages = torch.from_numpy(seen["pages"]).view(torch.bfloat16).view(-1, 128).double()
    expected = torch.from_numpy(seen["expected"]).view(-1, 128)
    assert torch.allclose(pages, expected, rtol=2**-8, atol=1e-4)


def test_the_latent_is_stored_by_upstream(lab: Lab):
    """Rows of 512 values go the same way and must not be taken for keys."""
    assert lab.call("harness.dsv4.indexing:latent", on=True) == "upstream"


def check(seen: dict) -> None:
    """Each row has its best keys: as many as it can, none twice, none that is worse than one left out by more than the
    rounding of queries to bf16 explains."""
    for slots, order, scores in zip(seen["slots"], seen["order"], seen["scores"], strict=True):
        count = min(512, len(order))
        found = slots[slots >= 0]
        assert len(found) == len(set(found)) == count
        assert (slots[count:] == -1).all()
        place = {slot: n for n, slot in enumerate(order)}
        chosen = np.array([place[slot] for slot in found], dtype=int)
        left = np.setdiff1d(np.arange(len(order)), chosen)
        if len(left):
            slack = 0.02 * np.abs(scores).std()
            assert scores[chosen].min() >= scores[left].max() - slack


@pytest.mark.parametrize("lens", [[1, 63, 64, 65, 700], [512, 513, 1], [1]])
def test_decode_chooses_the_best_keys_of_each_request(lab: Lab, lens: list[int]):
    check(lab.call("harness.dsv4.indexing:chosen", "DECODE", lens, list(range(len(lens))), on=True, **NO_GEMM))


def test_prefill_chooses_for_rows_that_share_keys_and_rows_that_do_not(lab: Lab):
    lens, requests = [596, 597, 598, 599, 600, 3, 4], [0, 0, 0, 0, 0, 1, 1]
    check(lab.call("harness.dsv4.indexing:chosen", "EXTEND", lens, requests, on=True, **NO_GEMM))


def test_verification_of_drafts_is_scored_like_prefill(lab: Lab):
    lens, requests = [561, 561, 562, 70, 71, 71], [0, 0, 0, 1, 1, 1]
    check(lab.call("harness.dsv4.indexing:chosen", "TARGET_VERIFY", lens, requests, on=True, **NO_GEMM))


def test_rows_beyond_the_scratch_are_scored_in_turn(lab: Lab):
    lens, requests = [540, 541, 542, 543, 544], [0] * 5
    two_rows = 2 * 4 * 640
    check(lab.call("harness.dsv4.indexing:chosen", "EXTEND", lens, requests, two_rows, on=True, **NO_GEMM))
