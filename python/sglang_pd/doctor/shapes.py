"""Reads answers of whoever answered: what is of another shape than ours is as good as not there; pure."""

from __future__ import annotations

from typing import Any


def objects(body: Any, name: str) -> list[dict[str, Any]]:
    """The objects of the list under ``name``."""
    found = body.get(name) if isinstance(body, dict) else None
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def field(body: Any, *names: str) -> dict[str, Any]:
    """The object that one name after the other leads to; empty where there is none."""
    for name in names:
        body = body.get(name) if isinstance(body, dict) else None
    return body if isinstance(body, dict) else {}


def rooms(body: Any) -> list[dict[str, Any]]:
    """Every room of an answer of ``/pd/rooms``, of all ranks."""
    said = [field(rank, "said") for rank in objects(body, "ranks")]
    return [one for of_rank in said for one in objects(of_rank, "rooms") if isinstance(one.get("room"), int)]
