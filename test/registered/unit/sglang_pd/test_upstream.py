import importlib.metadata

import pytest

from sglang_pd import upstream
from sglang_pd.upstream import ContractError, Fingerprint, fingerprint

SOURCE = """
def plain(a, b=1, *, c: int = 2):
    return a


class Outer:
    x = 1

    @staticmethod
    def method(value):
        return value

    class Inner:
        async def deep(self, /, y):
            pass
"""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "srt").mkdir()
    (tmp_path / "srt/module.py").write_text(SOURCE)
    (tmp_path / "srt/package").mkdir()
    (tmp_path / "srt/package/__init__.py").write_text("def inside():\n    pass\n")
    return tmp_path


@pytest.mark.parametrize(
    ("target", "signature"),
    [
        ("sglang.srt.module.plain", "(a, b=1, *, c: int=2)"),
        ("sglang.srt.module.Outer", ""),
        ("sglang.srt.module.Outer.method", "(value)"),
        ("sglang.srt.module.Outer.Inner.deep", "(self, /, y)"),
        ("sglang.srt.package.inside", "()"),
    ],
)
def test_finds_functions_classes_and_methods(root, target, signature):
    assert fingerprint(target, root).signature == signature


@pytest.mark.parametrize(
    "target",
    ["sglang.srt.module.gone", "sglang.srt.module.Outer.gone", "sglang.srt.nowhere.f", "sglang.srt.module.Outer.x"],
)
def test_a_target_that_moved_is_named(root, target):
    with pytest.raises(ContractError, match="is gone"):
        fingerprint(target, root)


def edit(root, old, new):
    path = root / "srt/module.py"
    path.write_text(SOURCE.replace(old, new))
    upstream._parse.cache_clear()


def test_a_changed_body_changes_the_digest_only(root):
    before = fingerprint("sglang.srt.module.plain", root)
    edit(root, "return a", "return a + 1")
    after = fingerprint("sglang.srt.module.plain", root)
    assert after.signature == before.signature
    assert after.digest != before.digest
    assert "digest" in upstream.broken([("sglang.srt.module.plain", before)], root)["sglang.srt.module.plain"]


def test_a_changed_signature_is_shown_with_what_was_recorded(root):
    before = fingerprint("sglang.srt.module.plain", root)
    edit(root, "b=1", "b=2")
    reason = upstream.broken([("sglang.srt.module.plain", before)], root)["sglang.srt.module.plain"]
    assert "(a, b=2, *, c: int=2)" in reason
    assert "(a, b=1, *, c: int=2)" in reason


def test_a_decorator_is_part_of_the_source(root):
    before = fingerprint("sglang.srt.module.Outer.method", root)
    edit(root, "@staticmethod", "@classmethod")
    assert fingerprint("sglang.srt.module.Outer.method", root).digest != before.digest


def test_moving_within_the_file_changes_nothing(root):
    before = fingerprint("sglang.srt.module.plain", root)
    edit(root, "\ndef plain", "\n\n\nX = 1\n\n\ndef plain")
    assert fingerprint("sglang.srt.module.plain", root) == before


def test_broken_lists_the_gone_beside_the_sound(root):
    sound = fingerprint("sglang.srt.module.plain", root)
    broken = upstream.broken(
        [("sglang.srt.module.plain", sound), ("sglang.srt.module.gone", Fingerprint("()", "0" * 16))], root
    )
    assert list(broken) == ["sglang.srt.module.gone"]


def test_the_installed_version_is_the_pinned_one():
    upstream.check_version()


def test_another_version_is_refused_naming_both(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.5.24")
    with pytest.raises(ContractError, match=r"0\.5\.24.*0\.5\.23"):
        upstream.check_version()
