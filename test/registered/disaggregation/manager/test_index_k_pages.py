"""Index-K pages of upstream's real pool between two real NIXL managers, in bf16 and in FP8; a pair that disagrees."""

from collections.abc import Iterator

import pytest

from harness.dsv4.roles import LAYERS, IndexKPair
from harness.managers import Nursery


@pytest.fixture(scope="module")
def pair(nursery: Nursery) -> Iterator[IndexKPair]:
    pair = IndexKPair(nursery, prefill=True, decode=True)
    yield pair
    pair.close()


@pytest.mark.parametrize("pages", [1, 16])
def test_pages_of_bf16_keys_arrive_byte_for_byte(pair: IndexKPair, pages: int):
    for _ in range(3):
        pair.transfer(pages=pages)


def test_keys_arrive_as_the_values_that_were_stored(pair: IndexKPair):
    room = pair.room()
    pair.prefill.call("fill", [0, 1], 0, room)
    pair.prefill.call("set_keys", 1, 0.5)
    where = pair.open(room, pages=2)
    pair.prefill.call("wait", room, [2, 0], 10.0)
    pair.prefill.call("send", room, [0, 1], 0)
    assert pair.decode.call("wait", room, [4, 0], 10.0)[0] == 4
    assert pair.decode.call("keys", where[1]) == [64 * 128 * (0.5 + layer) for layer in range(LAYERS)]
    for role in (pair.prefill, pair.decode):
        role.call("clear", room)


def test_pages_of_fp8_keys_arrive_as_ever(nursery: Nursery):
    pair = IndexKPair(nursery, prefill=False, decode=False)
    pair.transfer(pages=16)
    pair.close()


@pytest.mark.parametrize(("prefill", "decode"), [(True, False), (False, True)])
def test_a_pair_that_disagrees_is_refused_by_name(nursery: Nursery, prefill: bool, decode: bool):
    pair = IndexKPair(nursery, prefill, decode)
    room = pair.room()
    pair.prefill.call("open", room)
    with pytest.raises(RuntimeError) as refused:
        pair.decode.call("open", room)
    tags = {True: "v4,c4:v4,index_k:bf16(SGLANG_DSV4_BF16_INDEX_K=1)", False: "v4,c4:v4"}
    assert f"kv_layout: prefill {tags[prefill]}, decode {tags[decode]}" in str(refused.value)
    pair.close()
