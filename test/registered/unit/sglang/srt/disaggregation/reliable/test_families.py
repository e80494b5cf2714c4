from pathlib import Path

import pytest

from sglang.srt.disaggregation.reliable import families
from sglang.srt.disaggregation.reliable.families import FAMILIES, Family

DOCS = Path(__file__).parents[7] / "docs"


def test_the_page_is_what_is_generated():
    assert (DOCS / "metrics.md").read_text() == families.markdown()


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_and_units_are_prometheus(family: Family):
    assert family.name.startswith("pd_")
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert family.about.endswith(".")
    assert family.kind != "counter" or family.across == "sum"


def test_the_list_is_of_all_families():
    assert set(FAMILIES) == {value for value in vars(families).values() if isinstance(value, Family)}
