import pytest

from sglang_pd.cluster.gpus import assign, cards_needed
from sglang_pd.errors import UserError


def test_size_is_tensor_times_pipeline() -> None:
    assert cards_needed(()) == 1
    assert cards_needed(("--tp", "4", "--pp-size=2")) == 8
    with pytest.raises(UserError, match="--tp 'x'"):
        cards_needed(("--tp", "x"))


def test_servers_follow_each_other() -> None:
    assert assign(8, [("--tp", "2"), ("--tp", "2"), ("--tp", "4")]) == (0, 2, 4)


def test_too_few_cards() -> None:
    with pytest.raises(UserError, match=r"need 8 GPUs \(4 \+ 4\), and 4 can be seen"):
        assign(4, [("--tp", "4"), ("--tp", "4")])


@pytest.mark.parametrize("flags", [("--mem-fraction-static", "0.4"), ("--base-gpu-id=0",), ("--device", "cpu")])
def test_left_to_explicit_flags(flags: tuple[str, ...]) -> None:
    assert assign(1, [flags, flags]) == ()
