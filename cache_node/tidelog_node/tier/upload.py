"""Stores a segment's two objects: build the index, put the log, put the index.

Both keys contain the id of the copy, so an object that already exists was stored by an earlier
attempt at the same copy; puts are atomic, so it is complete. A retry after a lost reply or a
restart of the worker is therefore safe and costs no second PUT. An existing index object is
compared: its additions to the log's bytes, such as the chained hash, may differ now, and the
metadata must agree with the object.
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

    Raises ``CorruptRecordBatch`` if the log file is damaged, ``StorageError`` if it cannot be read,
    ``CorruptObject`` if an earlier attempt has stored other bytes under the keys (only a new
    segment id helps), and ``StoreUnavailable`` or ``OutcomeUnknown`` after the last attempt: the
    caller may retry.
    """
    source, keys, kms_key_id = request.source, request.keys, request.kms_key_id
    loop = asyncio.get_running_loop()
    try:
        before = _identity(source.path)
        built: BuiltIndex = await loop.run_in_executor(executor, build_index_file, source)
        await _put_once(
            store,
            keys.log,
            source.size_bytes,
            lambda: store.put_file(keys.log, source.path, kms_key_id=kms_key_id),
            path=source.path,
        )
        after = _identity(source.path)
    except OSError as error:
        raise StorageError(f"{source.path} cannot be read: {error}") from error
    if after != before:
        # The index must describe exactly the bytes that were stored.
        raise StorageError(f"{source.path} was replaced while it was uploaded")
    is_ours = await _put_once(
        store,
        keys.index,
        len(built.data),
        lambda: store.put(keys.index, built.data, kms_key_id=kms_key_id),
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
    """Return the bucket's time of an object that was just put."""
    try:
        return (await store.head(key)).modified_ms
    except (ObjectNotFound, StoreUnavailable):
        return NO_TIMESTAMP  # The time is not worth another upload.


async def _put_once(
    store: ObjectStore,
    key: str,
    size_bytes: int,
    put: Callable[[], Awaitable[None]],
    *,
    path: Path | None = None,
) -> bool:
    """Store the object; return False if one of that size existed already.

    Raises ``OSError`` if the file at the path cannot be read: no further try would help.
    """
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
            if path is not None:
                _identity(path)
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
