"""The interface of an object store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's entry in a listing."""

    key: str
    size_bytes: int
    modified_ms: int  # Unix time


class ObjectStore(Protocol):
    """Immutable objects by key. Keys are ``/``-separated, relative to the store's own prefix.

    Tasks and processes may use it concurrently. Every write is durable on
    return. An object is never changed once written: a second ``put`` of its key
    raises ``ObjectExists`` and leaves the first as it is. A write whose outcome
    cannot be known raises ``OutcomeUnknown``; an unavailable store raises
    ``StoreUnavailable``; both after the store's own bounded retries.
    """

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``, encrypted with this key of AWS KMS; empty: as the store always does.

        Raises ``ObjectExists``, and ``StoreUnavailable`` also where the store cannot encrypt so.
        """

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes, as they are at the call. The rest is as in ``put``."""

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists; readers see the old or the new, whole.

        For the few manifests that are not immutable.
        """

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Return bytes ``[start, end)``, fewer only at the end of the object.

        They may be a read-only view of the client's receive buffer.
        Raises ``ObjectNotFound``.
        """

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""

    def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order.

        Only keys that sort after ``start_after``, which need not exist. Other writers may have put
        objects under any name: they are listed too, but ``delete`` and the other methods refuse
        keys that ``key_rules`` do not allow.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. A missing key is no error, so deleting can be repeated."""

    async def close(self) -> None:
        """Release connections and threads. The store is not used after."""
