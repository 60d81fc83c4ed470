"""Writes objects of chains from the files of local logs, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from tidelog_core.diskless.chain.index import index_rows
from tidelog_core.diskless.wal.build import ObjectEnds, data_sections, object_ends
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalHeader, WalKind
from tidelog_core.diskless.wal.rows import ReferenceRow, RowTable, SliceRow, WalSection
from tidelog_core.diskless.wal.scan import SliceScan
from tidelog_core.errors import TidelogError
from tidelog_core.objects.payload import ChunkCollector, Chunks

from tidelog_node.tier.wal_messages import FileRange, SliceFiles, WalBuildFailed, WalBuildRequest

CHUNK_BYTES = 256 * 1024  # stays in the processor's cache from reading to writing
# Of an object in memory. It stays in the cache for its CRC, and the store's client takes Python's
# lock once for each.
KEPT_CHUNK_BYTES = 1024 * 1024

ReadChunk = Callable[[int, int, int], bytes | memoryview]  # of a file: descriptor, size, position


class _Reader(NamedTuple):
    """How the files are read: into one buffer again and again, or into new memory."""

    read: ReadChunk
    chunk_bytes: int  # at most, of one read


class WrittenObject(NamedTuple):
    """An object that was written."""

    header: WalHeader
    rows: bytes  # of an index


def write_object(request: WalBuildRequest, file: BinaryIO) -> WrittenObject:
    """Write the object from the file's start on, and return its header.

    Every byte is read, checked and written once. Raises ``WalBuildFailed`` if the log's files do
    not have what the object needs, ``OSError`` if the object cannot be written.
    """
    file.write(bytes(HEADER_SIZE))
    buffer = memoryview(bytearray(min(CHUNK_BYTES, _body_size(request))))

    def read(descriptor: int, size: int, at: int) -> memoryview:
        chunk = buffer[:size]
        return chunk[: os.preadv(descriptor, [chunk], at)]

    ends, rows = _write_body(request, _Reader(read, CHUNK_BYTES), file.writelines)
    file.write(ends.tail)
    file.seek(0)
    file.write(ends.head)
    return WrittenObject(ends.header, rows)


def build_object(request: WalBuildRequest) -> tuple[WrittenObject, Chunks]:
    """Return the object in memory. Raises ``WalBuildFailed``.

    Large slices are copied once, from the files, into memory that was not zeroed before.
    """
    chunks = ChunkCollector()
    ends, rows = _write_body(request, _Reader(os.pread, KEPT_CHUNK_BYTES), chunks.extend)
    chunks.extend([ends.tail])
    return WrittenObject(ends.header, rows), chunks.collected(ends.head)


def _body_size(request: WalBuildRequest) -> int:
    return sum(one.size_bytes for one in request.slices)


def _write_body(
    request: WalBuildRequest,
    reader: _Reader,
    write: Callable[[Iterable[bytes | memoryview]], None],
) -> tuple[ObjectEnds, bytes]:
    """Write the slices; return the rest of the object, and the rows of an index."""
    name = request.name
    position = HEADER_SIZE
    scans: list[tuple[SliceFiles, SliceScan]] = []
    try:
        for one in request.slices:
            scan = SliceScan(position, is_foreign=one.is_foreign)
            write(_scanned(one, scan, reader))
            _check_offsets(one, scan)
            scans.append((one, scan))
            position += scan.size_bytes
        sections = data_sections(
            scans, references=request.references, epochs=request.epochs, marks=request.marks
        )
        ends = object_ends(name, WalKind.DATA, _body_size(request), sections)
    except WalBuildFailed:
        raise
    except (TidelogError, ValueError) as error:
        raise WalBuildFailed(f"object {name.sequence} cannot be built: {error}") from error
    slices = RowTable(SliceRow, WalSection.SLICES, memoryview(sections[WalSection.SLICES]))
    references = memoryview(sections[WalSection.REFERENCES])
    of_others = RowTable(ReferenceRow, WalSection.REFERENCES, references)
    return ends, index_rows(name.chain, name.sequence, slices, of_others)


def _scanned(one: SliceFiles, scan: SliceScan, reader: _Reader) -> Iterator[bytes | memoryview]:
    """Yield the slice's bytes once the scan has them, as the reader returns them."""
    for range_ in one.ranges:
        descriptor = _open(range_)
        try:
            at = range_.start
            while at < range_.end:
                chunk = _read(reader, descriptor, at, range_)
                taken = scan.take(chunk)
                yield chunk if taken == len(chunk) else memoryview(chunk)[:taken]
                at += taken
        finally:
            os.close(descriptor)


def _open(range_: FileRange) -> int:
    try:
        return os.open(range_.path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise WalBuildFailed(f"{range_.path} cannot be read: {error}") from error


def _read(reader: _Reader, descriptor: int, at: int, range_: FileRange) -> bytes | memoryview:
    try:
        chunk = reader.read(descriptor, min(reader.chunk_bytes, range_.end - at), at)
    except OSError as error:
        raise WalBuildFailed(f"{range_.path} cannot be read: {error}") from error
    if not chunk:
        raise WalBuildFailed(f"{range_.path} ends at {at}, before {range_.end}")
    return chunk


def _check_offsets(one: SliceFiles, scan: SliceScan) -> None:
    """Raise unless the slice has the offsets that were asked for.

    The files may have been replaced since the node looked the positions up.
    """
    scan.finish()
    if not scan.batch_count:
        raise ValueError(f"a slice of partition {one.partition} has no batch")
    if (scan.base_offset, scan.end_offset) != (one.base_offset, one.end_offset):
        raise WalBuildFailed(
            f"the files of partition {one.partition} of topic {one.topic_id} have"
            f" [{scan.base_offset}, {scan.end_offset}) instead of"
            f" [{one.base_offset}, {one.end_offset})"
        )
