"""Reads ranges of objects for replicas; those in a folder directly, without the worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from pathlib import Path
from typing import Protocol

from tidelog_core.errors import ObjectNotFound
from tidelog_core.objects.folder import read_object
from tidelog_core.objects.location import parse_object_location
from tidelog_core.objects.store import ObjectStore


class RangeReader(Protocol):
    """Reads a range of an object, as ``ObjectStore.get_range``."""

    def __call__(self, key: str, start: int, end: int, /) -> Awaitable[bytes | memoryview]: ...


def range_reader(objects_url: str, store: ObjectStore, executor: Executor) -> RangeReader:
    """Return a reader of the store's objects.

    On a folder each object is a small file: a message to the worker and back, with all bytes
    copied, would cost several times its reading. The store decides that an object is missing: it
    knows whether the folder is still the one with the objects.
    """
    location = parse_object_location(objects_url)
    if location.scheme != "file":
        return store.get_range
    folder = Path(location.name)

    async def read(key: str, start: int, end: int, /) -> bytes | memoryview:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(executor, read_object, folder, key, start, end)
        except ObjectNotFound:
            return await store.get_range(key, start, end)

    return read
