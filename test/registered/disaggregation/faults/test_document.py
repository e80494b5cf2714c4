"""``docs/faults.md`` is that of the code's table: every cell stands in it once, and no other."""

import re
from pathlib import Path

import pytest

from harness.faults.actions import ACTIONS
from harness.faults.cells import cells, left_out
from harness.faults.document import markdown, prefix
from harness.faults.table import FAULTS
from harness.faults.verdict import Record

DOCUMENT = Path(__file__).parents[4] / "docs" / "faults.md"


def test_every_cell_stands_in_the_document_and_no_other():
    text = DOCUMENT.read_text()
    rows = [line for line in text.splitlines() if re.match(r"\|([^|]*\|){3} (one|several) \|", line)]
    assert [next((cell for cell in cells() if row.startswith(prefix(cell))), row) for row in rows] == cells()


def test_every_fault_has_an_action():
    assert set(ACTIONS) == {fault.name for fault in FAULTS}


def test_names_are_their_faults():
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_what_is_left_out_has_a_reason():
    assert not [str(one.cell) for one in left_out() if not one.why]


def test_a_cell_that_does_not_hold_says_so():
    cell = cells()[0]
    text = markdown([Record(cell, problems=["it did not"])])
    assert f"{prefix(cell)} gone | - | gone | - | - | - | - | - | it did not |" in text
    assert "**0 of 1 cells hold.**" in text


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_has_a_cell(fault):
    assert any(cell.fault == fault for cell in cells())
