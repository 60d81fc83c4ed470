"""An export's Spark tasks: rows in, Parquet files out, nothing through the JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from tidelog.arrow.columns import HEADERS_TYPE, TIMESTAMP_TYPE
from tidelog_core.errors import ErrorCode, InvalidConfig, TidelogError

from tidelog_spark.jobs.tables.columns import fitted
from tidelog_spark.jobs.tables.export_table import (
    DATE_COLUMN,
    HOUR_COLUMN,
    TIMESTAMP_COLUMN,
    TimePartitions,
    WrittenFile,
)
from tidelog_spark.jobs.tables.parquet_files import ParquetFiles
from tidelog_spark.jobs.values.decoding import DecoderSpec
from tidelog_spark.jobs.values.value_decoder import HeaderValueDecoder, ValueDecoder
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.reading.splits import Split
from tidelog_spark.split_rows import read_rows

ERROR_COLUMN = "kafka_error"
VALUE_COLUMN = "kafka_value"
_RECORD_FIELDS = (
    pa.field("kafka_topic", pa.string()),
    pa.field("kafka_partition", pa.int32()),
    pa.field("kafka_offset", pa.int64()),
    pa.field(TIMESTAMP_COLUMN, TIMESTAMP_TYPE),
    pa.field("kafka_timestamp_type", pa.int32()),
    pa.field("kafka_key", pa.binary()),
)
_SOURCE_COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key")
_HEADERS_FIELD = pa.field("kafka_headers", HEADERS_TYPE)
_BAD_FIELDS = (pa.field(ERROR_COLUMN, pa.string()), pa.field(VALUE_COLUMN, pa.binary()))


class BadRecord(TidelogError):
    """A record's value cannot be decoded, and the export has to fail."""

    code = ErrorCode.invalid_record


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteSettings:
    """The format of the files; the same for every task of a run."""

    read: ReadOptions
    decoder: DecoderSpec
    keeps_bad_records: bool  # in a column, instead of failing
    location: str
    schema: pa.Schema  # of the files
    partitions: TimePartitions
    run_folder: str


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Splits whose rows go into the same files."""

    number: int
    splits: tuple[Split, ...]


def exported_schema(
    decoder: ValueDecoder, *, include_headers: bool, keeps_bad_records: bool
) -> pa.Schema:
    """Return the columns of an export. Raises ``InvalidConfig`` for conflicting names."""
    fields = list(_RECORD_FIELDS)
    if include_headers:
        fields.append(_HEADERS_FIELD)
    if keeps_bad_records:
        fields += _BAD_FIELDS
    taken = {field.name for field in fields} | {DATE_COLUMN, HOUR_COLUMN}
    both = [field.name for field in decoder.fields if field.name.lower() in taken]
    if both:
        raise InvalidConfig([f"the schema's field {name!r} is reserved" for name in both])
    names = [field.name.lower() for field in decoder.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidConfig([f"fields differ in case only: {', '.join(twice)}"])
    return pa.schema([*fields, *decoder.fields])


def write_tasks(tasks: Iterable[WriteTask], settings: WriteSettings) -> Iterator[WrittenFile]:
    """Write every task's rows and yield the files.

    A retried task writes files with other names; only files reported to the driver are
    committed. Raises ``BadRecord``, ``TableAccessDenied`` and the errors of a read.
    """
    decoder = settings.decoder.open()
    for task in tasks:
        files = ParquetFiles(
            settings.location,
            settings.schema,
            settings.partitions,
            prefix=f"{settings.run_folder}/{task.number:06}-{uuid4()}",
        )
        for split in task.splits:
            for rows in read_rows(settings.read, split):
                files.write(exported_rows(rows, decoder, settings))
        files.close()
        yield from files.written


def exported_rows(
    rows: pa.RecordBatch, decoder: ValueDecoder, settings: WriteSettings
) -> pa.RecordBatch:
    """Return the rows in the columns of the files. Raises ``BadRecord``."""
    values = rows.column("value")
    if isinstance(decoder, HeaderValueDecoder) and "headers" in rows.schema.names:
        decoded = decoder.decode_with(values, rows.column("headers"))
    else:
        decoded = decoder.decode(values)
    if decoded.problems and not settings.keeps_bad_records:
        number = min(decoded.problems)
        topic, partition, offset = (
            rows.column(name)[number].as_py() for name in ("topic", "partition", "offset")
        )
        raise BadRecord(
            f"the value at offset {offset} of {topic}-{partition}: {decoded.problems[number]};"
            " to go on, keep bad records in a column"
        )
    columns = {
        field.name: rows.column(name)
        for field, name in zip(_RECORD_FIELDS, _SOURCE_COLUMNS, strict=True)
    }
    if _HEADERS_FIELD.name in settings.schema.names and "headers" in rows.schema.names:
        columns[_HEADERS_FIELD.name] = rows.column("headers")
    if decoded.problems:
        columns |= _bad_columns(rows, decoded.problems)
    columns |= {
        field.name: column for field, column in zip(decoder.fields, decoded.columns, strict=True)
    }
    return pa.RecordBatch.from_arrays(
        [
            fitted(columns[field.name], field.type)
            if field.name in columns
            else pa.nulls(rows.num_rows, field.type)
            for field in settings.schema
        ],
        schema=settings.schema,
    )


def _bad_columns(rows: pa.RecordBatch, problems: Mapping[int, str]) -> dict[str, pa.Array]:
    texts: list[str | None] = [problems.get(number) for number in range(rows.num_rows)]
    errors = pa.array(texts, pa.string())
    nothing = pa.nulls(rows.num_rows, pa.binary())
    return {
        ERROR_COLUMN: errors,
        VALUE_COLUMN: pa.compute.if_else(errors.is_valid(), rows.column("value"), nothing),
    }
