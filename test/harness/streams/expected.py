"""A seeded defect, and what the checker must say of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.streams.mutate import Change, Edit
from sgl_kernel_sm120.streamcheck import Kind

MODEL = "sglang.srt.models.deepseek_v4.MQALayer._forward_prepare_multi_stream"
INDEXER = "sglang.srt.layers.attention.dsv4.indexer.C4IndexerBackendMixin._forward_prepare_multi_stream"
EXPERTS = "sglang.srt.models.deepseek_v2.DeepseekV2MoE.forward_normal_dual_stream"

# Parts of upstream's lines that lead to a use.
STORE_KV = "self._compute_kv_to_cache("
STORE_C = "attn_backend.forward_core_compressor("
ATTEND = "o = attn_backend.forward("
WQ_B = "q = self._compute_q_b(q_for_wqb, positions, q_out)"


@dataclass(frozen=True)
class Expected:
    """``first``, ``second``: parts of source lines among those that lead to the uses; ``site``: where it is no use."""

    kind: Kind
    buffer: str = ""
    streams: tuple[str, ...] = ()
    first: str = ""
    second: str = ""
    site: str = ""


@dataclass(frozen=True)
class Mutant:
    """``change``: the defect. ``expected``: at least these findings. ``bf16``: with our kernels. ``environment``: for
    the run. ``graphs``: how many batch sizes are captured. ``experts``: with shared experts."""

    name: str
    change: Change
    expected: tuple[Expected, ...]
    bf16: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    graphs: int = 1
    warmups: int = 2
    experts: bool = False


def removed(statement: str) -> Edit:
    """Take a wait away; an event is then one that was never recorded, which orders nothing."""
    target, _, _ = statement.partition(" = ")
    return Edit(statement, f"{target} = torch.cuda.Event()" if " = " in statement else "pass")


QKV_A = Expected(Kind.RACE, "qkv_a", ("main", "kv"), "qkv_a, _ = self.wqkv_a(x_linear)", STORE_KV)
Q_LORA = Expected(
    Kind.RACE, "q / q_lora", ("main", "index-q"), "q_lora, q_for_wqb = self._compute_q_a", "= c4_indexer.compute_q("
)
WEIGHTS = Expected(
    Kind.RACE, "out / weights", ("index-weights", "index-q"), "weights = c4_indexer.compute_weights(",
    "= c4_indexer.compute_q(",
)  # fmt: skip
