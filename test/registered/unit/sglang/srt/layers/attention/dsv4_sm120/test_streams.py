"""Upstream's real forward, and ours in it, under the happens-before checker; see ``harness.streams``."""

from pathlib import Path

import pytest

from harness.lab import Lab
from harness.streams import mutants, picture, waits
from harness.streams.session import Case

PAGE = Path(__file__).parents[8] / "docs" / "overlap.md"
RUN = "harness.streams.run:"
OVERLAP = {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"}
STREAMS = {"main", "kv", "compressor", "indexer", "index-q", "index-weights"}
TOPK_V1 = {"SGLANG_OPT_USE_TOPK_V2": "0"}
TORCH = {**TOPK_V1, "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1"}
UNFUSED = {"SGLANG_OPT_FUSE_WQA_WKV": "0"}
# With our index keys and attention or without; index scores and top-k as upstream chooses them on GPUs, on SM120, ...
KERNELS: dict[str, tuple[bool, dict[str, str]]] = {
    "upstream": (False, {}),
    "upstream-sm120": (False, {**TORCH, "SGLANG_OPT_USE_TILELANG_INDEXER": "1"}),
    "upstream-torch": (False, TORCH),
    "upstream-unfused": (False, UNFUSED),
    "ours": (True, {}),
    "ours-sm120": (True, TOPK_V1),
    "ours-unfused": (True, UNFUSED),
}


def variant(bf16: bool) -> dict[str, object]:
    """With our index keys and attention, or upstream's."""
    return {"on": bf16, "mma": bf16, **(OVERLAP if bf16 else {})}


@pytest.mark.parametrize("mode", ["DECODE", "TARGET_VERIFY", "EXTEND"])
@pytest.mark.parametrize(("bf16", "kernels"), KERNELS.values(), ids=list(KERNELS))
def test_every_branch_of_the_forward_is_free_of_races(lab: Lab, mode: str, bf16: bool, kernels: dict[str, str]):
    found = lab.call(RUN + "findings", Case(mode), **variant(bf16), **kernels)
    assert [one["text"] for one in found] == []


@pytest.mark.parametrize("bf16", [False, True], ids=["upstream", "ours"])
@pytest.mark.parametrize("mode", ["DECODE", "TARGET_VERIFY"])
def test_and_it_was_on_all_streams(lab: Lab, mode: str, bf16: bool):
    """A path that does not fork has no races either."""
    operations = lab.call(RUN + "operations", Case(mode), **variant(bf16))
    assert {stream for stream, _ in operations} == STREAMS
    by_stream = {stream: {name for one, name in operations if one == stream} for stream in STREAMS}
    assert "main_k_norm_rope_flashmla.forward" in by_stream["kv"]
    scored = (
        ("decode_logits_kernel" if mode == "DECODE" else "prefill_logits_kernel") if bf16 else "fp8_paged_mqa_logits"
    )
    assert scored in by_stream["indexer"]
    assert ("attend_kernel" if bf16 else "_sparse_mla_sm120_paged_attention") in by_stream["main"]


@pytest.mark.parametrize("bf16", [False, True], ids=["upstream", "ours"])
def test_shared_experts_on_the_first_side_stream_are_free_of_races(lab: Lab, bf16: bool):
    found = lab.call(RUN + "findings", Case(experts=True), **variant(bf16))
    assert [one["text"] for one in found] == []
    operations = lab.call(RUN + "operations", Case(experts=True), **variant(bf16))
    assert {"relu", "mm"} <= {name for stream, name in operations if stream == "kv"}


def test_prefill_graphs_overlap_in_segments_and_are_free_of_races(lab: Lab):
    """Upstream's own, with eager attention between segments; with ours a prefill is on one stream."""
    assert set(lab.call("harness.streams.prefill:streams", on=False)) == STREAMS
    assert lab.call("harness.streams.prefill:streams", **variant(True)) == ["main"]
    for bf16 in (False, True):
        assert lab.call("harness.streams.prefill:findings", **variant(bf16)) == []


def test_the_historical_order_is_flagged_in_a_prefill_graph_too(lab: Lab):
    (found,) = lab.call("harness.streams.prefill:findings", True, on=False)
    assert (found["kind"], found["buffer"], found["streams"]) == ("reuse", "qkv_a", ("kv", "main"))


def test_rows_that_are_scored_in_turn_are_free_of_races(lab: Lab):
    seen = lab.call(RUN + "in_parts", False, **variant(True))
    assert seen == {"scored": 4, "found": []}
    late = lab.call(RUN + "in_parts", True, **variant(True))
    assert late["scored"] == 4
    assert {(one["kind"], one["streams"]) for one in late["found"]} == {("race", ("indexer", "indexer"))}


def test_upstreams_plan_for_a_part_of_a_long_prompt_is_too_young(lab: Lab):
    """Found in 0.5.23, where top-k v2 is on (not SM120): see the page. When this fails, upstream has changed that."""
    few = {"SGLANG_OPT_DSV4_NONPAGED_INDEXER_MIN_QUERY_TOKENS": "1"}
    (found,) = lab.call(RUN + "long_prefill", on=False, **few)
    assert (found["kind"], found["buffer"], found["streams"]) == ("race", "topk_plan", ("main", "main"))
    assert "plan_topk_v2" in " ".join(found["first"])
    assert "topk_transform_paged_v2" in " ".join(found["second"])


def test_upstreams_attention_above_its_decode_kernels_rows_is_free_of_races(lab: Lab):
    assert lab.call(RUN + "many_rows", on=False) == []


def test_our_overlap_beside_upstreams_kernels_is_free_of_races(lab: Lab):
    found = lab.call(RUN + "findings", Case(ours=True), on=False, **OVERLAP)
    assert [one["text"] for one in found] == []


@pytest.mark.parametrize("bf16", [False, True], ids=["upstream", "ours"])
def test_every_seeded_defect_is_flagged_with_its_buffer_and_lines(lab: Lab, bf16: bool):
    unmet = lab.call(RUN + "unmet", bf16, **variant(bf16))
    assert {name: said for name, said in unmet.items() if said} == {}
    assert set(unmet) == {mutant.name for mutant in mutants.MUTANTS if mutant.bf16 is bf16}


def test_there_are_enough_of_them():
    names = {mutant.name for mutant in mutants.MUTANTS}
    assert len(names) == len(mutants.MUTANTS) >= 25


def test_no_wait_of_upstreams_is_left_out(lab: Lab):
    """A wait that a next version brings must be taken out as well, or be named as redundant."""
    for target, found in lab.call(RUN + "waits", on=False).items():
        redundant, unreached = waits.REDUNDANT.get(target, {}), waits.UNREACHED.get(target, [])
        assert sorted(found) == sorted([*waits.WAITS[target], *redundant, *unreached])


def test_no_alarm_for_a_wait_that_another_makes_redundant(lab: Lab):
    cries = lab.call(RUN + "cries", False, on=False)
    alone = {name: said for name, said in cries.items() if " and " not in name}
    both = {name: said for name, said in cries.items() if " and " in name}
    assert alone
    assert [said for found in alone.values() for said in found] == []
    assert all(both.values())


@pytest.mark.parametrize("bf16", [False, True], ids=["upstream", "ours"])
def test_replays_that_break_a_rule_are_flagged(lab: Lab, bf16: bool):
    found = lab.call(RUN + "misuse", bf16, **variant(bf16))
    kinds = {rule: {(one["kind"], one["buffer"]) for one in seen} for rule, seen in found.items()}
    assert ("graphs", "") in kinds["one stream"]
    assert ("race", "layer 0 window KV") in kinds["one stream"]
    assert ("race", "hidden states") in kinds["inputs"]
    assert {kind for kind, _ in kinds["outputs"]} == {"lazy"}
    assert any("c4_sparse_page_indices" in buffer for _, buffer in kinds["outputs"])


@pytest.mark.parametrize("mode", ["DECODE", "EXTEND"])
def test_declared_kernels_touch_what_is_declared(lab: Lab, mode: str):
    """By what their bodies in PyTorch touch when they are run."""
    launched = lab.call(RUN + "touched", mode, on=False)
    prefix = "compress.prefill" if mode == "EXTEND" else "compress.decode"
    assert {prefix, "compress_norm_rope.forward", "main_q_indexer_rope_hadamard_quant.forward"} <= launched


def test_the_pages_diagrams_are_of_the_present_code(lab: Lab):
    drawn = lab.call("harness.streams.picture:markdown", on=True, mma=True, **picture.ENVIRONMENT)
    (kept,) = picture.SECTION.findall(PAGE.read_text())
    assert kept == drawn
