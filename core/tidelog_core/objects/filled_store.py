"""Objects whose bytes are written where the store keeps them.

An object of a chain is copied out of log files. A folder lets it be copied straight into the file
that becomes the object; other stores get the bytes from memory.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, Protocol, TypeVar, cast, runtime_checkable

from tidelog_core.objects.one_attempt import put_once
from tidelog_core.objects.store import ObjectStore

T = TypeVar("T")

Fill = Callable[[BinaryIO], T]  # writes an object from the file's start on; for a thread


@runtime_checkable
class FilledStore(Protocol):
    """A store that lets an object be written into it."""

    async def put_filled(self, key: str, fill: Fill[T], *, timeout_s: float) -> T:
        """Store the bytes that ``fill`` writes, durably, and return its result.

        One attempt. Nothing is stored if ``fill`` raises. Raises its errors, and those of
        ``OneAttemptStore.put_once`` after it has been called.
        """


async def put_filled(store: ObjectStore, key: str, fill: Fill[T], *, timeout_s: float) -> T:
    """Store the bytes that ``fill`` writes; see ``FilledStore.put_filled``."""
    if _is_filled_store(type(store)):
        return await cast("FilledStore", store).put_filled(key, fill, timeout_s=timeout_s)
    file = io.BytesIO()
    result = await asyncio.to_thread(fill, file)
    await put_once(store, key, file.getvalue(), timeout_s=timeout_s)
    return result


@cache
def _is_filled_store(kind: type[ObjectStore]) -> bool:
    """Whether a store of this class is a ``FilledStore``. To ask each time takes 15 µs."""
    return issubclass(kind, FilledStore)
