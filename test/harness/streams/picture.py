"""The stream diagrams of ``docs/overlap.md``, drawn from a run of the checker.

python -m harness.streams.picture > docs/overlap-streams.md      (in test/)
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from harness.dsv4 import layer
from harness.streams.model import STREAMS
from harness.streams.session import Case, session
from sgl_kernel_sm120.streamcheck.diagram import drawn, label_of
from sgl_kernel_sm120.streamcheck.graph import Edge, Operation

# What upstream's and our functions are called here, where their own names are too long for a column.
NAMES = {
    "set_swa_key_buffer_radix_fused_norm_rope": "norm rope store",
    "fused_q_norm_rope": "q norm rope",
    "linear_bf16_fp32": "wkv gate",
    "compress_forward": "compress",
    "compress_norm_rope_store": "norm rope store",
    "fused_q_indexer_rope_hadamard_quant": "rope Hadamard FP8",
    "prepare_query_kernel": "rope Hadamard bf16",
    "store_keys_kernel": "norm rope store",
    "decode_logits_kernel": "scores",
    "fn": "scores",
    "topk_transform_paged": "top-k",
    "topk_transform_paged_v2": "top-k",
    "weights_proj": "head weights",
    "attend_kernel": "attend",
    "merge_kernel": "merge",
    "original": "norm rope store",
    "fused_rope_inplace": "inverse rope",
    "einsum": "wo_a",
}
KINDS = {0: "window only", 4: "C4", 128: "C128"}


def name_of(operation: Operation) -> str:
    label = label_of(operation)
    return NAMES.get(label, label)


def pictures() -> dict[str, str]:
    """By kind of layer: a decode batch of four rows, captured."""
    found = {}
    for number, ratio in enumerate(layer.RATIOS):
        with session(Case(batches=(4,), layers=(number,))) as one:
            graph = one.captured(4, torch.cuda.graph_pool_handle()).graph
        assert graph is not None
        assert one.check.findings == []
        entries = [entry for entry in graph.entries if _in_layer(entry)]
        found[KINDS[ratio]] = drawn(entries, ["main", *STREAMS], name_of)
    return found


def _in_layer(entry: Operation | Edge) -> bool:
    return any(line.file.endswith("models/deepseek_v4.py") for line in entry.site)


def markdown() -> str:
    return "\n".join(f"{kind}:\n\n```\n{picture}\n```\n" for kind, picture in pictures().items())


SECTION = re.compile("(?<=<!-- streams -->\n\n).*(?=\n<!-- end of streams -->)", re.DOTALL)
ENVIRONMENT = {"SGLANG_OPT_USE_MULTI_STREAM_OVERLAP": "1"}


def main(page: Path) -> None:
    from harness.lab import Lab

    with Lab() as lab:
        new = lab.call("harness.streams.picture:markdown", on=True, mma=True, **ENVIRONMENT)
    text, count = SECTION.subn(lambda _: new, page.read_text())
    if count != 1:
        raise SystemExit(f"{page} has no place for the diagrams")
    page.write_text(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
