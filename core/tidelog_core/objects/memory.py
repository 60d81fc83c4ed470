"""An object store in this process's memory, for tests and trials."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from tidelog_core.errors import ObjectExists, ObjectNotFound
from tidelog_core.objects.key_rules import check_key, check_range
from tidelog_core.objects.kms_keys import refuse_kms_key
from tidelog_core.objects.store import ObjectMeta


class MemoryObjectStore:
    """An ``ObjectStore`` whose objects live as long as it does. For one event loop."""

    def __init__(self, *, clock_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._objects: dict[str, tuple[bytes, int]] = {}
        self._clock_ms = clock_ms

    async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
        """Store ``data``. Raises ``ObjectExists``, ``StoreUnavailable`` if a key is named."""
        check_key(key)
        refuse_kms_key(key, kms_key_id)
        if key in self._objects:
            raise ObjectExists(key)
        self._objects[key] = (bytes(data), self._clock_ms())

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        """Store the file's bytes. Raises as ``put``."""
        await self.put(key, path.read_bytes(), kms_key_id=kms_key_id)  # noqa: ASYNC240

    async def replace(self, key: str, data: bytes) -> None:
        """Store ``data`` whether or not the key exists."""
        check_key(key)
        self._objects[key] = (bytes(data), self._clock_ms())

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""
        return self._find(key)[0]

    async def get_range(self, key: str, start: int, end: int) -> bytes:
        """Return bytes ``[start, end)``, fewer only at the end of the object."""
        check_range(start, end)
        return self._find(key)[0][start:end]

    async def head(self, key: str) -> ObjectMeta:
        """Return the object's metadata. Raises ``ObjectNotFound``."""
        data, modified_ms = self._find(key)
        return ObjectMeta(key=key, size_bytes=len(data), modified_ms=modified_ms)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        """Yield the objects whose key starts with ``prefix``, in key order."""
        found = [k for k in self._objects if k.startswith(prefix) and k > start_after]
        for key in sorted(found):
            if key in self._objects:
                data, modified_ms = self._objects[key]
                yield ObjectMeta(key=key, size_bytes=len(data), modified_ms=modified_ms)

    async def delete(self, keys: Sequence[str]) -> None:
        """Remove the objects that are there."""
        for key in keys:
            check_key(key)
        for key in keys:
            self._objects.pop(key, None)

    async def close(self) -> None:
        """Do nothing."""

    def _find(self, key: str) -> tuple[bytes, int]:
        check_key(key)
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key)
        return found
