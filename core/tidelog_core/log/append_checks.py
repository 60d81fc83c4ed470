"""Checks a client's batches for the leader, before a byte is written.

Header fields and CRCs of every batch are checked. Records are read only for compacted
topics, which require keys, and for topics with a compression codec of their own. The
buffer is not changed.
Source: ``UnifiedLog.append`` and ``LogValidator`` of Apache Kafka.
"""

from __future__ import annotations

from tidelog_core.config import LZ4_LEVEL_DEFAULT, TopicConfig
from tidelog_core.errors import (
    CorruptRecordBatch,
    InvalidTimestamp,
    MessageTooLarge,
    RecordListTooLarge,
)
from tidelog_core.log.values import WITHOUT_LIMIT, AppendLimit
from tidelog_core.records.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    RECORD_SIZE_BYTES_MIN,
    BatchHeader,
    CompressionType,
    InspectionBudget,
    WritableBuffer,
    check_crc,
    convert_compression,
    parse_header,
    validate_fields,
    validate_produced,
    validate_records,
    validate_timestamps,
)

LOG_APPEND_TIME = "LogAppendTime"

LZ4_LEVEL_MAX = 16  # of the library; Kafka allows 17, which is the same

# MESSAGE_TOO_LARGE makes the client split its batch. Kafka has no such bound. A batch
# without compression cannot hold so many records.
CHECKED_RECORDS_MAX = 1_000_000

_CODEC_NAMES = {"uncompressed": "NONE", "none": "NONE"}


PositionedHeader = tuple[int, BatchHeader]
# Batches that may be appended: the buffer (a new one if converted), and the batches in it.
CheckedBatches = tuple[WritableBuffer, list[PositionedHeader]]


def inspects_records(config: TopicConfig) -> bool:
    """Whether a client's batches are inspected before they are appended: that may take long."""
    return (
        "compact" in config.cleanup_policy
        or config.compression_type != "producer"
        or validates_schemas(config)
    )


def validates_schemas(config: TopicConfig) -> bool:
    """Whether records must have schemas."""
    return config.confluent_key_schema_validation or config.confluent_value_schema_validation


def check_produced(
    buffer: WritableBuffer,
    config: TopicConfig,
    *,
    now_ms: int,
    budget: InspectionBudget | None = None,
) -> CheckedBatches:
    """Check a client's batches, and convert them to the topic's codec if it has one.

    Raises the errors of ``validate_produced``, ``MessageTooLarge``,
    ``RecordListTooLarge``, ``InvalidTimestamp`` or ``InvalidRecord``; ``InspectionBudgetExceeded``
    if the remaining checks exceed the budget.
    """
    batches = check_headers(buffer, config, now_ms=now_ms)
    return check_contents(buffer, batches, config, now_ms=now_ms, budget=budget)


def check_contents(
    buffer: WritableBuffer,
    batches: list[PositionedHeader],
    config: TopicConfig,
    *,
    now_ms: int,
    budget: InspectionBudget | None = None,
) -> CheckedBatches:
    """Check the records, after ``check_headers``. Raises as ``check_produced``."""
    if "compact" in config.cleanup_policy:
        for position, header in batches:
            _check_records(buffer, position, header, config, now_ms=now_ms, budget=budget)
    if config.compression_type != "producer":
        target = _target_codec(config)
        for _, header in batches:
            if header.compression is not target:
                buffer, batches = _converted(buffer, batches, config, budget)
                break
    if len(buffer) > config.segment_bytes:
        raise RecordListTooLarge(
            f"{len(buffer)} bytes of batches do not fit into a segment of "
            f"segment.bytes={config.segment_bytes}"
        )
    return buffer, batches


def check_headers(
    buffer: WritableBuffer, config: TopicConfig, *, now_ms: int
) -> list[PositionedHeader]:
    """Check sizes, header fields and CRCs; return the batches.

    The size is checked first, so a batch that is too large is not read. Raises as
    ``check_produced``, which also checks the records.
    """
    batches: list[PositionedHeader] = []
    position, end = 0, len(buffer)
    max_message_bytes = config.max_message_bytes
    is_create_time = config.message_timestamp_type != LOG_APPEND_TIME
    while True:
        header = parse_header(buffer, position)
        size_bytes = LOG_OVERHEAD + header.batch_length
        if size_bytes > max_message_bytes:
            raise _message_too_large(size_bytes, config)
        validate_produced(header, buffer, position)
        if is_create_time:
            validate_timestamps(
                header,
                now_ms=now_ms,
                before_max_ms=config.message_timestamp_before_max_ms,
                after_max_ms=config.message_timestamp_after_max_ms,
            )
        batches.append((position, header))
        position += size_bytes
        if position >= end:
            return batches


