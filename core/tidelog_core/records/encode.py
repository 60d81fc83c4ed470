"""From records to the bytes of a batch."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

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

    The records' own offsets are not looked at: a producer does not know them. With
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
    max_timestamp = max([record[1] for record in records])
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
        base_timestamp_ms=records[0][1],
        max_timestamp_ms=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _encode_batch(header, records, range(len(records)), level)


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
    max_timestamp = header.max_timestamp_ms
    if not header.is_log_append_time:
        max_timestamp = max(record.timestamp_ms for record in records)
    deltas = [record.offset - header.base_offset for record in records]
    if deltas[0] < 0 or deltas[-1] > header.last_offset_delta:
        raise InvalidRecord(f"records lie outside [{header.base_offset}, {header.last_offset}]")
    kept = header._replace(
        attributes=attributes,
        base_timestamp_ms=base_timestamp,
        max_timestamp_ms=max_timestamp,
        record_count=len(records),
    )
    return _encode_batch(kept, records, deltas, level)


def build_empty_batch(header: BatchHeader) -> bytes:
    """Return the batch of ``header`` without records: its offsets and sequences are kept.

    It restores a producer's state after compaction took the producer's last records.
    """
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT)
    empty = header._replace(attributes=attributes, base_timestamp_ms=NO_TIMESTAMP, record_count=0)
    return pack_batch(empty, b"")


def convert_compression(
    batch: Buffer, target: CompressionType, *, level: int | None = None, position: int = 0
) -> bytes:
    """Return the batch at ``position`` with its records in another codec, all else unchanged.

    The records are not parsed. Raises ``CorruptRecordBatch`` if they do not decompress.
    """
    header = parse_header(batch, position)
    body = compress(target, records_body(batch, position, header), level)
    return pack_batch(header._replace(attributes=header.attributes & ~CODEC_MASK | target), body)


def _encode_batch(
    header: BatchHeader, records: Sequence[Record], deltas: Iterable[int], level: int | None
) -> bytes:
    try:
        body = _encode_records(records, deltas, header.base_timestamp_ms)
        return pack_batch(header, compress(header.compression, body, level))
    except (struct.error, OverflowError, UnicodeEncodeError) as error:
        raise InvalidRecord(f"the records do not fit the format: {error}") from None


def _encode_records(records: Sequence[Record], deltas: Iterable[int], base_timestamp: int) -> bytes:
    parts: list[bytes] = []
    append = parts.append
    join = b"".join
    encoded, size = ENCODED, len(ENCODED)
    for record, offset_delta in zip(records, deltas, strict=True):
        _, timestamp, key, value, headers = record
        delta = timestamp - base_timestamp
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
                _ATTRIBUTES,
                encoded[delta] if 0 <= delta < size else encode_varint(delta),
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
    return join(parts)


def _encode_headers(headers: Headers) -> bytes:
    parts = [encode_varint(len(headers))]
    for name, content in headers:
        encoded_name = name.encode("utf-8", "surrogateescape")
        parts.append(encode_varint(len(encoded_name)))
        parts.append(encoded_name)
        if content is None:
            parts.append(_NULL)
        else:
            parts.append(encode_varint(len(content)))
            parts.append(content)
    return b"".join(parts)
