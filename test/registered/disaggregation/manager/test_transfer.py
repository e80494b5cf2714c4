"""Rooms go from prefill to decode, byte for byte, with our classes on both sides, one side, or none."""

from collections.abc import Iterator

import pytest

from harness.managers import TCP, UPSTREAM, Nursery, Pair

SIDES = {
    "ours": ({}, {}),
    "our-prefill": ({}, UPSTREAM),
    "our-decode": (UPSTREAM, {}),
    "upstream": (UPSTREAM, UPSTREAM),
}


@pytest.fixture(scope="module", params=SIDES)
def pair(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[Pair]:
    prefill, decode = SIDES[request.param]
    pair = Pair(nursery, prefill, decode)
    yield pair
    pair.close()


def test_the_switch_chooses_the_classes(pair: Pair):
    for role in (pair.prefill, pair.decode):
        reliable = role.spec.environment.get("SGLANG_PD_RELIABLE") != "0"
        assert role.info["class"] == ("ReliableKVManager" if reliable else "NixlKVManager")


@pytest.mark.parametrize("pages", [1, 64])
def test_bytes_arrive(pair: Pair, pages: int):
    for _ in range(3):
        pair.transfer(pages=pages)


def test_bytes_arrive_over_a_socket(nursery: Nursery):
    pair = Pair(nursery, **TCP)
    pair.transfer(pages=64)
    pair.close()
