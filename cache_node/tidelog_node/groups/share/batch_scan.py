"""Finds the batches in a slice of the log, and the bytes of given offsets."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from tidelog_core.log.values import LogRead
from tidelog_core.model import FileSlice
from tidelog_core.records.batch import HEADER_SIZE, parse_header

from tidelog_node.groups.share.state import LogBatch
from tidelog_node.wire.share_fetch import Acquired

# Read at once: many small batches share a call, and little of a large one is read for nothing.
WINDOW_BYTES = 16_384


class ReadBatches(NamedTuple):
    """The whole batches of a slice, without gaps."""

    batches: list[LogBatch]
    ends: list[int]  # of each batch, in bytes from the start of the slice
    aborted: list[LogBatch]  # batches of aborted transactions


def scan_batches(read: LogRead, records: FileSlice, *, up_to: int) -> ReadBatches:
    """Return the whole batches of the slice that begin below the offset ``up_to``.

    Raises ``OSError``, and ``CorruptRecordBatch`` if the bytes are not batches.
    """
    found = ReadBatches([], [], [])
    aborted = read.aborted_transactions
    descriptor = records.file.fileno()
    window, window_at, at = b"", 0, 0
    while at + HEADER_SIZE <= records.size_bytes:
        if at + HEADER_SIZE > window_at + len(window):
            size_bytes = min(WINDOW_BYTES, records.size_bytes - at)
            window, window_at = os.pread(descriptor, size_bytes, records.position + at), at
        header = parse_header(window, at - window_at)
        at += header.size_bytes
        if at > records.size_bytes or header.base_offset >= up_to:
            break
        batch = LogBatch(header.base_offset, header.last_offset)
        found.batches.append(batch)
        found.ends.append(at)
        if header.is_transactional and not header.is_control:
            for transaction in aborted:
                is_within = transaction.first_offset <= batch.base_offset <= transaction.last_offset
                if transaction.producer_id == header.producer_id and is_within:
                    found.aborted.append(batch)
                    break
    return found


def slice_of(batches: ReadBatches, acquired: Sequence[Acquired], records: FileSlice) -> FileSlice:
    """Return the part of the slice with the acquired records: whole batches."""
    first_offset, last_offset = acquired[0].first_offset, acquired[-1].last_offset
    start = end = 0
    for batch, batch_end in zip(batches.batches, batches.ends, strict=True):
        if batch.last_offset < first_offset:
            start = batch_end
        if batch.base_offset > last_offset:
            break
        end = batch_end
    return FileSlice(records.file, records.position + start, end - start)
