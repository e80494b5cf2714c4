"""Defects of upstream's forward, beyond a wait that is missing."""

from __future__ import annotations

from harness.streams.expected import (
    ATTEND,
    INDEXER,
    MODEL,
    Q_LORA,
    QKV_A,
    STORE_C,
    STORE_KV,
    WEIGHTS,
    WQ_B,
    Expected,
    Mutant,
    removed,
)
from harness.streams.mutate import Change, Edit
from harness.streams.scratch import scratch_of, split_pages
from sgl_kernel_sm120.streamcheck import Kind

COMPRESS = "sglang.srt.layers.attention.dsv4.compressor_v2.CompressorBackendMixin._forward_compress_all_in_one"
LINEAR = "sglang.srt.layers.quantization.unquant.UnquantizedLinearMethod.apply"
GEMM_WORKSPACE = "FlashInfer's GEMM workspace"

DEFECTS = [
    Mutant(
        "the order before sgl-project/sglang #36547: qkv_a is dropped before the join",
        Change(MODEL, (Edit("del qkv_a"), Edit(WQ_B, "del qkv_a\nSAME"))),
        (Expected(Kind.REUSE, "qkv_a", ("kv", "main"), STORE_KV, "q, _ = self.wq_b(q)"),),
    ),
    Mutant(
        "the window's store does not wait, with separate projections",
        Change(MODEL, (removed("stream_kv.wait_stream(current_stream)"),)),
        (Expected(Kind.RACE, "o / hidden", ("main", "kv"), "self._project_wo_b(o", STORE_KV),),
        environment={"SGLANG_OPT_FUSE_WQA_WKV": "0"},
    ),
    Mutant(
        "qkv_a's event is recorded before it is computed",
        Change(
            MODEL,
            (
                Edit("qkv_a, _ = self.wqkv_a(x_linear)", "early = current_stream.record_event()\nSAME"),
                Edit("qkv_a_ready = current_stream.record_event()", "qkv_a_ready = early"),
            ),
        ),
        (QKV_A,),
    ),
    Mutant(
        "q_lora's event is recorded before it is computed",
        Change(
            MODEL,
            (
                Edit("q_lora, q_for_wqb = ...", "early = current_stream.record_event()\nSAME"),
                Edit("q_lora_ready = current_stream.record_event()", "q_lora_ready = early"),
            ),
        ),
        (Q_LORA,),
    ),
    Mutant(
        "an event of the first forward is waited for in all",
        Change(
            MODEL,
            (
                Edit(
                    "q_lora_ready = current_stream.record_event()",
                    "q_lora_ready = self.__dict__.setdefault('ready', current_stream.record_event())",
                ),
            ),
        ),
        (Q_LORA, Expected(Kind.ILLEGAL, site="stream_q.wait_event(q_lora_ready)")),
    ),
    Mutant(
        "the host waits for the window's store, not the stream",
        Change(MODEL, (Edit("current_stream.wait_stream(stream_kv)", "stream_kv.synchronize()"),)),
        (
            Expected(Kind.ILLEGAL, site="current_stream.wait_stream(stream_kv)"),
            Expected(Kind.RACE, "window KV", ("kv", "main"), STORE_KV, ATTEND),
        ),
    ),
    Mutant(
        "the compressor is joined by the wrong stream",
        Change(
            MODEL,
            (Edit("current_stream.wait_stream(stream_compressor)", "stream_compressor.wait_stream(stream_kv)"),),
        ),
        (Expected(Kind.RACE, "C4 KV", ("compressor", "main"), STORE_C, ATTEND),),
    ),
    Mutant(
        "a copy of q_lora for the indexer is dropped once it was handed over",
        Change(
            MODEL,
            (
                Edit("q_lora_ready = current_stream.record_event()", "copied = q_lora.clone()\nSAME"),
                Edit(
                    "self.indexer(x=x, q_lora=q_lora...",
                    "self.indexer(x=x, q_lora=copied, forward_batch="
                    "forward_batch, attn_backend=attn_backend, enable_multi_stream=True, q_lora_ready=q_lora_ready)"
                    "\ndel copied",
                ),
            ),
        ),
        (Expected(Kind.REUSE, "q_lora_ready", ("index-q", "main"), "= c4_indexer.compute_q(", "q, _ = self.wq_b(q)"),),
    ),
    Mutant(
        "the copy is made on the indexer's stream",
        Change(
            MODEL,
            (Edit("self.indexer(x=x, q_lora=q_lora...", "q_lora = q_lora.clone()\nSAME"),),
        ),
        (Expected(Kind.RACE, "q / q_lora", ("main", "indexer"), "= self._compute_q_a", "self.indexer("),),
    ),
    Mutant(
        "weights are recorded before they are computed",
        Change(
            INDEXER,
            (
                Edit(
                    "weights = c4_indexer.compute_weights(x, skip_scale=True)",
                    "early = stream_weights.record_event()\nSAME",
                ),
                Edit("weights_ready = stream_weights.record_event()", "weights_ready = early"),
            ),
        ),
        (WEIGHTS,),
    ),
    Mutant(
        "index keys are stored on one stream and read on another",
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
        (Expected(Kind.RACE, "C4 index keys", ("index-weights", "indexer"), "weights_ready =", "self.indexer("),),
    ),
    Mutant(
        "weights' memory is used again on its stream while queries read it",
        Change(
            INDEXER,
            (
                Edit(
                    "current_stream.wait_stream(stream_q)",
                    "with torch.cuda.stream(stream_weights):\n    again = torch.zeros(4)\nSAME",
                ),
            ),
        ),
        (
            Expected(
                Kind.REUSE,
                "out / weights",
                ("index-q", "index-weights"),
                "= c4_indexer.compute_q(",
                "current_stream.wait_stream(stream_q)",
            ),
        ),
    ),
    Mutant(
        "compressed rows go through one scratch of the process",
        Change(
            COMPRESS,
            (Edit("compress_out = None", "compress_out = scratch(plan[1].shape[0], head_dim, dtype=torch.float32)"),),
            (("scratch", scratch_of("rows")),),
        ),
        (Expected(Kind.RACE, "made[name]", ("indexer", "compressor"), "self.indexer(", STORE_C),),
    ),
    Mutant(
        "and it is made in the capture, without a warm-up",
        Change(
            COMPRESS,
            (Edit("compress_out = None", "compress_out = scratch(plan[1].shape[0], head_dim, dtype=torch.float32)"),),
            (("scratch", scratch_of("rows")),),
        ),
        (Expected(Kind.LAZY, "made[name]", site="made[name] = torch.empty("),),
        graphs=2,
        warmups=0,
    ),
    Mutant(
        "upstream's page buffer is made in the capture",
        Change(MODEL, ()),
        (Expected(Kind.LAZY, "buf", site="buf = torch.empty("),),
        graphs=2,
        warmups=0,
    ),
    Mutant(
        "upstream's page buffer is filled from a side stream as well",
        Change(
            MODEL,
            (
                Edit(
                    "attn_backend.forward_core_compressor(...",
                    "SAME\nsplit(attn_backend.token_to_kv_pool.get_swa_key_buffer_radix(0), 256)",
                ),
                Edit(WQ_B, "split(attn_backend.token_to_kv_pool.get_swa_key_buffer_radix(0), 256)\nSAME"),
            ),
            (("split", split_pages),),
        ),
        (Expected(Kind.RACE, "buf", ("compressor", "main"), STORE_C, WQ_B),),
    ),
    Mutant(
        "projections work in one workspace of the process",
        Change(LINEAR, (), shared=GEMM_WORKSPACE),
        (
            Expected(Kind.RACE, GEMM_WORKSPACE, ("main", "index-weights"), "self.wqkv_a(", "compute_weights("),
            Expected(Kind.RACE, GEMM_WORKSPACE, ("index-q", "main"), "compute_q(", WQ_B),
        ),
    ),
]
