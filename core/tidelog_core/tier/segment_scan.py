"""Reads a segment's bytes once: the rows of its batches, its CRC-32C, its SHA-256, its keys.

All of them are computed for a run of batches while the processor's cache has it. This runs for each
batch of a segment that is tiered, so it is compiled.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.header import (
    ATTRIBUTES_FIELD,
    BASE_OFFSET_FIELD,
    BATCH_LENGTH_FIELD,
    CONTROL_BIT,
    LAST_OFFSET_DELTA_FIELD,
    LOG_OVERHEAD,
    MAX_TIMESTAMP_FIELD,
    RECORD_COUNT_FIELD,
    Buffer,
    check_crc,
    iter_headers,
)
from tidelog_core.tier.key_hashes import add_key_hashes

RUN_BYTES = 512 * 1024
FLAGS_MASK = 0xFFFF  # a batch's attributes, which are a signed number in its header
BATCH_ROW = Struct("<qqqIIII")  # of the index object
_pack_row = BATCH_ROW.pack


class SegmentScan(NamedTuple):
    """The values that an index object has from the bytes of its segment."""

    rows: bytes  # of BATCH_ROW
    record_count: int
    max_timestamp_ms: int
    log_crc32c: int
    log_sha256: bytes
    key_hashes: set[int] | None  # of the records with a key; ``None`` if they were not asked for


def scan_segment(
    log: Buffer, *, name: str, base_offset: int, end_offset: int, hashes_keys: bool = False
) -> SegmentScan:
    """Scan a segment whose offsets must be in ``[base_offset, end_offset)``.

    With ``hashes_keys`` the result has the hashes of all keys. Every batch's CRC is checked. Raises
    ``CorruptRecordBatch`` with ``name``.
    """
    key_hashes: set[int] | None = set() if hashes_keys else None
    rows: list[bytes] = []
    next_offset, max_timestamp_ms, record_count = base_offset, NO_TIMESTAMP, 0
    sha256, crc, seen_bytes = hashlib.sha256(), 0, 0
    with memoryview(log) as view:
        for position, header in iter_headers(log):
            check_crc(log, position, header)
            first_offset = header[BASE_OFFSET_FIELD]
            last_offset = first_offset + header[LAST_OFFSET_DELTA_FIELD]
            size_bytes = LOG_OVERHEAD + header[BATCH_LENGTH_FIELD]
            timestamp_ms, attributes = header[MAX_TIMESTAMP_FIELD], header[ATTRIBUTES_FIELD]
            if first_offset < next_offset or last_offset >= end_offset:
                raise CorruptRecordBatch(
                    f"{name} has offsets [{first_offset}, {last_offset + 1}) at {position},"
                    f" outside [{next_offset}, {end_offset})"
                )
            next_offset = last_offset + 1
            max_timestamp_ms = max(max_timestamp_ms, timestamp_ms)
            record_count += header[RECORD_COUNT_FIELD]
            if key_hashes is not None and not attributes & CONTROL_BIT:
                add_key_hashes(log, position, header, key_hashes)
            rows.append(
                _pack_row(
                    first_offset,
                    last_offset,
                    timestamp_ms,
                    position,
                    size_bytes,
                    header[RECORD_COUNT_FIELD],
                    attributes & FLAGS_MASK,
                )
            )
            end = position + size_bytes
            if end - seen_bytes >= RUN_BYTES:
                sha256.update(view[seen_bytes:end])
                crc = crc32c(view[seen_bytes:end], crc)
                seen_bytes = end
        sha256.update(view[seen_bytes:])
        crc = crc32c(view[seen_bytes:], crc)
    digest = sha256.digest()
    return SegmentScan(b"".join(rows), record_count, max_timestamp_ms, crc, digest, key_hashes)
