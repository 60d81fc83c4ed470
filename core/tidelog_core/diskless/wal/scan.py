"""Reads the batches of a slice while its bytes pass by: its rows and CRC in an object.

The bytes come in chunks, so that copying a slice needs memory for one chunk only, and the
processor's cache still has it when the CRC is computed. Nothing is done per record.
"""

from __future__ import annotations

import struct

from crc32c import crc32c

from tidelog_core.diskless.wal.rows import LAYOUTS, NO_MARKER, WalSection
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.segments.batch_scan import read_marker
from tidelog_core.records.header import (
    CONTROL_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    Buffer,
    parse_header,
)

# Base offset, length; attributes, last offset delta, base timestamp, max timestamp, producer id,
# producer epoch, base sequence, record count.
_BATCH = struct.Struct(">qi4xb4xHiqqqhii")  # attributes without a sign, as in rows
_PACK_ROW = LAYOUTS[WalSection.BATCHES].struct.pack
_NO_TIMESTAMP = -(2**63)
_LENGTH_MIN = HEADER_SIZE - LOG_OVERHEAD
assert _BATCH.size == HEADER_SIZE


class SliceScan:
    """The batches of one slice so far. Used by one thread."""

    __slots__ = (
        "_left_bytes",
        "_rows",
        "base_offset",
        "crc",
        "end_offset",
        "is_foreign",
        "max_timestamp_ms",
        "position",
        "size_bytes",
    )

    def __init__(self, position: int, *, is_foreign: bool = False) -> None:
        """The slice begins at the position of its object. Foreign batches count from offset 0."""
        self.base_offset = -1  # of the first batch; -1 while there is none, and if it is foreign
        self.end_offset = 0  # exclusive
        self.max_timestamp_ms = _NO_TIMESTAMP
        self.size_bytes = 0
        self.crc = 0
        self.position = position
        self.is_foreign = is_foreign
        self._left_bytes = 0  # of the last batch
        self._rows: list[bytes] = []

    @property
    def batch_count(self) -> int:
        """The batches whose header has been seen."""
        return len(self._rows)

    @property
    def rows(self) -> bytes:
        """The batches' rows, as the object's section has them."""
        return b"".join(self._rows)

    def take(self, chunk: Buffer) -> int:
        """Take bytes from the start of the chunk and return how many: none behind a cut header.

        Markers must be whole, too. The rest is to come first in the next chunk. Raises
        ``CorruptRecordBatch`` if nothing can be taken; CRCs of batches are not checked.
        """
        size = len(chunk)
        at = self._take_headers(chunk, self._left_bytes)
        taken = min(at, size)
        if not taken and size:
            raise CorruptRecordBatch(f"the batch at {self.size_bytes} of a slice is cut")
        self._left_bytes = at - taken
        self.size_bytes += taken
        whole = chunk if taken == size else memoryview(chunk)[:taken]
        self.crc = crc32c(whole, self.crc)
        return taken

    def finish(self) -> None:
        """Raise ``CorruptRecordBatch`` if the last batch is cut."""
        if self._left_bytes:
            raise CorruptRecordBatch(f"the last batch of a slice lacks {self._left_bytes} bytes")

    def _take_headers(self, chunk: Buffer, at: int) -> int:
        """Take the headers from this position on; return where the next one is to be read."""
        size, start = len(chunk), self.position + self.size_bytes
        rows, max_timestamp_ms = self._rows, self.max_timestamp_ms
        while at + HEADER_SIZE <= size:
            (
                base_offset,
                length,
                magic,
                attributes,
                last_offset_delta,
                base_timestamp_ms,
                batch_max_timestamp_ms,
                producer_id,
                producer_epoch,
                base_sequence,
                record_count,
            ) = _BATCH.unpack_from(chunk, at)
            if magic != MAGIC or length < _LENGTH_MIN:
                parse_header(chunk, at)  # raises
            size_bytes = LOG_OVERHEAD + length
            coordinator_epoch, marker = -1, NO_MARKER
            if attributes & CONTROL_BIT:
                if at + size_bytes > size:
                    break
                found = read_marker(chunk, at, parse_header(chunk, at))
                if found is not None:
                    coordinator_epoch, marker = found.coordinator_epoch, found.type
            if self.is_foreign:
                base_offset = self.end_offset
            elif not rows:
                self.base_offset = base_offset
            rows.append(
                _PACK_ROW(
                    base_offset,
                    producer_id,
                    base_timestamp_ms,
                    batch_max_timestamp_ms,
                    last_offset_delta,
                    base_sequence,
                    record_count,
                    start + at,
                    size_bytes,
                    coordinator_epoch,
                    producer_epoch,
                    attributes,
                    marker,
                    0,
                )
            )
            self.end_offset = base_offset + last_offset_delta + 1
            max_timestamp_ms = max(max_timestamp_ms, batch_max_timestamp_ms)
            at += size_bytes
        self.max_timestamp_ms = max_timestamp_ms
        return at


def scan_slice(data: Buffer, position: int, *, is_foreign: bool = False) -> SliceScan:
    """Return the scan of a whole slice. Raises ``CorruptRecordBatch`` if its end is cut."""
    scan = SliceScan(position, is_foreign=is_foreign)
    if data and scan.take(data) < len(data):
        raise CorruptRecordBatch(f"the header at {scan.size_bytes} of a slice is cut")
    scan.finish()
    return scan
