"""What prefill and decode must have in common, told to each other so that both can name every field that differs.

Each side says it as a JSON object: prefill to its bootstrap server, decode in a frame of its registration. A stock peer
says nothing, and is compared by what upstream's own messages tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import version
from typing import Any

from sglang.srt.disaggregation.reliable.layout import page_differences

Configuration = Mapping[str, Any]

FRAME = b"sglang-pd-configuration "
# Fields that have to be equal, where both sides know them.
EQUAL = ("page_size", "kv_cache_dtype", "kv_layout")
# Fields that may differ, and help to understand where others do.
TELLING = ("tp_size", "pp_size", "kv_buffers", "sglang", "sglang-pd")


def of(manager: Any) -> Configuration:
    """This side's; ``manager`` is a ``ReliableKVManager``."""
    args = manager.kv_args
    return {
        "page_size": args.page_size,
        "kv_cache_dtype": manager.kv_cache_dtype_str,
        "kv_layout": manager.kv_layout,
        "tp_size": manager.attn_tp_size,
        "pp_size": manager.pp_size,
        "kv_buffers": len(args.kv_item_lens),
        "page_bytes": list(args.kv_item_lens),
        "page_memory": list(args.kv_data_mem_kinds),
        **_versions(),
    }


def differences(prefill: Configuration, decode: Configuration, split_heads: bool) -> list[str]:
    """What keeps the two from working together, in words; with what else differs, where there is something.

    ``split_heads``: tensor parallelism splits a page's heads, so that pages may differ where its size does.
    """
    found = [text for field in EQUAL if (text := _differs(field, prefill, decode))]
    if prefill.get("tp_size") == decode.get("tp_size") or not split_heads:
        here, there = (side.get("page_bytes") or [] for side in (prefill, decode))
        memory = (side.get("page_memory") or [] for side in (prefill, decode))
        found += page_differences(here, there, list(zip(*memory, strict=False)))
    return found and found + [text for field in TELLING if (text := _differs(field, prefill, decode))]


def frame(configuration: Configuration) -> bytes:
    return FRAME + json.dumps(configuration).encode("utf-8")


def find(frames: Sequence[bytes]) -> Configuration | None:
    """The one that a registration brings along; None where it brings none that can be read."""
    text = next((frame[len(FRAME) :] for frame in reversed(frames) if frame.startswith(FRAME)), b"")
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, dict) else None


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("sglang", "sglang-pd")}


def _differs(field: str, prefill: Configuration, decode: Configuration) -> str | None:
    here, there = prefill.get(field), decode.get(field)
    if here is None or there is None or here == there:
        return None
    return f"{field}: prefill {here}, decode {there}"
