from __future__ import annotations

import pytest
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.records.batch import Record, check_crc, decode_records, parse_header
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
    parse_control_type,
    parse_end_transaction_marker,
)

from tests.core.records.peers import KafkaPythonRecords

COMMIT_KEY, ABORT_KEY = bytes.fromhex("00000001"), bytes.fromhex("00000000")


def _build(marker: EndTransactionMarker) -> bytes:
    return build_end_transaction_marker(
        marker, producer_id=7, producer_epoch=3, timestamp_ms=1000, base_offset=12
    )


@pytest.mark.parametrize("type", list(ControlType))
def test_marker_survives_a_round_trip(type: ControlType) -> None:
    marker = EndTransactionMarker(type, coordinator_epoch=9)
    batch = _build(marker)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, -1)
    (record,) = decode_records(batch)
    assert (record.offset, record.timestamp_ms) == (12, 1000)
    assert parse_end_transaction_marker(record) == marker
    assert marker.is_commit is (type is ControlType.COMMIT)


@pytest.mark.parametrize(
    ("type", "key"), [(ControlType.COMMIT, COMMIT_KEY), (ControlType.ABORT, ABORT_KEY)]
)
def test_marker_has_kafkas_bytes(type: ControlType, key: bytes) -> None:
    (record,) = decode_records(_build(EndTransactionMarker(type, 5)))
    assert record.key == key
    assert record.value == bytes.fromhex("000000000005")


def test_kafka_python_reads_the_marker() -> None:
    (batch,) = KafkaPythonRecords(_build(EndTransactionMarker(ControlType.ABORT, 5)))
    assert batch.is_control_batch
    (record,) = batch
    assert record.abort is True


def test_unknown_types_are_left_to_the_reader_to_skip() -> None:
    assert parse_control_type(bytes.fromhex("00000002")) is None
    assert parse_end_transaction_marker(Record(0, 0, bytes.fromhex("00000002"), b"")) is None


def test_later_versions_may_be_longer() -> None:
    record = Record(0, 0, bytes.fromhex("00010001aa"), bytes.fromhex("000100000005bb"))
    assert parse_end_transaction_marker(record) == EndTransactionMarker(ControlType.COMMIT, 5)


@pytest.mark.parametrize("key", [None, b"", b"\x00\x00\x00", bytes.fromhex("ffff0001")])
def test_control_type_rejects_a_bad_key(key: bytes | None) -> None:
    with pytest.raises(CorruptRecordBatch, match="control record's key"):
        parse_control_type(key)


@pytest.mark.parametrize("value", [None, b"", b"\x00" * 5, bytes.fromhex("ffff00000001")])
def test_marker_rejects_a_bad_value(value: bytes | None) -> None:
    with pytest.raises(CorruptRecordBatch, match="end-transaction marker"):
        parse_end_transaction_marker(Record(0, 0, COMMIT_KEY, value))
