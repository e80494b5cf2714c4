"""Whether a decode's buffers fit prefill's, as far as its registration tells; pure."""

from __future__ import annotations

from collections.abc import Sequence


def page_differences(ours: Sequence[int], theirs: Sequence[int], kinds: Sequence[tuple[str, str]]) -> list[str]:
    """What differs between the pages of the two sides, in words; nothing where they fit.

    ``ours``, ``theirs``: bytes of a page in each KV buffer; ``kinds``: the kind of memory on either side. Buffers of
    different kinds may have pages of different size: decode's host pool of HiSparse has. Where the number of buffers
    differs there is nothing to compare: upstream pairs them by layer, or refuses.
    """
    if len(ours) != len(theirs):
        return []
    differing = [
        (number, here, there)
        for number, (here, there, (kind, their_kind)) in enumerate(zip(ours, theirs, kinds, strict=True))
        if here != there and kind == their_kind
    ]
    if not differing:
        return []
    number, here, there = differing[0]
    more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
    return [f"bytes of a page in KV buffer {number}: prefill {here}, decode {there}{more}"]
