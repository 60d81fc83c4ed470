"""Encodes records into the bytes of a batch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tidelog_core.errors import InvalidRecord
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.codecs import CompressionType, compress
from tidelog_core.records.decode import records_body
from tidelog_core.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    LOG_APPEND_TIME_BIT,
    MAGIC,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Buffer,
    pack_batch,
    parse_header,
)
from tidelog_core.records.record import Headers, Record
from tidelog_core.records.varint import ENCODED, encode_varint
from tidelog_core.records.walk import InspectionBudget, body_within

_NULL = b"\x01"
_NO_HEADERS = b"\x00"
_ATTRIBUTES = b"\x00"


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: CompressionType = CompressionType.NONE,
    level: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    log_append_time_ms: int | None = None,
) -> bytes:
    """Return a batch of the records at consecutive offsets from ``base_offset``.

    The records' own offsets are ignored: a producer does not know them. With
    ``log_append_time_ms`` that is every record's timestamp. Raises ``InvalidRecord``
    if there is no record or a field does not fit the format.
    """
    if not records:
        raise InvalidRecord("a batch needs at least one record")
    attributes = int(compression)
    if is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if is_control:
        attributes |= CONTROL_BIT
    base_timestamp = records[0].timestamp_ms
    body, max_timestamp = _encode_records(records, range(len(records)), base_timestamp)
    if log_append_time_ms is not None:
        attributes |= LOG_APPEND_TIME_BIT
        max_timestamp = log_append_time_ms
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _pack_compressed(header, body, level)


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    level: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytes:
    """Return the batch of ``header`` with only ``records`` left in it, at their own offsets.

    The offsets, sequences and timestamp type of the original stay, as compaction
    needs. ``delete_horizon_ms`` sets or, if None, keeps the horizon.
    """
    if not records:
        return build_empty_batch(header)
    attributes, base_timestamp = header.attributes, records[0].timestamp_ms
    if delete_horizon_ms is None:
        delete_horizon_ms = header.delete_horizon_ms
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    deltas = [record.offset - header.base_offset for record in records]
    if deltas[0] < 0 or deltas[-1] > header.last_offset_delta:
        raise InvalidRecord(
            f"the records' offsets leave [{header.base_offset}, {header.last_offset}]"
        )
    if any(left >= right for left, right in pairwise(deltas)):
        raise InvalidRecord("the records' offsets do not grow")
    body, max_timestamp = _encode_records(records, deltas, base_timestamp)
    if header.is_log_append_time:
        max_timestamp = header.max_timestamp_ms
    kept = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        record_count=len(records),
    )
    return _pack_compressed(kept, body, level)


def build_empty_batch(header: BatchHeader) -> bytes:
    """Return the batch of ``header`` without records: its offsets and sequences are kept.

    It restores a producer's state after compaction took the producer's last records.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    empty = header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0)
    return pack_batch(empty, b"")


def convert_compression(
    batch: Buffer,
    target: CompressionType,
    *,
    level: int | None = None,
    position: int = 0,
    budget: InspectionBudget | None = None,
) -> bytes:
    """Return the batch at ``position`` with its records in another codec, all else unchanged.

    The records are not parsed. Raises ``CorruptRecordBatch`` if they do not decompress,
    ``InspectionBudgetExceeded`` if the budget does not allow it.
    """
    header = parse_header(batch, position)
    if budget is None:
        body = records_body(batch, position, header)
    else:
        body = body_within(batch, position, header, budget.converted_bytes)
        budget.converted_bytes -= len(body)
    converted = header._replace(attributes=header.attributes & ~CODEC_MASK | target)
    return _pack_compressed(converted, body, level)


def _pack_compressed(header: BatchHeader, body: bytes, level: int | None) -> bytes:
    compressed = compress(header.compression, body, level)
    try:
        return pack_batch(header, compressed)
    except struct.error as error:
        raise InvalidRecord(f"a field of the batch does not fit the format: {error}") from None


def _encode_records(
    records: Sequence[Record], deltas: Iterable[int], base_timestamp: int
) -> tuple[bytes, int]:
    """Return the records section, uncompressed, and the largest timestamp in it."""
    parts: list[bytes] = []
    append, extend = parts.append, parts.extend
    join = b"".join
    encoded, size = ENCODED, len(ENCODED)
    max_timestamp = records[0].timestamp_ms
    # The last record's, and what a record begins with then: mostly hundreds have the same.
    last_timestamp, start = base_timestamp, _ATTRIBUTES + encoded[0]
    # Of the last record without a key and headers: the sizes, and the parts that follow from them.
    last_length = last_body = -1
    rest, prefix, head = 0, b"", b""
    try:
        for record, offset_delta in zip(records, deltas, strict=True):
            _, timestamp, key, value, headers = record
            if timestamp != last_timestamp:
                last_timestamp = timestamp
                delta = timestamp - base_timestamp
                start = _ATTRIBUTES + (
                    encoded[delta] if 0 <= delta < size else encode_varint(delta)
                )
                last_length = last_body = -1
                if timestamp > max_timestamp:  # noqa: PLR1730 - three times faster than max()
                    max_timestamp = timestamp
            if key is None and value is not None and not headers:
                # As below, without making the record's bytes before those of the batch.
                length = len(value)
                if length != last_length:
                    last_length = length
                    prefix = _NULL + (encoded[length] if length < size else encode_varint(length))
                    rest = len(start) + len(prefix) + length + len(_NO_HEADERS)
                number = (
                    encoded[offset_delta] if offset_delta < size else encode_varint(offset_delta)
                )
                length = rest + len(number)
                if length != last_body:
                    last_body = length
                    head = (encoded[length] if length < size else encode_varint(length)) + start
                extend((head, number, prefix, value, _NO_HEADERS))
                continue
            if key is None:
                key_size, key = _NULL, b""
            else:
                length = len(key)
                key_size = encoded[length] if length < size else encode_varint(length)
            if value is None:
                value_size, value = _NULL, b""
            else:
                length = len(value)
                value_size = encoded[length] if length < size else encode_varint(length)
            body = join(
                (
                    start,
                    encoded[offset_delta] if offset_delta < size else encode_varint(offset_delta),
                    key_size,
                    key,
                    value_size,
                    value,
                    _encode_headers(headers) if headers else _NO_HEADERS,
                )
            )
            length = len(body)
            append(encoded[length] if length < size else encode_varint(length))
            append(body)
    except (OverflowError, UnicodeEncodeError) as error:
        raise InvalidRecord(f"a record does not fit the format: {error}") from None
    return join(parts), max_timestamp


def _encode_headers(headers: Headers) -> bytes:
    encoded, size = ENCODED, len(ENCODED)
    length = len(headers)
    parts = [encoded[length] if length < size else encode_varint(length)]
    for name, content in headers:
        name_bytes = name.encode("utf-8", "surrogateescape")
        length = len(name_bytes)
        parts.append(encoded[length] if length < size else encode_varint(length))
        parts.append(name_bytes)
        if content is None:
            parts.append(_NULL)
        else:
            length = len(content)
            parts.append(encoded[length] if length < size else encode_varint(length))
            parts.append(content)
    return b"".join(parts)
