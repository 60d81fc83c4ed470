"""Looks into the records of a batch for schemas' ids.

A batch of a topic with schema validation has at most ``RECORDS_MAX`` records, and its records at
most ``DECOMPRESSED_BYTES_MAX`` bytes; clients split a larger one. Problems are named for the first
``PROBLEMS_MAX`` records.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidelog_core.errors import InvalidRecord, MessageTooLarge
from tidelog_core.records.batch import HEADER_SIZE, LOG_OVERHEAD, parse_header
from tidelog_core.records.codecs import DecompressedTooLarge
from tidelog_core.records.decode import decode_batch
from tidelog_core.records.record import Record
from tidelog_core.schemas.values.framing import (
    KEY_HEADER,
    VALUE_HEADER,
    SchemaFrame,
    UnreadableValue,
    split_named,
)

from tidelog_node.inspection.messages import FramesFound, Problem, RecordsRefused, SchemaUse

RECORDS_MAX = 100_000
DECOMPRESSED_BYTES_MAX = 32 << 20
SCHEMAS_MAX = 64  # of one batch, for its keys and for its values
PROBLEMS_MAX = 100
INDEXES_MAX = 20  # of the records that are named for one schema
KEY, VALUE = "key", "value"


def frames_of(batch: bytes | bytearray | memoryview, parts: Sequence[str]) -> FramesFound:
    """Return the schemas of the records. Null has none, and needs none.

    Raises ``MessageTooLarge``, ``CorruptRecordBatch``, and ``RecordsRefused`` if there are too
    many schemas.
    """
    records = read_records(batch)
    uses: dict[tuple[str, int | str], list[int]] = {}
    problems: list[Problem] = []
    largest_bytes = 0
    for part in parts:
        read = reader_of(part)
        for index, record in enumerate(records):
            data = read(record)
            if data is None:
                continue
            largest_bytes = max(largest_bytes, len(data))
            try:
                named = frame_of(record, part, data).schema
            except UnreadableValue as error:
                if len(problems) < PROBLEMS_MAX:
                    problems.append((index, f"the {part} has no schema's id: {error}"))
                continue
            indexes = uses.setdefault((part, named), [])
            if len(indexes) < INDEXES_MAX:
                indexes.append(index)
            if len(uses) > SCHEMAS_MAX:
                raise RecordsRefused([(index, f"a batch has more than {SCHEMAS_MAX} schemas")])
    found = [
        SchemaUse(part, 0, indexes, named)
        if isinstance(named, str)
        else SchemaUse(part, named, indexes)
        for (part, named), indexes in uses.items()
    ]
    return FramesFound(found, problems, largest_bytes)


def frame_of(record: Record, part: str, data: bytes) -> SchemaFrame:
    """Return the frame of a record's key or value. Raises ``UnreadableValue``.

    Of several headers one reader would take the first, another one the last.
    """
    if not record.headers:
        return split_named(data, None)
    name = KEY_HEADER if part == KEY else VALUE_HEADER
    found = {value for key, value in record.headers if key == name}
    if len(found) > 1:
        raise UnreadableValue(f"it has several headers {name}")
    return split_named(data, found.pop() if found else None)


def read_records(batch: bytes | bytearray | memoryview) -> list[Record]:
    """Return the records of one batch. Raises ``MessageTooLarge``, ``CorruptRecordBatch``."""
    header = parse_header(batch)
    if len(batch) < HEADER_SIZE or LOG_OVERHEAD + header.batch_length != len(batch):
        raise InvalidRecord("the bytes are not one batch")
    if len(batch) > DECOMPRESSED_BYTES_MAX:
        raise MessageTooLarge(
            f"a batch of {len(batch)} bytes; topics with schema validation take "
            f"{DECOMPRESSED_BYTES_MAX}: lower batch.size of the producer"
        )
    if header.record_count > RECORDS_MAX:
        raise MessageTooLarge(
            f"a batch of {header.record_count} records; topics with schema validation take "
            f"{RECORDS_MAX}: lower batch.size of the producer"
        )
    try:
        return decode_batch(batch, 0, header, DECOMPRESSED_BYTES_MAX)
    except DecompressedTooLarge as error:
        # As a corrupt batch the producer would repeat it.
        raise MessageTooLarge(
            f"{error}, as topics with schema validation take: lower batch.size of the producer"
        ) from None


def reader_of(part: str) -> Callable[[Record], bytes | None]:
    """Return the function that reads the key or the value of a record."""
    return (lambda record: record.key) if part == KEY else (lambda record: record.value)
