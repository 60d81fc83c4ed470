"""The fixed part of a record batch: read, checked and patched without touching its records.

Layout of a batch, big endian::

    position  size  field
           0     8  base offset
           8     4  batch length: bytes that follow this field
          12     4  partition leader epoch
          16     1  magic (2)
          17     4  CRC-32C of everything from the attributes to the end
          21     2  attributes
          23     4  last offset delta
          27     8  base timestamp
          35     8  max timestamp
          43     8  producer id
          51     2  producer epoch
          53     4  base sequence
          57     4  record count
          61        records, compressed as a whole if the attributes name a codec

Attributes: bits 0-2 codec, 3 timestamp type (1 is LogAppendTime), 4 transactional,
5 control, 6 the base timestamp is a delete horizon. The CRC does not cover the base offset and
the leader epoch, so a leader sets them in place.
Source: the message format page of the Kafka documentation, KIP-98, KIP-534.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from tidelog_core.errors import CorruptRecordBatch, UnsupportedCompression, UnsupportedMagic
from tidelog_core.records.codecs import CompressionType

Buffer: TypeAlias = bytes | bytearray | memoryview | mmap.mmap
WritableBuffer: TypeAlias = bytearray | memoryview | mmap.mmap

HEADER_SIZE = 61
MAGIC = 2
LOG_OVERHEAD = 12  # base offset and batch length, which the batch length does not count

MAGIC_POSITION = 16
CRC_POSITION = 17
ATTRIBUTES_POSITION = 21  # the CRC covers everything from here
_MAX_TIMESTAMP_POSITION = 35

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

SEQUENCE_MASK = 0x7FFFFFFF  # sequences wrap to 0 after 2**31 - 1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_UNCOVERED = struct.Struct(">qiibI")  # the fields that the CRC does not cover, and the CRC
_COVERED = struct.Struct(">hiqqqhii")  # from the attributes on
_LENGTH = struct.Struct(">i")
_BASE_OFFSET = struct.Struct(">q")
_LEADER_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMP = struct.Struct(">q")
_TUPLE_NEW = tuple.__new__
assert _HEADER.size == HEADER_SIZE == _UNCOVERED.size + _COVERED.size

# ``CompressionType(n)`` goes through the enum's machinery; indexing does not.
_CODECS = tuple(CompressionType)


class BatchHeader(NamedTuple):
    """The fields of a batch in the order in which they are stored."""

    base_offset: int
    batch_length: int  # bytes behind this field; ``size_bytes`` is the whole batch
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Return the size of the whole batch, from its base offset to its last record."""
        return LOG_OVERHEAD + self.batch_length

    @property
    def last_offset(self) -> int:
        """Return the batch's last offset, even if compaction has removed that record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Return the offset behind the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> CompressionType:
        """Return the codec. Raises ``UnsupportedCompression`` if no codec has that number."""
        codec = self.attributes & CODEC_MASK
        if codec >= len(_CODECS):
            raise UnsupportedCompression(f"codec {codec} is unknown; 0 to 4 are known")
        return _CODECS[codec]

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        """Whether the batch holds markers for the log's own use, not records for consumers."""
        return self.attributes & CONTROL_BIT != 0

    @property
    def is_log_append_time(self) -> bool:
        """Whether every record has the broker's time, which is the max timestamp."""
        return self.attributes & LOG_APPEND_TIME_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """Return when compaction may drop the batch's tombstones and markers, if it is known."""
        if self.attributes & DELETE_HORIZON_BIT:
            return self.base_timestamp_ms
        return None

    @property
    def has_producer_id(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record, -1 if the batch has no sequences."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MASK


# Indexes of fields in a ``BatchHeader``, for code that runs for every batch: reading a tuple's item
# is faster than reading its attribute.
BASE_OFFSET_FIELD: Final = 0
BATCH_LENGTH_FIELD: Final = 1
MAGIC_FIELD: Final = 3
CRC_FIELD: Final = 4
ATTRIBUTES_FIELD: Final = 5
LAST_OFFSET_DELTA_FIELD: Final = 6
MAX_TIMESTAMP_FIELD: Final = 8
RECORD_COUNT_FIELD: Final = 12


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch at ``position``; its records may be missing.

    Raises ``CorruptRecordBatch`` if the header is cut or its length is impossible,
    ``UnsupportedMagic`` for a message format other than 2.
    """
    try:
        header = _TUPLE_NEW(BatchHeader, _HEADER.unpack_from(buffer, position))
    except struct.error:
        raise _cut_header(buffer, position) from None
    if header[MAGIC_FIELD] != MAGIC:
        raise _unsupported_magic(header.magic, position)
    if header[BATCH_LENGTH_FIELD] < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptRecordBatch(
            f"batch at {position} has length {header.batch_length}, less than a header takes"
        )
    return header


def iter_headers(
    buffer: Buffer, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the position and header of every batch in ``[start, end)``.

    Raises ``CorruptRecordBatch`` if a batch is cut: everything yielded before
    is wholly in the range. CRCs are not checked.
    """
    position = start
    limit = len(buffer) if end is None else end
    while position < limit:
        header = parse_header(buffer, position)
        following = position + LOG_OVERHEAD + header[BATCH_LENGTH_FIELD]
        if following > limit:
            raise CorruptRecordBatch(
                f"batch at {position} is cut: {limit - position} of {header.size_bytes} bytes"
            )
        yield position, header
        position = following


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise ``CorruptRecordBatch`` if the batch is cut or its CRC does not match."""
    end = position + LOG_OVERHEAD + header[BATCH_LENGTH_FIELD]
    if end > len(buffer):
        raise CorruptRecordBatch(
            f"batch at {position} is cut: {len(buffer) - position} of {header.size_bytes} bytes"
        )
    computed = _compute_crc(buffer, position, end)
    if computed != header[CRC_FIELD]:
        raise CorruptRecordBatch(
            f"batch at {position} is corrupt: its CRC is {header.crc:#010x}, "
            f"its bytes give {computed:#010x}"
        )


def patch(buffer: WritableBuffer, position: int, *, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch in place; the CRC covers neither."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LOG_OVERHEAD, leader_epoch)


def set_log_append_time(buffer: WritableBuffer, position: int, timestamp_ms: int) -> None:
    """Stamp the batch with the broker's time and recompute its CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + ATTRIBUTES_POSITION)
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_POSITION, attributes | LOG_APPEND_TIME_BIT)
    set_max_timestamp(buffer, position, timestamp_ms)


