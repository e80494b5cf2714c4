"""One life of a process is told from another."""

import multiprocessing
import time

import pytest

from sglang.srt.disaggregation.reliable import incarnation


def test_it_stays_the_same_and_says_since_when():
    mine = incarnation.mine()
    assert incarnation.is_one(mine)
    assert incarnation.mine() == mine
    assert 0 <= time.time() - incarnation.started(mine) < 3600


def test_a_forked_process_is_another():
    mine = incarnation.mine()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(incarnation.mine) != mine
    assert incarnation.mine() == mine


@pytest.mark.parametrize("text", ["", "-", "0a1b2c3d", "0a1b2c3d@", "0A1B2C3D@1", "0a1b2c3d@1 ", "0a1b2c3d@-1"])
def test_what_is_none(text: str):
    assert not incarnation.is_one(text)
    with pytest.raises(ValueError, match="no incarnation"):
        incarnation.started(text)
