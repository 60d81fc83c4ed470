"""Reads a split: ranged GETs ahead of the decoder, rows out.

The store's calls run on an event loop in a separate thread. Several are always in
flight, so the network (or disk) and the decoder work at the same time; the decoder
releases the interpreter lock.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import islice
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
from tidelog.arrow.decoding import AbortedRange, BatchDecoder, RowRange
from tidelog_core.diskless.wal.slice_bytes import check_slice_bytes, placed_batches
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.model import INT64_MAX
from tidelog_core.objects.store import ObjectStore

from tidelog_spark.loop_thread import LoopThread
from tidelog_spark.reading.splits import DataLost, Slice, Split
from tidelog_spark.stores.cluster_objects import require_objects

logger = logging.getLogger(__name__)

CHUNK_SIZE_BYTES = 8 * 1024 * 1024
CHUNKS_AHEAD = 4
REPLANS_MAX = 100  # per task, each for a different object

StoreOpener = Callable[[], ObjectStore]


def read_split(
    split: Split,
    open_store: StoreOpener,
    *,
    is_kept: bool = False,
    include_headers: bool,
    fail_on_data_loss: bool,
    replan: Callable[[Split], Split],
) -> Iterator[pa.RecordBatch]:
    """Yield the split's rows in offset order.

    The store is closed at the end unless it ``is_kept`` for other splits. If an object is
    gone, ``replan`` gets the remaining split and returns its current location. Raises
    ``CorruptObject`` for bytes that do not match the metadata, ``DataLost`` for an object
    without a replacement, unless data loss is tolerated, ``InvalidConfig`` for a store with no
    object of the cluster, and the errors of ``replan``.
    """
    left = deque(split.slices)
    gone: set[str] = set()
    with _Fetcher(open_store, is_kept=is_kept) as fetcher:
        pieces = fetcher.pieces(split.slices)
        while left:
            part = left[0]
            try:
                for batch in _read(split, part, pieces, include_headers=include_headers):
                    yield batch
                    next_offset = int(batch.column("offset")[-1].as_py()) + 1
                    left[0] = replace(part, start_offset=next_offset)
                left.popleft()
            except ObjectNotFound as error:
                if part.object_key in gone or len(gone) == REPLANS_MAX:
                    fetcher.require_objects_of_cluster(part.object_key)
                    _lose(split, left.popleft(), error, is_error=fail_on_data_loss)
                    split = replace(split, slices=tuple(left))
                else:
                    gone.add(part.object_key)
                    split = replan(replace(split, slices=tuple(left)))
                left = deque(split.slices)
                pieces = fetcher.pieces(split.slices)


def first_offset_of_time(part: Slice, data: bytes) -> int:
    """Return the offset of the first record that is new enough for the slice's start.

    ``data`` holds the slice, a single batch with such a record. Raises ``CorruptObject`` for
    bytes that do not match the metadata.
    """
    rows = RowRange(topic="", partition=0, start_offset=part.start_offset, end_offset=INT64_MAX)
    decoder = BatchDecoder(rows, object_key=part.object_key, position=part.position)
    for batch in decoder.feed(checked_bytes(part, data)):
        times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        found = _first(times >= part.from_timestamp_ms)
        if found < len(times):
            return int(batch.column("offset")[found].as_py())
    decoder.finish()
    raise CorruptObject(part.object_key, f"no record is as new as {part.from_timestamp_ms}")


def _lose(split: Split, part: Slice, error: ObjectNotFound, *, is_error: bool) -> None:
    lost = (
        f"offsets [{part.start_offset}, {part.end_offset}) of"
        f" {split.topic}-{split.partition} are gone: {error}"
    )
    if is_error:
        raise DataLost([lost]) from None
    logger.warning("skipped lost offsets", extra={"reason": lost})


def _read(
    split: Split, part: Slice, pieces: Iterator[bytes | memoryview], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    if part.from_timestamp_ms is None and part.until_timestamp_ms is None:
        return _read_slice(split, part, pieces, include_headers=include_headers)
    return _read_timed(split, part, pieces, include_headers=include_headers)


def _read_slice(
    split: Split,
    part: Slice,
    pieces: Iterator[bytes | memoryview],
    *,
    include_headers: bool,
    is_filtered: bool = True,
) -> Iterator[pa.RecordBatch]:
    rows = RowRange(
        topic=split.topic,
        partition=split.partition,
        start_offset=part.start_offset if is_filtered else 0,
        end_offset=part.end_offset if is_filtered else INT64_MAX,
        include_headers=include_headers,
        aborted=tuple(
            AbortedRange(one.producer_id, one.first_offset, one.last_offset + 1)
            for one in split.aborted
        ),
    )
    decoder = BatchDecoder(rows, object_key=part.object_key, position=part.position)
    chunks: Iterator[bytes | memoryview] = islice(pieces, len(_chunks(part)))
    if part.crc32c is not None or part.base_offset is not None:
        chunks = iter((checked_bytes(part, b"".join(chunks)),))
    for chunk in chunks:
        yield from decoder.feed(chunk)
    decoder.finish()


def checked_bytes(part: Slice, data: bytes) -> bytes | memoryview:
    """Return the slice's batches with their offsets. Raises ``CorruptObject``.

    Slices with a CRC, or whose batches lack their offsets, are no larger than an object that a
    node uploads at once.
    """
    key, position = part.object_key, part.position
    if part.crc32c is not None:
        check_slice_bytes(data, part.crc32c, key=key, position=position)
    if part.base_offset is None:
        return data
    return memoryview(placed_batches(data, part.base_offset, key=key, position=position))


def _read_timed(
    split: Split, part: Slice, pieces: Iterator[bytes | memoryview], *, include_headers: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a single batch from one time on, or up to another.

    The end is searched among all of the batch's rows, as in a broker's offset lookup.
    """
    for batch in _read_slice(
        split, part, pieces, include_headers=include_headers, is_filtered=False
    ):
        offsets = batch.column("offset").to_numpy()
        times = batch.column("timestamp").cast(pa.int64()).to_numpy() // 1000
        start = _first(offsets >= part.start_offset)
        end = _first(offsets >= part.end_offset)
        if part.from_timestamp_ms is not None:
            start += _first(times[start:] >= part.from_timestamp_ms)
        if part.until_timestamp_ms is not None:
            end = min(end, _first(times >= part.until_timestamp_ms))
        if start < end:
            yield batch.slice(start, end - start)


