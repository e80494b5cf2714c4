"""Every wait and event of upstream's functions that fork, and what is wrong without it."""

from __future__ import annotations

from harness.streams.expected import (
    ATTEND,
    EXPERTS,
    INDEXER,
    MODEL,
    Q_LORA,
    QKV_A,
    STORE_C,
    STORE_KV,
    WEIGHTS,
    Expected,
)
from sgl_kernel_sm120.streamcheck import Kind


def hidden(reader: str, second: str) -> tuple[Expected, ...]:
    """A side stream that was not forked: it reads the layer's input too early, and is not in the graph."""
    return (
        Expected(Kind.RACE, "o / hidden", ("main", reader), "self._project_wo_b(o", second),
        Expected(Kind.OUTSIDE, "", (reader,), site=second),
    )


# Taken out one at a time.
WAITS: dict[str, dict[str, tuple[Expected, ...]]] = {
    MODEL: {
        "stream_compressor.wait_stream(current_stream)": hidden("compressor", STORE_C),
        "stream_indexer.wait_stream(current_stream)": hidden("indexer", "self.forward_indexer_compressor("),
        "qkv_a_ready = current_stream.record_event()": (QKV_A,),
        "stream_kv.wait_event(qkv_a_ready)": (QKV_A,),
        "q_lora_ready = current_stream.record_event()": (Q_LORA,),
        "current_stream.wait_stream(stream_kv)": (
            Expected(Kind.RACE, "window KV", ("kv", "main"), STORE_KV, ATTEND),
            Expected(Kind.UNJOINED, "", ("kv",), site=STORE_KV),
        ),
        "current_stream.wait_stream(stream_compressor)": (
            Expected(Kind.RACE, "C4 KV", ("compressor", "main"), STORE_C, ATTEND),
            Expected(Kind.RACE, "C128 KV", ("compressor", "main"), STORE_C, ATTEND),
        ),
        "current_stream.wait_stream(stream_indexer)": (
            Expected(Kind.RACE, "c4_sparse_page_indices", ("indexer", "main"), "self.indexer(", ATTEND),
        ),
    },
    INDEXER: {
        "stream_weights.wait_stream(current_stream)": hidden("index-weights", "c4_indexer.compute_weights("),
        "weights_ready = stream_weights.record_event()": (WEIGHTS,),
        "stream_q.wait_event(weights_ready)": (WEIGHTS,),
        "stream_q.wait_event(q_lora_ready)": (Q_LORA,),
        "current_stream.wait_stream(stream_q)": (
            Expected(Kind.RACE, "q", ("index-q", "indexer"), "= c4_indexer.compute_q(", "forward_c4_indexer"),
        ),
    },
    EXPERTS: {
        "self.alt_stream.wait_stream(current_stream)": (
            Expected(Kind.RACE, "o / hidden", ("main", "kv"), "self._project_wo_b(o", "self._forward_shared_experts("),
        ),
        "current_stream.wait_stream(self.alt_stream)": (
            Expected(
                Kind.RACE,
                "",
                ("kv", "main"),
                "self._forward_shared_experts(",
                "maybe_fuse_routed_scale_and_shared_add(",
            ),
        ),
    },
}
# Of a branch that quantises for MXFP8 experts, which no case here takes.
UNREACHED = {
    EXPERTS: [
        "self.routed_quant_stream.wait_stream(current_stream)",
        "ready = self.routed_quant_stream.record_event()",
    ],
}
# Waits without which nothing is missing as long as another stands; the checker must not cry.
REDUNDANT: dict[str, dict[str, str]] = {
    MODEL: {"stream_kv.wait_stream(current_stream)": "stream_kv.wait_event(qkv_a_ready)"},
    INDEXER: {"stream_q.wait_stream(current_stream)": "stream_q.wait_event(q_lora_ready)"},
}