def check_header(header: BatchHeader, config: TopicConfig, *, now_ms: int) -> None:
    """Check a client's batch by its header alone. Raises as ``check_produced``."""
    if header.size_bytes > config.max_message_bytes:
        raise _message_too_large(header.size_bytes, config)
    validate_fields(header)
    validate_timestamps(
        header,
        now_ms=now_ms,
        before_max_ms=config.message_timestamp_before_max_ms,
        after_max_ms=config.message_timestamp_after_max_ms,
    )
    if header.size_bytes > config.segment_bytes:
        raise RecordListTooLarge(
            f"a batch of {header.size_bytes} bytes does not fit into a segment of "
            f"segment.bytes={config.segment_bytes}"
        )


def check_own(buffer: WritableBuffer, config: TopicConfig) -> CheckedBatches:
    """Check batches that a coordinator made: lengths, CRCs and the segment's size."""
    batches: list[PositionedHeader] = []
    position, end = 0, len(buffer)
    while position < end or not batches:
        header = parse_header(buffer, position)
        check_crc(buffer, position, header)
        batches.append((position, header))
        position += header.size_bytes
    if end > config.segment_bytes:
        raise RecordListTooLarge(
            f"{end} bytes do not fit into a segment of segment.bytes={config.segment_bytes}"
        )
    return buffer, batches


def check_replicated(
    buffer: WritableBuffer, limit: AppendLimit = WITHOUT_LIMIT
) -> tuple[list[PositionedHeader], int]:
    """Check batches from a leader, up to the limit. Returns them and the bytes that they take.

    A last batch that is cut is left out: fetch responses end where their limit is.
    Raises ``CorruptRecordBatch`` or ``UnsupportedMagic``.
    """
    batches: list[PositionedHeader] = []
    position, end = 0, len(buffer)
    batch_count_max, size_bytes_max = limit
    while position + LOG_OVERHEAD <= end:
        if len(batches) >= batch_count_max or position >= size_bytes_max:
            break
        try:
            header = parse_header(buffer, position)
        except CorruptRecordBatch:
            if end - position < HEADER_SIZE:
                break  # a cut batch
            raise
        following = position + header.size_bytes
        if following > end:
            break
        check_crc(buffer, position, header)
        if header.last_offset_delta < 0:
            raise CorruptRecordBatch(f"batch at {position} ends before it begins")
        batches.append((position, header))
        position = following
    return batches, position


def _check_records(
    buffer: WritableBuffer,
    position: int,
    header: BatchHeader,
    config: TopicConfig,
    *,
    now_ms: int,
    budget: InspectionBudget | None,
) -> None:
    records_max = max(CHECKED_RECORDS_MAX, header.size_bytes // RECORD_SIZE_BYTES_MIN)
    if header.record_count > records_max:
        raise MessageTooLarge(
            f"a compressed batch of {header.record_count} records; in a compacted topic it may have"
            f" at most {records_max}"
        )
    latest = validate_records(buffer, position, header, requires_keys=True, budget=budget)
    after_max_ms = config.message_timestamp_after_max_ms
    is_create_time = config.message_timestamp_type != LOG_APPEND_TIME
    if is_create_time and latest - now_ms > after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {latest} is later than {now_ms + after_max_ms}, the latest that"
            f" message.timestamp.after.max.ms={after_max_ms} allows"
        )


def _target_codec(config: TopicConfig) -> CompressionType:
    name = config.compression_type
    return CompressionType[_CODEC_NAMES.get(name, name.upper())]


def _target_level(config: TopicConfig, target: CompressionType) -> int | None:
    match target:
        case CompressionType.GZIP if config.compression_gzip_level >= 0:
            return config.compression_gzip_level
        case CompressionType.LZ4 if config.compression_lz4_level != LZ4_LEVEL_DEFAULT:
            return min(config.compression_lz4_level, LZ4_LEVEL_MAX)
        case CompressionType.ZSTD:
            return config.compression_zstd_level
        case _:
            return None


def _converted(
    buffer: WritableBuffer,
    batches: list[PositionedHeader],
    config: TopicConfig,
    budget: InspectionBudget | None,
) -> CheckedBatches:
    target = _target_codec(config)
    level = _target_level(config, target)
    converted = bytearray()
    checked: list[PositionedHeader] = []
    for position, header in batches:
        start = len(converted)
        if header.compression is target:
            converted += memoryview(buffer)[position : position + header.size_bytes]
        else:
            converted += convert_compression(
                buffer, target, level=level, position=position, budget=budget
            )
        new_header = parse_header(converted, start)
        if new_header.size_bytes > config.max_message_bytes:
            raise _message_too_large(new_header.size_bytes, config)
        checked.append((start, new_header))
    return converted, checked


def _message_too_large(size_bytes: int, config: TopicConfig) -> MessageTooLarge:
    return MessageTooLarge(
        f"a batch of {size_bytes} bytes is over max.message.bytes={config.max_message_bytes}"
    )
