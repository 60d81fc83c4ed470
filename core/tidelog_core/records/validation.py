"""The leader's checks of a batch from a client.

The errors are those of Kafka's broker: a wrong CRC or length is ``CorruptRecordBatch``, which a
client retries. A fault that the client would send again is ``InvalidRecord`` and the like.
Source: ``ProduceRequest``, ``UnifiedLog`` and ``LogValidator`` of Apache Kafka.
"""

from __future__ import annotations

from tidelog_core.errors import CorruptRecordBatch, InvalidRecord, InvalidTimestamp
from tidelog_core.model import NO_TIMESTAMP
from tidelog_core.records.header import (
    CODEC_MASK,
    CONTROL_BIT,
    LOG_APPEND_TIME_BIT,
    BatchHeader,
    Buffer,
    check_crc,
)
from tidelog_core.records.walk import InspectionBudget, walk_records

RECORDS_NAMED_MAX = 1000  # at fault, of one batch; a batch can hold millions

_NEVER_BITS = CONTROL_BIT | LOG_APPEND_TIME_BIT


def validate_produced(header: BatchHeader, buffer: Buffer, position: int) -> None:
    """Raise unless header and CRC allow that the batch is appended.

    Raises ``InvalidRecord`` (base offset, offset range, count, sequence, control
    batch), ``CorruptRecordBatch`` (CRC, cut), ``UnsupportedCompression`` or
    ``InvalidTimestamp`` (only brokers stamp LogAppendTime).
    """
    if header.base_offset != 0:
        raise InvalidRecord(f"the base offset of a produced batch is {header.base_offset}, not 0")
    check_crc(buffer, position, header)
    validate_fields(header)


def validate_fields(header: BatchHeader) -> None:
    """Raise as ``validate_produced``, but for base offset and CRC."""
    count = header.record_count
    if count <= 0:
        raise InvalidRecord(f"a produced batch has {count} records")
    if header.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"{count} records do not take the offsets [0, {header.last_offset_delta}]"
        )
    if header.attributes & _NEVER_BITS:
        _refuse_broker_attributes(header)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidRecord(
            f"a batch of producer {header.producer_id} has sequence {header.base_sequence}"
        )
    if header.attributes & CODEC_MASK:
        _ = header.compression  # raises if unknown


def validate_timestamps(
    header: BatchHeader, *, now_ms: int, before_max_ms: int, after_max_ms: int
) -> None:
    """Raise ``InvalidTimestamp`` if the header's timestamps are too far from the clock.

    Checks the first and the largest timestamp, not each record's.
    """
    for timestamp in (header.base_timestamp_ms, header.max_timestamp_ms):
        if timestamp == NO_TIMESTAMP:
            continue
        if now_ms - timestamp > before_max_ms or timestamp - now_ms > after_max_ms:
            raise InvalidTimestamp(
                f"timestamp {timestamp} is outside "
                f"[{now_ms - before_max_ms}, {now_ms + after_max_ms}]"
            )


def validate_records(
    buffer: Buffer,
    position: int,
    header: BatchHeader,
    *,
    requires_keys: bool,
    budget: InspectionBudget | None = None,
) -> int:
    """Return the largest timestamp of the batch's records, after checking each of them.

    Raises ``InvalidRecord`` if the records do not decompress or parse, are more or fewer
    than the header says, are not at consecutive offsets, or, with
    ``requires_keys``, lack a key (compacted topics); ``InspectionBudgetExceeded``.
    """
    expected = header.base_offset
    max_timestamp = NO_TIMESTAMP
    without_key: list[int] = []
    try:
        for offset, timestamp, has_key in walk_records(buffer, position, header, budget):
            if offset != expected:
                raise InvalidRecord(f"a record has offset {offset} where {expected} is due")
            if not has_key and requires_keys:
                without_key.append(expected - header.base_offset)
                if len(without_key) == RECORDS_NAMED_MAX:
                    break
            if timestamp > max_timestamp:  # noqa: PLR1730 - three times faster than max()
                max_timestamp = timestamp
            expected += 1
    except CorruptRecordBatch as error:
        raise InvalidRecord(str(error)) from None
    if without_key:
        raise InvalidRecord(
            f"record {without_key[0]} has no key, which a compacted topic needs",
            record_indexes=without_key,
        )
    return max_timestamp


def _refuse_broker_attributes(header: BatchHeader) -> None:
    if header.is_control:
        raise InvalidRecord("clients may not write control batches")
    raise InvalidTimestamp("only brokers stamp batches with LogAppendTime")
