"""Reads ranges of objects for those that keep what they read."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol

from tidelog_node.tier.lent_ranges import RangeLender


class RangeReader(Protocol):
    """Reads a range of an object, as ``ObjectStore.get_range``."""

    def __call__(self, key: str, start: int, end: int, /) -> Awaitable[bytes | memoryview]: ...


def range_reader(lender: RangeLender) -> RangeReader:
    """Return a reader whose bytes the caller may keep: shared memory that is lent is copied."""

    async def read(key: str, start: int, end: int, /) -> bytes | memoryview:
        return (await lender.lend(key, start, end)).take()

    return read