def _first(facts: np.ndarray[Any, np.dtype[np.bool_]]) -> int:
    """Return the index of the first true, or the length."""
    return int(facts.argmax()) if facts.any() else len(facts)


def _chunks(part: Slice) -> list[tuple[int, int]]:
    """Return the byte ranges in which a slice is fetched."""
    end = part.position + part.size_bytes
    return [
        (start, min(start + CHUNK_SIZE_BYTES, end))
        for start in range(part.position, end, CHUNK_SIZE_BYTES)
    ]


class _Fetcher:
    """Reads one split's objects from a store, on a loop in a thread."""

    def __init__(self, open_store: StoreOpener, *, is_kept: bool) -> None:
        self._open_store = open_store
        self._is_kept = is_kept
        self._pending: deque[Future[bytes | memoryview]] = deque()

    def __enter__(self) -> Self:
        self._thread = LoopThread("fetch")
        try:
            self._store = self._thread.run(self._open())
        except BaseException:
            self._thread.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._drop_pending()
            if not self._is_kept:
                self._thread.run(self._store.close())
        finally:
            self._thread.stop()

    def pieces(self, slices: tuple[Slice, ...]) -> Iterator[bytes | memoryview]:
        """Yield the bytes of every chunk of every slice in order, with some fetched ahead."""
        self._drop_pending()
        chunks = iter([(part.object_key, *chunk) for part in slices for chunk in _chunks(part)])
        for _, chunk in zip(range(CHUNKS_AHEAD), chunks, strict=False):
            self._pending.append(self._thread.start(self._fetch(*chunk)))
        while self._pending:
            data = self._pending.popleft().result()
            for chunk in chunks:
                self._pending.append(self._thread.start(self._fetch(*chunk)))
                break
            yield data

    def require_objects_of_cluster(self, key: str) -> None:
        """Raise ``InvalidConfig`` if the store has no object of the cluster that has the key."""
        self._thread.run(require_objects(self._store, key.partition("/")[0]))

    async def _open(self) -> ObjectStore:
        return self._open_store()

    async def _fetch(self, key: str, start: int, end: int) -> bytes | memoryview:
        data = await self._store.get_range(key, start, end)
        if len(data) != end - start:
            raise CorruptObject(
                key, f"it ends at byte {start + len(data)}, and should continue to {end} at least"
            )
        return data

    def _drop_pending(self) -> None:
        """Cancel pending fetches and wait until they have stopped."""
        for future in self._pending:
            future.cancel()
        self._pending.clear()
        self._thread.settle()
