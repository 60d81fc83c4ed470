"""Reads the batches of a segment file, for recovery and for rebuilding indexes.

The file is read in chunks and not mapped: an unreadable page then raises ``OSError`` for
one log, and no SIGBUS stops the node.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple

from tidelog_core.errors import CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    Buffer,
    decode_records,
    parse_header,
)
from tidelog_core.records.control import EndTransactionMarker, parse_end_transaction_marker

CHUNK_BYTES = 4 * 1024 * 1024


class ScannedBatch(NamedTuple):
    """A whole batch in a file."""

    buffer: bytes
    at: int  # where in the buffer it starts
    position: int  # where in the file it starts
    header: BatchHeader


def scan_file(path: Path, size_bytes: int) -> Generator[ScannedBatch, None, None]:
    """Yield every whole batch in the file's first ``size_bytes``.

    Stops without an error at the first bytes that are no whole batch. CRCs are not checked.
    Raises ``OSError``.
    """
    if size_bytes < HEADER_SIZE:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        position = chunk_position = 0
        chunk = b""
        while position + HEADER_SIZE <= size_bytes:
            at = position - chunk_position
            if at + HEADER_SIZE > len(chunk):
                chunk = os.pread(descriptor, min(CHUNK_BYTES, size_bytes - position), position)
                chunk_position, at = position, 0
            header = parse_header(chunk, at)
            batch_size_bytes = header.size_bytes
            if position + batch_size_bytes > size_bytes:
                return
            if at + batch_size_bytes > len(chunk):
                wanted = min(max(CHUNK_BYTES, batch_size_bytes), size_bytes - position)
                chunk = os.pread(descriptor, wanted, position)
                chunk_position, at = position, 0
                if len(chunk) < batch_size_bytes:
                    return
            yield ScannedBatch(chunk, at, position, header)
            position += batch_size_bytes
    except (CorruptRecordBatch, UnsupportedMagic):
        return
    finally:
        os.close(descriptor)


def read_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """Return the marker of a control batch.

    None for a batch of data, and for a control batch without a marker.
    Raises ``CorruptRecordBatch``.
    """
    if not header.is_control:
        return None
    records = decode_records(buffer, position)
    return parse_end_transaction_marker(records[0]) if records else None
