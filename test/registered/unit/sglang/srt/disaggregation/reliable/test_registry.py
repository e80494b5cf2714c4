"""The switch between upstream's classes and ours."""

import pytest

from sglang.srt.disaggregation.reliable.registry import choose_kv_class


@pytest.fixture(scope="module")
def upstream():
    from sglang.srt.disaggregation import utils

    return utils


def test_off_means_upstreams_classes(upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SGLANG_PD_RELIABLE", "0")
    for kind in upstream.KVClassType:
        assert choose_kv_class(lambda backend, kind: (backend, kind), upstream.TransferBackend.NIXL, kind) == (
            upstream.TransferBackend.NIXL,
            kind,
        )


def test_ours_build_on_upstreams(upstream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("SGLANG_PD_RELIABLE", raising=False)
    nixl = upstream.TransferBackend.NIXL
    for kind in upstream.KVClassType:
        ours, theirs = choose_kv_class(upstream.get_kv_class, nixl, kind), upstream.get_kv_class(nixl, kind)
        assert issubclass(ours, theirs)
    manager = choose_kv_class(upstream.get_kv_class, nixl, upstream.KVClassType.MANAGER)
    assert manager.__module__.startswith("sglang.srt.disaggregation.reliable")


def test_other_backends_are_upstreams(upstream):
    fake, kind = upstream.TransferBackend.FAKE, upstream.KVClassType.MANAGER
    assert choose_kv_class(upstream.get_kv_class, fake, kind) is upstream.get_kv_class(fake, kind)
