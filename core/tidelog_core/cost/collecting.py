"""Turns the counts of stores into the ledger's items. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.cost import counts
from tidelog_core.cost.entries import Tally

MILLI = 1_000
_METHODS: Mapping[str, str] = {
    "put": counts.OBJECT_PUT,
    "get": counts.OBJECT_GET,
    "head": counts.OBJECT_GET,
    "list": counts.OBJECT_LIST,
    "delete": counts.OBJECT_DELETE,
}


def add_requests(tally: Tally, method: str, count: int, *, topic: str | None = None) -> None:
    """Count requests to the object store. The bucket sends an event for each object written."""
    tally.add(_METHODS[method], count, topic=topic)
    if method == "put":
        tally.add(counts.FUNCTION_EVENT, count, topic=topic)


def add_bytes(tally: Tally, *, sent: int, received: int, topic: str | None = None) -> None:
    """Count bytes to the object store and from it."""
    tally.add(counts.OBJECT_SENT, sent, topic=topic)
    tally.add(counts.OBJECT_RECEIVED, received, topic=topic)


def milliunits(units: float) -> int:
    """Return units of the metadata store, which may be halves, as they are counted."""
    return round(units * MILLI)
