"""The interface of an object store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a listing tells of an object."""

    key: str
    size_bytes: int
    modified_ms: int  # Unix time


class ObjectStore(Protocol):
    """Immutable objects by key. Keys are ``/``-separated, relative to the store's own prefix.

    Any number of tasks and processes may call at once. Every write is durable on
    return. An object is never changed once written: a second ``put`` of its key
    raises ``ObjectExists`` and leaves the first as it is. A write whose outcome
    cannot be known raises ``OutcomeUnknown``; a store that is away raises
    ``StoreUnavailable``; both after the store's own bounded retries.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Store ``data``. Raises ``ObjectExists``."""

    async def put_file(self, key: str, path: Path) -> None:
        """Store the file's bytes, as they are at the call. Raises ``ObjectExists``."""

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists; readers see the old or the new, whole.

        For the few manifests that are not immutable.
        """

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Return bytes ``[start, end)``, fewer only where the object ends.

        They may be a view of what the store's client has received, read only.
        Raises ``ObjectNotFound``.
        """

    async def head(self, key: str) -> ObjectMeta:
        """Return what is known of the object without its bytes. Raises ``ObjectNotFound``."""

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order.

        Only keys that sort after ``start_after``, whether or not it is one. Who else may write
        there may have put objects under any name: they are listed too, but ``delete`` and the
        others refuse keys that ``key_rules`` do not allow.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. A key that is not there is no error: deleting twice is harmless."""

    async def close(self) -> None:
        """Release connections and threads. The store is not used after."""
