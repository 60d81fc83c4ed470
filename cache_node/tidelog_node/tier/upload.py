"""Stores a segment's two objects: build the index, put the log, put the index.

Both keys hold the id of this attempt, so an object that is already there can only be
of an earlier try of the same attempt; puts are atomic, so it is whole. Trying again
after a lost reply or a restart of the worker is therefore safe, and costs no second PUT.
An index that is already there is compared: what it says besides the log's bytes, such
as the chained hash, may be another now, and the metadata must say what the object says.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from pathlib import Path

from tidelog_core.errors import (
    CorruptObject,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StoreUnavailable,
)
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_build import BuiltIndex, build_index_file

from tidelog_node.tier.protocol import UploadRequest, UploadResult

logger = logging.getLogger(__name__)

ATTEMPTS_MAX = 4
DELAY_S_MIN = 0.2
DELAY_S_MAX = 5.0


async def upload_segment(
    store: ObjectStore, request: UploadRequest, *, executor: Executor
) -> UploadResult:
    """Store the segment; durable on return.

    Raises ``CorruptRecordBatch`` where the log on disk is damaged, ``StorageError``
    where it cannot be read, ``CorruptObject`` where an earlier try has stored something
    else under the keys (only a new segment id helps), ``StoreUnavailable`` or
    ``OutcomeUnknown`` when attempts have run out: the caller may ask again.
    """
    source, keys = request.source, request.keys
    loop = asyncio.get_running_loop()
    try:
        before = _identity(source.path)
        built: BuiltIndex = await loop.run_in_executor(executor, build_index_file, source)
        await _put_once(
            store, keys.log, source.size_bytes, lambda: store.put_file(keys.log, source.path)
        )
        after = _identity(source.path)
    except OSError as error:
        raise StorageError(f"{source.path} cannot be read: {error}") from error
    if after != before:
        # The index must describe the very bytes that went up.
        raise StorageError(f"{source.path} was replaced while it was uploaded")
    is_ours = await _put_once(
        store, keys.index, len(built.data), lambda: store.put(keys.index, built.data)
    )
    if not is_ours and await store.get(keys.index) != built.data:
        raise CorruptObject(keys.index, "an earlier try has stored another index")
    return UploadResult(
        len(built.data),
        built.chained_hash,
        built.max_timestamp_ms,
        stored_ms=await _stored_ms(store, keys.index) if is_ours else NO_TIMESTAMP,
    )


async def _stored_ms(store: ObjectStore, key: str) -> int:
    """Return the bucket's time of an object that was put just now."""
    try:
        return (await store.head(key)).modified_ms
    except (ObjectNotFound, StoreUnavailable):
        return NO_TIMESTAMP  # What it is good for is no reason to upload again.


async def _put_once(
    store: ObjectStore, key: str, size_bytes: int, put: Callable[[], Awaitable[None]]
) -> bool:
    """Return whether this call has stored the object; else one of that size was there."""
    delay_s = DELAY_S_MIN
    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            await put()
        except ObjectExists:
            await _require_size(store, key, size_bytes)
            return False
        except (StoreUnavailable, OutcomeUnknown) as error:
            if isinstance(error, OutcomeUnknown) and await _is_there(store, key, size_bytes):
                return False
            if attempt == ATTEMPTS_MAX:
                raise
            logger.warning(
                "upload failed, will retry",
                extra={"key": key, "attempt": attempt, "reason": str(error)},
            )
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, DELAY_S_MAX)
        else:
            return True
    raise AssertionError("unreachable")


def _identity(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


async def _is_there(store: ObjectStore, key: str, size_bytes: int) -> bool:
    try:
        await _require_size(store, key, size_bytes)
    except (ObjectNotFound, StoreUnavailable):
        return False
    return True


async def _require_size(store: ObjectStore, key: str, size_bytes: int) -> None:
    found = (await store.head(key)).size_bytes
    if found != size_bytes:
        raise CorruptObject(key, f"it has {found} bytes instead of {size_bytes}")
