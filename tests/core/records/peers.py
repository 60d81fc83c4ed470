"""Other people's builders and parsers of record batches, behind one face each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from tidelog_core.records.batch import CompressionType, Record

with warnings.catch_warnings():
    # Reads its schemas through a deprecated function of the standard library.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as KafkaPythonRecords
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

__all__ = ["KafkaPythonRecords"]

# kafka-python leaves snappy and zstd to packages that are not installed here.
KAFKA_PYTHON_CODECS = [CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4]


def _as_records(batches: object) -> list[Record]:
    records: list[Record] = []
    while (batch := batches.next_batch()) is not None:
        assert batch.validate_crc()
        records.extend(
            Record(
                record.offset,
                record.timestamp,
                None if record.key is None else bytes(record.key),
                None if record.value is None else bytes(record.value),
                tuple((name, content) for name, content in record.headers),
            )
            for record in batch
        )
    return records


def read_with_kafka_python(data: bytes) -> list[Record]:
    """Return what kafka-python reads in a run of batches."""
    return _as_records(KafkaPythonRecords(data))


def read_with_aiokafka(data: bytes) -> list[Record]:
    """Return what aiokafka reads in a run of batches."""
    return _as_records(AiokafkaRecords(data))


def build_with_kafka_python(records: Sequence[Record], codec: CompressionType) -> bytes:
    """Return the batch that kafka-python makes of the records."""
    return _build(KafkaPythonBuilder, records, codec)


def build_with_aiokafka(records: Sequence[Record], codec: CompressionType) -> bytes:
    """Return the batch that aiokafka makes of the records."""
    return _build(AiokafkaBuilder, records, codec)


def _build(builder_class: type, records: Sequence[Record], codec: CompressionType) -> bytes:
    builder = builder_class(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for index, record in enumerate(records):
        appended = builder.append(
            index, record.timestamp_ms, record.key, record.value, list(record.headers)
        )
        assert appended is not None
    return bytes(builder.build())
