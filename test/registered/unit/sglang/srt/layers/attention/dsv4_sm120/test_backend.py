"""Who attends, by upstream's variable, the number of rows and whether they are decode's; and how ours is called."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sgl_kernel_sm120.sparse_mla import decode as op
from sgl_kernel_sm120.sparse_mla.layout import page_bytes
from sgl_kernel_sm120.sparse_mla.split import Machine
from sglang.srt.layers.attention.dsv4_sm120 import backend, decode, decode_settings


@pytest.mark.parametrize(
    ("word", "rows", "decoding", "ours"),
    [
        (None, 64, True, False),
        (None, 65, True, True),
        (None, 96, True, True),
        (None, 8192, False, False),
        ("mma", 1, True, True),
        ("mma", 8192, False, True),
        ("flashinfer", 96, True, False),
        ("triton", 96, True, False),
        ("torch", 1, True, False),
    ],
)
def test_who_attends(word: str | None, rows: int, decoding: bool, ours: bool):
    assert backend.is_ours(word, rows, decoding) is ours


def test_another_word_is_named_with_what_is_allowed():
    assert backend.problem("MMA") == (
        "SGLANG_SM120_FLASHMLA_BACKEND='MMA' is not valid; allowed: flashinfer, triton, torch, mma"
    )
    assert [backend.problem(word) for word in (None, *backend.WORDS)] == [None] * 5


@pytest.fixture
def word(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda value: monkeypatch.setattr(decode_settings, "word", lambda: value)


def call(rows: int, mode: str) -> str:
    """Who is called for a batch: our op or upstream's function, below a backend that was called for ``mode``."""
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_extend_without_speculative=lambda: mode == "extend"))

    def upstream_backend(*_: Any) -> Any:
        return decode.attend(lambda **_: "upstream", q=torch.empty(rows, 1, 16, 512, device="meta"))

    try:
        return decode.mark_mode(upstream_backend, None, None, None, None, None, batch)
    except KeyError:
        return "ours"  # which then asks for its arguments


def test_decode_above_64_rows_is_ours_by_default_and_prefill_is_not(word: Any):
    word(None)
    assert [call(rows, "decode") for rows in (64, 65, 96)] == ["upstream", "ours", "ours"]
    assert call(8192, "extend") == "upstream"
    assert decode.attend(lambda **_: "upstream", q=torch.empty(96, 1, 16, 512)) == "upstream"  # the mark is taken back


def test_chosen_by_name_ours_attends_always(word: Any):
    word("mma")
    assert [call(1, "decode"), call(8192, "extend")] == ["ours", "ours"]


def test_ours_takes_a_ranks_heads_as_they_are(word: Any):
    layer = SimpleNamespace(n_local_heads=16)
    word("mma")
    assert decode.native_heads(lambda *_: 64, layer, 4) == 16
    word(None)
    assert decode.native_heads(lambda *_: 64, layer, 4) == 64


class Launches:
    """Stands for a kernel: keeps the grids it was launched with."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: self.grids.append(grid)


def arguments(rows: int, extra: bool = True) -> dict[str, Any]:
    """As upstream's backend calls, on the device "meta": tensors have shapes and no values that could be read."""

    def view(slots: int) -> torch.Tensor:
        pages = torch.empty(40, page_bytes(slots), dtype=torch.uint8, device="meta")
        return pages[:, : slots * 584].view(40, slots, 1, 584)

    def indices(width: int) -> torch.Tensor:
        return torch.empty(rows, 1, width, dtype=torch.int32, device="meta")

    lens = torch.empty(rows, dtype=torch.int32, device="meta")
    return {
        "q": torch.empty(rows, 1, 16, 512, dtype=torch.bfloat16, device="meta"),
        "k_cache": view(256),
        "indices": indices(128),
        "topk_length": lens,
        "attn_sink": torch.empty(64, device="meta"),
        "head_dim_v": 512,
        "softmax_scale": 512**-0.5,
        "extra_k_cache": view(64) if extra else None,
        "extra_indices_in_kvcache": indices(512) if extra else None,
        "extra_topk_length": lens if extra else None,
    }


@pytest.mark.parametrize("extra", [True, False])
def test_a_call_reads_no_value_and_launches_by_shapes_alone(word: Any, monkeypatch: pytest.MonkeyPatch, extra: bool):
    """What graph capture needs: tensors without values are enough, and a repeated call launches the same grids."""
    word("mma")
    attend, merge = Launches(), Launches()
    monkeypatch.setattr(op, "attend_kernel", attend)
    monkeypatch.setattr(op, "merge_kernel", merge)
    monkeypatch.setattr(decode_settings, "machine", lambda device: Machine(188, 2))
    for rows in (1, 16, 96, 16):
        out, lse = decode.attend(None, **arguments(rows, extra))
        assert out.shape == (rows, 1, 16, 512)
        assert lse is None
    assert attend.grids[1] == attend.grids[3]
    expected = [(1, 40, 1), (1, 20, 16), (1, 3, 96)] if extra else [(1, 8, 1), (1, 8, 16), (1, 3, 96)]
    assert attend.grids[:3] == expected
    assert merge.grids == [(16, rows) for rows in (1, 16, 96, 16)]