def set_max_timestamp(buffer: WritableBuffer, position: int, timestamp_ms: int) -> None:
    """Set the max timestamp in place and recompute the CRC."""
    _TIMESTAMP.pack_into(buffer, position + _MAX_TIMESTAMP_POSITION, timestamp_ms)
    (batch_length,) = _LENGTH.unpack_from(buffer, position + LOG_OVERHEAD - _LENGTH.size)
    computed = _compute_crc(buffer, position, position + LOG_OVERHEAD + batch_length)
    _CRC.pack_into(buffer, position + CRC_POSITION, computed)


def pack_batch(header: BatchHeader, body: bytes) -> bytes:
    """Return a whole batch: the header over the (compressed) records, length and CRC computed.

    Raises ``struct.error`` if a field does not fit.
    """
    covered = _COVERED.pack(*header[ATTRIBUTES_FIELD:])
    crc = crc32c(body, crc32c(covered))
    batch_length = HEADER_SIZE - LOG_OVERHEAD + len(body)
    uncovered = _UNCOVERED.pack(
        header.base_offset, batch_length, header.partition_leader_epoch, MAGIC, crc
    )
    return uncovered + covered + body


def _compute_crc(buffer: Buffer, position: int, end: int) -> int:
    # No variable holds the view: a mmap or bytearray under a live view cannot be closed or
    # resized, and the traceback of an exception would keep it alive.
    return crc32c(memoryview(buffer)[position + ATTRIBUTES_POSITION : end])


def _cut_header(buffer: Buffer, position: int) -> CorruptRecordBatch | UnsupportedMagic:
    left = len(buffer) - position
    if left > MAGIC_POSITION and position >= 0 and buffer[position + MAGIC_POSITION] != MAGIC:
        return _unsupported_magic(buffer[position + MAGIC_POSITION], position)
    return CorruptRecordBatch(f"batch at {position} is cut: {left} of {HEADER_SIZE} header bytes")


def _unsupported_magic(magic: int, position: int) -> UnsupportedMagic:
    return UnsupportedMagic(f"batch at {position} is in message format {magic}; only 2 is known")
