"""Upstream's pool classes, on CPU tensors, with bf16 index keys."""

import pytest

from harness.lab import Lab, LabError


def test_pages_hold_64_keys_of_128_bf16_values_as_rows_of_bytes(lab: Lab):
    seen = lab.call("harness.dsv4.pools:layout", on=True)
    assert seen["class"] == "DeepSeekV4IndexerPool"
    assert seen["bytes_per_token"] == 256
    # As many pages as the KV pool of that ratio: PD registers both by page.
    assert seen["buffers"] == [("torch.uint8", [seen["kv_pages"], 16384])] * 2


def test_what_pd_registers_follows_the_buffers(lab: Lab):
    off, on = (lab.call("harness.dsv4.pools:layout", on=on)["item_lens"] for on in (False, True))
    assert [(a, b) for a, b in zip(off, on, strict=True) if a != b] == [(64 * 132, 16384)] * 2


def test_the_tag_that_pd_peers_compare_names_the_variable(lab: Lab):
    off, on = (lab.call("harness.dsv4.pools:layout", on=on)["pd_kv_layout"] for on in (False, True))
    assert on == f"{off},index_k:bf16(SGLANG_DSV4_BF16_INDEX_K=1)"


def test_a_draft_has_no_index_keys_and_no_tag(lab: Lab):
    assert lab.call("harness.dsv4.pools:draft", on=True) == lab.call("harness.dsv4.pools:draft", on=False)


def test_a_pool_in_another_layout_stops_the_server(lab: Lab):
    with pytest.raises(LabError, match=r"IndexKLayoutError.*68 bytes per key.*bf16 index keys need 256"):
        lab.call("harness.dsv4.pools:fp4_pool", on=True)


@pytest.mark.parametrize("accessor", ["set_index_k_fused", "set_index_k_scale_buffer", "get_index_k_scale_buffer"])
def test_accessors_of_keys_with_scales_raise(lab: Lab, accessor: str):
    with pytest.raises(LabError, match=r"IndexKLayoutError.*is for FP8 index keys with scales"):
        lab.call("harness.dsv4.pools:scales", accessor, on=True)


def test_low_ratio_pools_stay_fp4(lab: Lab):
    assert lab.call("harness.dsv4.pools:low_ratio_bytes", on=True) == 68
