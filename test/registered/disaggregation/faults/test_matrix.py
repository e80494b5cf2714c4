"""Every cell of the fault matrix: each side's end, in time and with its reason; the next request; nothing left over."""

import pytest

from harness.faults.actions import ACTIONS
from harness.faults.cells import Cell, cells
from harness.faults.document import row
from harness.faults.scene import Scene
from harness.faults.verdict import Record


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_cell(sites, records: list[Record], cell: Cell):
    record = Record(cell)
    records.append(record)
    try:
        scene = Scene(sites.get(cell.peers), cell, record)
        ACTIONS[cell.fault.name](scene)
        scene.close()
    except BaseException as error:
        record.problems.append(f"{type(error).__name__}: {error}")
        raise
    finally:
        print(row(record))
        if not record.reusable:
            sites.discard(cell.peers)
    if record.problems:
        pytest.fail("\n".join(record.problems), pytrace=False)
