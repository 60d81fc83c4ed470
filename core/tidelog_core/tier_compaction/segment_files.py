"""Reads tiered segments for rewriting."""

from __future__ import annotations

import mmap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from tempfile import TemporaryFile

from tidelog_core.compaction.rewrite import WalkedBatch
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.objects.download import download
from tidelog_core.objects.store import ObjectStore
from tidelog_core.records.batch import Buffer, iter_headers
from tidelog_core.tier.index_file import IndexFile, crc32c_of
from tidelog_core.tier.stretches import Stretch


@asynccontextmanager
async def downloaded(
    objects: ObjectStore, key: str, segment: SegmentMeta, index: IndexFile
) -> AsyncIterator[Buffer]:
    """Yield the segment's bytes, in a file that is removed with the context.

    Raises ``CorruptObject`` if they do not match the index.
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


def stretch_batches(log: Buffer, index: IndexFile, stretch: Stretch) -> Iterator[WalkedBatch]:
    """Yield the batches that begin in the stretch.

    Raises ``CorruptRecordBatch``.
    """
    row = index.batches.row_of_offset(stretch.start_offset)
    if row == len(index.batches):
        return
    for position, header in iter_headers(log, index.batches[row].position):
        if header.base_offset >= stretch.end_offset:
            return
        if header.base_offset >= stretch.start_offset:
            yield log, position, header
