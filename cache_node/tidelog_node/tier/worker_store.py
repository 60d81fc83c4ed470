"""The object store of a worker, for its node: each call is a request to the worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidelog_core.errors import TierUnavailable
from tidelog_core.model import INT64_MAX
from tidelog_core.objects.key_rules import check_range
from tidelog_core.objects.store import ObjectMeta

from tidelog_node.tier.protocol import Fields, StoreRequest

if TYPE_CHECKING:
    from tidelog_core.objects.expiry import ExpiryRule
    from tidelog_core.objects.payload import Payload

LIST_PAGE_KEYS = 1000  # Source: S3's ListObjectsV2.
INLINE_BYTES_MAX = 8 << 20  # of an object in one answer


class WorkerAway(TierUnavailable):
    """No worker is connected, so it has got nothing of the request."""


class WorkerStore:
    """An ``ObjectStore`` whose calls the worker makes; without ``close``.

    They raise the store's errors and ``TierUnavailable``.
    """

    def __init__(self, call: Callable[[StoreRequest], Awaitable[Fields]]) -> None:
        """``call`` returns the worker's answer."""
        self._call_worker = call

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``, of at most INLINE_BYTES_MAX. Raises ``ObjectExists``."""
        await self._store("put", key, data.hex(), kms_key_id)

    async def put_once(self, key: str, data: Payload, *, timeout_s: float) -> None:
        """Store ``data`` with one request; see ``OneAttemptStore``."""
        await self._store("put-once", key, bytes(data).hex(), timeout_s)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes. Raises ``ObjectExists``."""
        await self._store("put-file", key, str(path), kms_key_id)

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data``, of at most INLINE_BYTES_MAX, whether or not the key exists."""
        await self._store("replace", key, data.hex())

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        return await self.get_range(key, 0, INT64_MAX)

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)``, fewer only if the object ends first; bypasses the cache.

        Raises ``ObjectNotFound``.
        """
        check_range(start, end)
        parts = []
        for at in range(start, max(end, start + 1), INLINE_BYTES_MAX):
            request = StoreRequest("get-range", (key, at, min(at + INLINE_BYTES_MAX, end)))
            parts.append((await self._call_worker(request))["data"])
            if len(parts[-1]) < INLINE_BYTES_MAX:
                break
        return b"".join(parts)

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        return unpack_object(await self._store("head", key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order."""
        while True:
            page = await self._store("list", prefix, start_after)
            for packed in page:
                yield unpack_object(packed)
            if len(page) < LIST_PAGE_KEYS:
                return
            start_after = page[-1][0]

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects that exist, also from the cache."""
        await self._store("delete", *keys)

    async def expiry_rules(self) -> Sequence[ExpiryRule]:
        """Return the rules by which the store deletes objects; see ``ExpiringStore``."""
        from tidelog_core.objects.expiry import ExpiryRule  # Only for nodes with chains.

        return [ExpiryRule(*rule) for rule in await self._store("expiry-rules")]

    async def _store(self, method: str, *arguments: str | float) -> Any:
        return (await self._call_worker(StoreRequest(method, arguments)))["found"]


def pack_object(meta: ObjectMeta) -> list[str | int]:
    """Return the object's metadata as a JSON value."""
    return [meta.key, meta.size_bytes, meta.modified_ms]


def unpack_object(packed: Sequence[Any]) -> ObjectMeta:
    """Return the object's metadata."""
    return ObjectMeta(*packed)
