"""Seeded defects of the forward's streams, and what the checker must say of each.

A wait or an event is taken out of upstream's source, or put elsewhere; a reference is dropped; memory is shared that
must not be. ``Expected`` names the buffer, the streams, and of both uses a piece of the source line that leads there; a
statement that was put in has the line, and its memory the name, of the statement beside it.
"""

from __future__ import annotations

from harness.streams import defects_ours, defects_upstream
from harness.streams.expected import EXPERTS, Mutant, removed
from harness.streams.mutate import Change
from harness.streams.waits import WAITS

MUTANTS = [
    *(
        Mutant(f"without {wait}", Change(target, (removed(wait),)), expected, experts=target == EXPERTS)
        for target, waits in WAITS.items()
        for wait, expected in waits.items()
    ),
    *defects_upstream.DEFECTS,
    *defects_ours.DEFECTS,
]
