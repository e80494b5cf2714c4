"""The smallest change that brings the missing order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sgl_kernel_sm120.streamcheck.buffers import Access, Buffer
from sgl_kernel_sm120.streamcheck.clock import covers
from sgl_kernel_sm120.streamcheck.graph import Edge
from sgl_kernel_sm120.streamcheck.source import innermost

if TYPE_CHECKING:
    from sgl_kernel_sm120.streamcheck.findings import Finding
    from sgl_kernel_sm120.streamcheck.machine import Machine


def fix_of_race(machine: Machine, buffer: Buffer, before: Access, access: Access) -> str:
    """Of two uses of one buffer."""
    first, second = machine.lanes[before.stream].name, machine.lanes[access.stream].name
    if access.early and before.stream == access.stream:
        return f"read {buffer.name()} after the wait for the launch before it, or launch without early start"
    order = (
        f"record an event on {first} after {innermost(before.site)} and let {second} wait for it before "
        f"{innermost(access.site)}"
    )
    if before.write and access.write and buffer.home is None:
        return f"give each stream its own {buffer.name()}; or {order}"
    return order


def fix_of_reuse(machine: Machine, old: Buffer, before: Access, access: Access) -> str:
    """Of a block that was handed on too early."""
    if old.home is None:
        raise ValueError(f"{old} was never the allocator's")
    user, home = machine.lanes[before.stream].name, machine.lanes[old.home].name
    if before.stream == old.home:
        return f"let {machine.lanes[access.stream].name} wait for {home} before {innermost(access.site)}"
    return (
        f"keep a reference to {old.name()} until {home} has waited for {user}, or call "
        f"{old.name()}.record_stream({user})"
    )


def next_wait(machine: Machine, finding: Finding) -> str:
    """Where the home stream of a block that was handed on too early waits for its last user, if it ever does."""
    old, used = finding.buffer, finding.first
    if old is None or used is None or old.home is None:
        return ""
    for entry in machine.log:
        if isinstance(entry, Edge) and entry.waiting.number == old.home and covers(entry.clock, used.stream, used.tick):
            return f" (it waits at {innermost(entry.site)})"
    return ""
