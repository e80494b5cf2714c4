"""Defects of our kernels' places in the forward."""

from __future__ import annotations

from harness.streams.expected import INDEXER, Expected, Mutant, removed
from harness.streams.mutate import Change, Edit
from harness.streams.scratch import UpstreamsIndexer, scratch_of
from sgl_kernel_sm120.streamcheck import Kind

OURS_INDEXER = "sglang.srt.layers.attention.dsv4_sm120.indexer.forward_c4_indexer"
OURS_ATTENTION = "sgl_kernel_sm120.sparse_mla.decode.sparse_decode"

DEFECTS = [
    Mutant(
        "ours: the best keys are chosen on another stream than they are scored on",
        Change(
            OURS_INDEXER,
            (Edit("choose(...", "with alt_streams[1]:\n    SAME"),),
        ),
        (Expected(Kind.RACE, "scores", ("indexer", "index-weights"), "scores = decode_logits(", "choose("),),
        bf16=True,
    ),
    Mutant(
        "ours: the indexer's streams are forked, and queries are not waited for",
        Change(INDEXER, (removed("current_stream.wait_stream(stream_q)"),)),
        (Expected(Kind.RACE, "q", ("index-q", "indexer"), "= c4_indexer.compute_q(", "scores = decode_logits("),),
        bf16=True,
    ),
    Mutant(
        "ours: keys are scored before their store is waited for",
        Change(
            INDEXER,
            (
                Edit("self.forward_indexer_compressor(...", "pass"),
                Edit(
                    "weights_ready = stream_weights.record_event()",
                    "SAME\nself.forward_indexer_compressor(x=x, forward_batch=forward_batch, "
                    "layer_id=c4_indexer.layer_id, compressor=c4_indexer.compressor)",
                ),
            ),
        ),
        (
            Expected(
                Kind.RACE,
                "C4 index keys",
                ("index-weights", "indexer"),
                "weights_ready =",
                "scores = decode_logits(",
            ),
        ),
        bf16=True,
    ),
    Mutant(
        "ours: scores of all layers and graphs are kept in one buffer",
        Change(
            OURS_INDEXER,
            (
                Edit(
                    "scores = decode_logits(...",
                    "SAME\nkept = scratch(*scores.shape, dtype=torch.float32)\nkept.copy_(scores)\nscores = kept",
                ),
            ),
            (("scratch", scratch_of("scores")),),
        ),
        (Expected(Kind.LAZY, "made[name]", site="made[name] = torch.empty("),),
        bf16=True,
        graphs=2,
        warmups=0,
    ),
    Mutant(
        "ours: parts of attention are kept for the process, and first made in a capture",
        Change(
            OURS_ATTENTION,
            (
                Edit(
                    "part_out = torch.empty(...",
                    "part_out = scratch(rows, splits, heads, HEAD_DIM, dtype=torch.float32)",
                ),
            ),
            (("scratch", scratch_of("parts")),),
        ),
        (Expected(Kind.LAZY, "made[name]", second="attend_kernel[", site="made[name] = torch.empty("),),
        bf16=True,
        graphs=2,
        warmups=0,
    ),
    Mutant(
        "ours: the plan of top-k is made after the scores",
        Change(
            OURS_INDEXER,
            (
                Edit("plan = plan_of(...", "pass"),
                Edit("choose(...", "plan = indexer.plan_topk_v2(lens[part])\nSAME"),
            ),
            (("indexer", UpstreamsIndexer()),),
        ),
        (Expected(Kind.RACE, "", ("indexer", "indexer"), "choose(", "choose("),),
        bf16=True,
    ),
]
