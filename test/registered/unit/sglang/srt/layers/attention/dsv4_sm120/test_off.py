"""With the variable off nothing of upstream changes."""

from harness.lab import Lab
from sglang_pd.hooks import HOOKS

ROWS = [row for row in HOOKS if row.where == "dsv4_bf16"]
WRAPPED = [row.target for row in ROWS if row.kind != "resolution"]


def test_off_no_row_is_selected_and_every_target_is_upstreams_own(lab: Lab):
    assert lab.call("harness.dsv4.pools:selected", on=False) == []
    assert lab.call("harness.dsv4.pools:wrapped", WRAPPED, on=False) == []


def test_on_every_row_is_selected_and_every_target_is_wrapped(lab: Lab):
    assert lab.call("harness.dsv4.pools:selected", on=True) == [row.target for row in ROWS]
    assert lab.call("harness.dsv4.pools:wrapped", WRAPPED, on=True) == WRAPPED


def test_off_the_pool_its_tag_and_its_pages_are_upstreams(lab: Lab):
    seen = lab.call("harness.dsv4.pools:layout", on=False)
    assert seen["bytes_per_token"] == 132
    assert seen["buffers"] == [("torch.uint8", [seen["kv_pages"], 64 * 132])] * 2
    assert "index_k" not in seen["pd_kv_layout"]
    assert lab.call("harness.dsv4.pools:regions", on=False) == [("deepseek_v4_c4_indexer", 64 * 132, False)]
