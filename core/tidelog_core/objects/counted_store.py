"""An object store that counts the calls of another one, and their bytes.

A call of the interface is one request to the bucket for objects below the multipart threshold, one
for each page of a listing, and one for up to a thousand deleted keys.
"""

from __future__ import annotations

import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

from tidelog_core.errors import (
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StoreUnavailable,
    TidelogError,
    WrongObjectStore,
)
from tidelog_core.objects.expiry import ExpiryRule, expiry_rules
from tidelog_core.objects.filled_store import Fill, put_filled
from tidelog_core.objects.one_attempt import put_once
from tidelog_core.objects.payload import Payload
from tidelog_core.objects.store import ObjectMeta, ObjectStore

T = TypeVar("T")

GROUPS_MAX = 1_000  # that requests are counted for; further ones are in the totals alone
IDLE_SECONDS_MIN = 3_600.0  # without a request, after which a group makes room for another one
LIST_PAGE_KEYS = 1_000  # Source: S3's ListObjectsV2 and DeleteObjects.
_OUTCOMES: dict[type[TidelogError], str] = {
    ObjectNotFound: "not_found",
    ObjectExists: "exists",
    StoreUnavailable: "unavailable",
    WrongObjectStore: "unavailable",
    OutcomeUnknown: "unknown",
}


class GroupUsage:
    """The requests for the keys of one group."""

    __slots__ = ("received_bytes", "requests", "sent_bytes", "used_s")

    def __init__(self) -> None:
        self.used_s = time.monotonic()
        self.requests: dict[str, int] = {}  # by method
        self.sent_bytes = 0
        self.received_bytes = 0


class ObjectUsage:
    """The requests of one store since it was made."""

    __slots__ = ("by_group", "received_bytes", "requests", "seconds", "sent_bytes")

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}  # by method and outcome
        self.seconds: dict[str, float] = {}  # by method, spent waiting for it
        self.sent_bytes = 0
        self.received_bytes = 0
        self.by_group: dict[str, GroupUsage] = {}  # the longest unused first

    def group(self, name: str) -> GroupUsage:
        """Return the usage of a group of keys; beyond ``GROUPS_MAX`` one that is not kept."""
        found = self.by_group.pop(name, None)
        if found is None:
            found = GroupUsage()
            if not name or not self._has_room(found.used_s):
                return found
        found.used_s = time.monotonic()
        self.by_group[name] = found
        return found

    def _has_room(self, now_s: float) -> bool:
        """Return whether another group is kept, if need be in place of an idle one."""
        if len(self.by_group) < GROUPS_MAX:
            return True
        oldest = next(iter(self.by_group))
        if now_s - self.by_group[oldest].used_s < IDLE_SECONDS_MIN:
            return False
        del self.by_group[oldest]
        return True

    def note(self, method: str, outcome: str, seconds: float, *, count: int = 1) -> None:
        """Count a call that took ``count`` requests."""
        key = (method, outcome)
        self.requests[key] = self.requests.get(key, 0) + count
        self.seconds[method] = self.seconds.get(method, 0.0) + seconds


class CountedObjectStore:
    """An ``ObjectStore``. For one event loop."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        group_of: Callable[[str], str] = lambda _: "",
        on_failed: Callable[[TidelogError], None] = lambda _: None,
    ) -> None:
        """``group_of`` returns the group of a key that it is counted for; empty: none.

        ``on_failed`` gets the error of each call that fails.
        """
        self._store = store
        self._group_of = group_of
        self._on_failed = on_failed
        self.usage = ObjectUsage()

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``; see ``ObjectStore``."""
        await self._counted("put", key, self._store.put(key, data, kms_key_id=kms_key_id))
        self._note_sent(key, len(data))

    async def put_once(self, key: str, data: Payload, *, timeout_s: float) -> None:
        """Store ``data`` with one request; see ``OneAttemptStore``."""
        attempt = put_once(self._store, key, data, timeout_s=timeout_s)
        await self._counted("put", key, attempt)
        self._note_sent(key, len(data))

    async def put_filled(self, key: str, fill: Fill[T], *, timeout_s: float) -> T:
        """Store the bytes that ``fill`` writes, by one attempt; see ``FilledStore``."""
        size_bytes = 0

        def fill_and_count(file: BinaryIO) -> T:
            nonlocal size_bytes
            result = fill(file)
            size_bytes = file.seek(0, io.SEEK_END)
            return result

        attempt = put_filled(self._store, key, fill_and_count, timeout_s=timeout_s)
        result = await self._counted("put", key, attempt)
        self._note_sent(key, size_bytes)
        return result

    async def expiry_rules(self) -> Sequence[ExpiryRule]:
        """Return the bucket's rules; see ``ExpiringStore``. Its one request costs nothing."""
        return await expiry_rules(self._store)

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes; see ``ObjectStore``."""
        size_bytes = _size_bytes(path)
        await self._counted("put", key, self._store.put_file(key, path, kms_key_id=kms_key_id))
        self._note_sent(key, size_bytes)

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists."""
        await self._counted("put", key, self._store.replace(key, data))
        self._note_sent(key, len(data))

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        found = await self._counted("get", key, self._store.get(key))
        self._note_received(key, len(found))
        return found

    async def get_range(self, key: str, start: int, end: int) -> bytes | memoryview:
        """Return bytes ``[start, end)``. Raises ``ObjectNotFound``."""
        found = await self._counted("get", key, self._store.get_range(key, start, end))
        self._note_received(key, len(found))
        return found

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        return await self._counted("head", key, self._store.head(key))

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order."""
        began, found_count, outcome = time.monotonic(), 0, "failed"
        try:
            async for found in self._store.list(prefix, start_after=start_after):
                found_count += 1
                yield found
            outcome = "ok"
        except GeneratorExit:
            outcome = "ok"  # The caller has enough.
            raise
        except TidelogError as error:
            outcome = self._failed(error)
            raise
        finally:
            pages = max(1, -(-found_count // LIST_PAGE_KEYS))
            self._note("list", prefix, outcome, time.monotonic() - began, count=pages)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects. A missing key is no error."""
        if keys:
            pages = -(-len(keys) // LIST_PAGE_KEYS)
            await self._counted("delete", keys[0], self._store.delete(keys), count=pages)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()

    def _note(self, method: str, key: str, outcome: str, seconds: float, *, count: int) -> None:
        self.usage.note(method, outcome, seconds, count=count)
        requests = self.usage.group(self._group_of(key)).requests
        requests[method] = requests.get(method, 0) + count

    def _note_sent(self, key: str, size_bytes: int) -> None:
        self.usage.sent_bytes += size_bytes
        self.usage.group(self._group_of(key)).sent_bytes += size_bytes

    def _note_received(self, key: str, size_bytes: int) -> None:
        self.usage.received_bytes += size_bytes
        self.usage.group(self._group_of(key)).received_bytes += size_bytes

    async def _counted(self, method: str, key: str, call: Awaitable[T], *, count: int = 1) -> T:
        began, outcome = time.monotonic(), "failed"
        try:
            result = await call
            outcome = "ok"
            return result
        except TidelogError as error:
            outcome = self._failed(error)
            raise
        finally:
            self._note(method, key, outcome, time.monotonic() - began, count=count)

    def _failed(self, error: TidelogError) -> str:
        self._on_failed(error)
        return _OUTCOMES.get(type(error), "failed")


def _size_bytes(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
