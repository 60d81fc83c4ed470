"""Tiered segments as local files: reading one, and writing the one that replaces it."""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn

from tidelog_core.errors import CorruptObject
from tidelog_core.log.paths import (
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from tidelog_core.log.segment import LogSegment, NewBatch
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.objects.download import download
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import BatchHeader, Buffer, iter_headers, parse_header
from tidelog_core.tier.index_file import IndexFile, crc32c_of
from tidelog_core.tier.stretches import Stretch

WRITE_SIZE_BYTES = 1 << 20


@asynccontextmanager
async def downloaded(
    objects: ObjectStore, key: str, segment: SegmentMeta, index: IndexFile
) -> AsyncIterator[Buffer]:
    """Give the segment's bytes, in a file that goes with the context.

    Raises ``CorruptObject`` where they are not those that the index describes.
    """
    if segment.size_bytes == 0:
        yield b""
        return
    with TemporaryFile(prefix="tidelog-rewrite-") as file:
        await download(objects, key, segment.size_bytes, file)
        size_bytes = file.tell()
        if size_bytes != segment.size_bytes:
            raise CorruptObject(key, f"it has {size_bytes} bytes instead of {segment.size_bytes}")
        with mmap.mmap(file.fileno(), size_bytes, access=mmap.ACCESS_READ) as log:
            if crc32c_of(log) != index.log_crc32c:
                raise CorruptObject(key, "the CRC of the whole does not match")
            yield log


def stretch_batches(
    log: Buffer, index: IndexFile, stretch: Stretch
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of the batches that begin in the stretch.

    Raises ``CorruptRecordBatch``.
    """
    row = index.batches.row_of_offset(stretch.start_offset)
    if row == len(index.batches):
        return
    for position, header in iter_headers(log, index.batches[row].position):
        if header.base_offset >= stretch.end_offset:
            return
        if header.base_offset >= stretch.start_offset:
            yield position, header


class SegmentWriter:
    """Writes a segment's log and index files into a folder of its own."""

    def __init__(self, folder: Path, base_offset: int, *, index_interval_bytes: int) -> None:
        self._folder = folder
        self._interval_bytes = index_interval_bytes
        self._segment = LogSegment(folder, base_offset, created_ms=0, rebuild=_never_rebuilt)
        self._segment.create()
        self._content = bytearray()
        self._batches: list[NewBatch] = []
        # Producers of transactional data, with the base offsets of their first and last batch.
        self.transactional: dict[int, tuple[int, int]] = {}

    def append(self, batch: bytes) -> None:
        """Add a whole batch."""
        header = parse_header(batch)
        self._batches.append(
            NewBatch(
                len(self._content), header.base_offset, header.next_offset, header.max_timestamp_ms
            )
        )
        self._content += batch
        if header.is_transactional and not header.is_control:
            first, _ = self.transactional.get(header.producer_id, (header.base_offset, 0))
            self.transactional[header.producer_id] = first, header.base_offset
        if len(self._content) >= WRITE_SIZE_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is left and the indexes. The files are as they are to be then."""
        self._flush()
        self._segment.write_indexes()
        self._segment.close()

    @property
    def size_bytes(self) -> int:
        """The bytes of the log file, all of them once it is closed."""
        return self._segment.size_bytes

    @property
    def path(self) -> Path:
        """The log file."""
        return self._segment.path

    @property
    def offset_index(self) -> Path:
        """The offset index file."""
        return segment_path(self._folder, self._segment.base_offset, OFFSET_INDEX_SUFFIX)

    @property
    def time_index(self) -> Path:
        """The time index file."""
        return segment_path(self._folder, self._segment.base_offset, TIME_INDEX_SUFFIX)

    def _flush(self) -> None:
        if self._batches:
            self._segment.append(self._content, self._batches, interval_bytes=self._interval_bytes)
            self._content, self._batches = bytearray(), []


def _never_rebuilt(segment: LogSegment) -> NoReturn:
    raise AssertionError(f"{segment.path} is only written to")
