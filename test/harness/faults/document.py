"""``docs/faults.md`` from the records of a run; pure but for the versions it names."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import version

from harness.faults.cells import Cell, cells, left_out
from harness.faults.fault import Side
from harness.faults.site import DEADLINES_S, ENVIRONMENT, TRANSFER_S
from harness.faults.table import FAULTS
from harness.faults.verdict import GRACE_S, KNOWS_S, Record

NOBODY = "gone"
NOTHING = "-"


def row(record: Record) -> str:
    """The cell's line of the table."""
    cell = record.cell
    ends = {end.side: end for end in record.ends}
    sides = []
    for side in Side:
        end = ends.get(side)
        told = f"{end.room.outcome} ({end.room.reason}) in {end.room.phase}" if end else NOBODY
        sides += [told, seconds(end.known_s) if end else NOTHING]
    spared = "; ".join(seconds(one) for one in record.untouched_s) if record.untouched_s else NOTHING
    verdict = "ok" if not record.problems else "; ".join(record.problems)
    released = f"{record.released[0]}, {seconds(record.released[1])}" if record.released else NOTHING
    fields = [*sides, released, seconds(record.next_s), seconds(record.baseline_s), spared, verdict]
    return f"{prefix(cell)} {' | '.join(fields)} |"


def prefix(cell: Cell) -> str:
    """What a cell's line starts with; nothing else starts so."""
    return f"| {cell.fault.name} | {cell.phase} | {cell.side} | {cell.peers} |"


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.3f}"


def markdown(records: Iterable[Record]) -> str:
    records = list(records)
    good = sum(not record.problems for record in records)
    return "\n".join(
        [
            *_head(len(records), good),
            "",
            "## Cells",
            "",
            "| Fault | Phase | Side | Peers | Prefill ended | after s | Decode ended | after s | Pages freed by, s "
            "| Next request s | Given back after s | Other peer: slowest; median before, s | Verdict |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
            *map(row, records),
            "",
            "## Faults",
            "",
            "| Fault | What happens | The request must | Other side told |",
            "|---|---|---|---|",
            *(
                f"| {fault.name} | {fault.about} | {fault.must} | {'yes' if fault.told else 'by its deadline'} |"
                for fault in FAULTS
            ),
            "",
            "## Combinations left out",
            "",
            f"{len(left_out())} of {len(left_out()) + len(cells())}, each for one of these reasons:",
            "",
            "| Fault | Combinations | Why |",
            "|---|---|---|",
            *_left_out(),
            "",
        ]
    )


def _head(count: int, good: int) -> list[str]:
    unusual = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("SGLANG_PD_")}
    return [
        "# What happens under each fault",
        "",
        "Written by `pytest test/registered/disaggregation/faults --faults-report docs/faults.md` from a run of the",
        "matrix; a test checks that every cell of the code's table is here. The table of faults is",
        "`test/harness/faults/table.py`; `test/harness/faults/README.md` says how to add one.",
        "",
        f"**{good} of {count} cells hold.** Each is a prefill and one or two decodes, processes of their own with the",
        "real managers, real NIXL over TCP, KV buffers in memory and no model; the test plays both schedulers.",
        "Requests have 8 pages in two chunks. A cell holds when",
        "",
        "- each side that lives ended the room exactly once, with a reason of the closed list that says what happened,",
        "  logged it once if it failed and not at all otherwise;",
        f"- no phase lasted longer than its deadline + {GRACE_S:g} s ({DEADLINES_S['prefill']:g} s on prefill,",
        f"  {DEADLINES_S['decode']:g} s on decode, {TRANSFER_S:g} s for a chunk's writes);",
        f"- where a message can reach the other side, the two ended at most {KNOWS_S:g} s apart;",
        "- the request came to what the fault allows, and where it succeeded its bytes are prefill's;",
        "- decode gave the pages of a failed request back on prefill's acknowledgement or on proof that prefill is",
        "  gone, except where a message was lost on the way or NIXL cannot tell whether a write has ended;",
        "- the next request succeeded, with nothing restarted but what the fault had killed;",
        "- rooms, metadata, registrations, prepared descriptors, failure records, acknowledgements, control sockets,",
        "  threads and file descriptors of every process are back at what they were before, but for sockets that NIXL",
        "  leaves open when a connection is closed to a process that lives;",
        "- with several peers, the untouched one's requests all succeeded, none more than 1 s slower than before.",
        "",
        '"After s" counts from the fault to the end in the side\'s ledger, by one clock; below 0 the room had ended',
        'before. "gone": the side has no process, or never had the room.',
        "",
        f"Run on {os.cpu_count()} {platform.machine()} cores, Linux, no GPU, Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in ("sglang", "nixl"))
        + ",",
        "and " + ", ".join(f"`{name}={value}`" for name, value in unusual.items()) + ".",
    ]


def _left_out() -> list[str]:
    groups: dict[tuple[str, str], int] = {}
    for one in left_out():
        key = one.cell.fault.name, one.why
        groups[key] = groups.get(key, 0) + 1
    return [f"| {name} | {count} | {why} |" for (name, why), count in groups.items()]
