"""What the checker reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sgl_kernel_sm120.streamcheck.buffers import Access, Buffer
from sgl_kernel_sm120.streamcheck.source import Site, innermost


class Kind(StrEnum):
    RACE = "race"  # two uses of one buffer without order
    REUSE = "reuse"  # the allocator may hand a released block on while another stream uses it
    GRAPHS = "graphs"  # graphs that share a pool are replayed without order
    LAZY = "lazy"  # memory of a capture that outlives it
    OUTSIDE = "outside"  # an operation during a capture that the graph does not contain
    UNJOINED = "unjoined"  # a stream whose work the capture's end does not wait for
    ILLEGAL = "illegal"  # a call that a capture does not allow


@dataclass(frozen=True)
class Finding:
    """``buffer``: what is in danger; ``other``: with ``REUSE``, what was put on its memory. ``first`` and ``second``:
    the two uses in the order of their launches, and ``streams`` theirs. ``site``: where, if it is no use. ``missing``:
    the order that is not there. ``fix``: the smallest change."""

    kind: Kind
    buffer: Buffer | None
    missing: str
    fix: str
    first: Access | None = None
    second: Access | None = None
    other: Buffer | None = None
    streams: tuple[str, ...] = ()
    site: Site = ()

    @property
    def key(self) -> tuple[object, ...]:
        """The same for every occurrence of one defect of the source."""
        first, second = (access.site[:2] if access else () for access in (self.first, self.second))
        if self.kind is Kind.REUSE:  # wherever the block goes
            return self.kind, self.buffer.site[:2] if self.buffer else (), first, self.streams
        return self.kind, first, second, self.site[:2], self.streams, self.buffer.label if self.buffer else self.missing

    def lines(self) -> list[str]:
        """``file:line (function)`` of everything that takes part, from the innermost line to those that call it."""
        sites = [self.site] + [access.site for access in (self.first, self.second) if access]
        return [str(line) for site in sites for line in site]

    def __str__(self) -> str:
        said = [f"{self.kind.upper()}: {self.buffer or self.missing}"]
        if self.other and self.buffer:
            said.append(f"  the host drops it after {innermost(self.buffer.released_after)}")
            said.append(f"  its memory may go to {self.other}")
        for name, access, stream in zip(("first ", "second"), (self.first, self.second), self.streams, strict=False):
            if access:
                said.append(f"  {name} on stream {stream}: {access}")
                said += [f"         called from {line}" for line in access.site[1:3]]
        if self.site:
            said.append(f"  at {innermost(self.site)}")
            said += [f"     called from {line}" for line in self.site[1:3]]
        if self.buffer is not None:
            said.append(f"  missing: {self.missing}")
        said.append(f"  fix: {self.fix}")
        return "\n".join(said)
