"""Reads ranges of objects for replicas; those in a folder directly, without the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from tidelog_core.objects.folder import read_object
from tidelog_core.objects.location import parse_object_location

from tidelog_node.tier.lent_ranges import RangeLender


class RangeReader(Protocol):
    """Reads a range of an object, as ``ObjectStore.get_range``."""

    def __call__(self, key: str, start: int, end: int, /) -> Awaitable[bytes | memoryview]: ...


def range_reader(objects_url: str, lender: RangeLender, executor: Executor) -> RangeReader:
    """Return a reader of the store's objects, for those that keep what they read.

    On a folder each object is a small file: a message to the worker and back would cost several
    times its reading.
    """
    location = parse_object_location(objects_url)
    if location.scheme != "file":
        return copying(lender)
    folder = Path(location.name)

    def read(key: str, start: int, end: int, /) -> Awaitable[bytes]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(executor, read_object, folder, key, start, end)

    return read


def copying(lender: RangeLender) -> RangeReader:
    """Return a reader of the same objects whose ranges may be kept."""

    async def read(key: str, start: int, end: int, /) -> bytes:
        lent = await lender.lend(key, start, end)
        try:
            return bytes(lent.data)
        finally:
            lent.release()

    return read
