"""Writes objects of chains from the files of local logs, chunk by chunk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import BinaryIO, NamedTuple

from tidelog_core.diskless.chain.index import index_rows
from tidelog_core.diskless.wal.build import ObjectFrame, data_sections, frame_object
from tidelog_core.diskless.wal.header import HEADER_SIZE, WalHeader, WalKind
from tidelog_core.diskless.wal.rows import ReferenceRow, RowTable, SliceRow, WalSection
from tidelog_core.diskless.wal.scan import SliceScan
from tidelog_core.errors import TidelogError
from tidelog_core.objects.payload import Chunks

from tidelog_node.tier.wal_memory import FreeChunks, ObjectMemory
from tidelog_node.tier.wal_messages import FileRange, SliceFiles, WalBuildFailed, WalBuildRequest

CHUNK_BYTES = 256 * 1024  # stays in the processor's cache from reading to writing

ReadChunk = Callable[[int, int, int], memoryview]  # of a file: descriptor, size, position


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

    frame, rows = _write_body(request, read, file.writelines)
    file.write(frame.tail)
    file.seek(0)
    file.write(frame.head)
    return WrittenObject(frame.header, rows)


def build_object(request: WalBuildRequest, free: FreeChunks) -> tuple[WrittenObject, Chunks]:
    """Return the object in memory, whose chunks may be given back. Raises ``WalBuildFailed``.

    Every byte is copied once, from the files.
    """
    memory = ObjectMemory(free, _body_size(request))

    def keep(chunks: Iterable[memoryview]) -> None:
        for chunk in chunks:
            memory.keep(len(chunk))

    frame, rows = _write_body(request, memory.read, keep)
    return WrittenObject(frame.header, rows), Chunks([frame.head, *memory.parts(), frame.tail])


def _body_size(request: WalBuildRequest) -> int:
    return sum(one.size_bytes for one in request.slices)


def _write_body(
    request: WalBuildRequest,
    read: ReadChunk,
    write: Callable[[Iterable[memoryview]], None],
) -> tuple[ObjectFrame, bytes]:
    """Write the slices; return the bytes around them, and the object's rows for an index."""
    name = request.name
    position = HEADER_SIZE
    scans: list[tuple[SliceFiles, SliceScan]] = []
    try:
        for one in request.slices:
            scan = SliceScan(position, is_foreign=one.is_foreign)
            write(_scanned(one, scan, read))
            _check_offsets(one, scan)
            scans.append((one, scan))
            position += scan.size_bytes
        sections = data_sections(scans, references=request.references, epochs=request.epochs)
        frame = frame_object(name, WalKind.DATA, _body_size(request), sections)
    except WalBuildFailed:
        raise
    except (TidelogError, ValueError) as error:
        raise WalBuildFailed(f"object {name.sequence} cannot be built: {error}") from error
    slices = RowTable(SliceRow, WalSection.SLICES, memoryview(sections[WalSection.SLICES]))
    references = memoryview(sections[WalSection.REFERENCES])
    of_others = RowTable(ReferenceRow, WalSection.REFERENCES, references)
    return frame, index_rows(name.chain, name.sequence, slices, of_others)


def _scanned(one: SliceFiles, scan: SliceScan, read: ReadChunk) -> Iterator[memoryview]:
    """Yield the slice's bytes once the scan has them, as the reader returns them."""
    for range_ in one.ranges:
        descriptor = _open(range_)
        try:
            at = range_.start
            while at < range_.end:
                chunk = _read(read, descriptor, at, range_)
                taken = scan.take(chunk)
                yield chunk[:taken]
                at += taken
        finally:
            os.close(descriptor)


def _open(range_: FileRange) -> int:
    try:
        return os.open(range_.path, os.O_RDONLY | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise WalBuildFailed(f"{range_.path} cannot be read: {error}") from error


def _read(read: ReadChunk, descriptor: int, at: int, range_: FileRange) -> memoryview:
    try:
        chunk = read(descriptor, min(CHUNK_BYTES, range_.end - at), at)
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
