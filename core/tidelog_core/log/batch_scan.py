"""Walks over the batches of a segment file, for recovery and for rebuilding."""

from __future__ import annotations

import mmap
import os
from collections.abc import Generator
from pathlib import Path

from tidelog_core.errors import CorruptRecordBatch, UnsupportedMagic
from tidelog_core.records.batch import BatchHeader, Buffer, decode_records, iter_headers
from tidelog_core.records.control import EndTransactionMarker, parse_end_transaction_marker

ScannedBatch = tuple[Buffer, int, BatchHeader]


def scan_file(path: Path, size_bytes: int) -> Generator[ScannedBatch, None, None]:
    """Yield buffer, position and header of every whole batch in the file's first bytes.

    Ends without an error where no whole batch follows. CRCs are not checked. The
    buffer is valid until the iterator is closed or has ended.
    """
    if size_bytes == 0:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = mmap.mmap(descriptor, size_bytes, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    try:
        for position, header in iter_headers(content):
            yield content, position, header
    except (CorruptRecordBatch, UnsupportedMagic):
        return
    finally:
        content.close()


def read_marker(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
    """Return what a control batch says of its producer's transaction.

    None for a batch of data, and for a control batch without a marker in it.
    Raises ``CorruptRecordBatch``.
    """
    if not header.is_control:
        return None
    records = decode_records(buffer, position)
    return parse_end_transaction_marker(records[0]) if records else None
