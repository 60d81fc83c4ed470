from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import (
    CorruptRecordBatch,
    InvalidRecord,
    InvalidTimestamp,
    TidelogError,
    UnsupportedCompression,
)
from tidelog_core.records.batch import (
    BatchHeader,
    CompressionType,
    Record,
    build_batch,
    parse_header,
    rebuild_batch,
    set_log_append_time,
    set_max_timestamp,
    validate_produced,
    validate_records,
    validate_timestamps,
)
from tidelog_core.records.header import pack_batch

from tests.core.records.samples import CODECS, record_lists, sample_batch, sample_records


def _validate(batch: bytes | bytearray) -> None:
    validate_produced(parse_header(batch), batch, 0)


def _altered(**fields: int) -> bytes:
    """Return a batch with header fields changed under a right CRC."""
    batch = sample_batch()
    return pack_batch(parse_header(batch)._replace(**fields), batch[61:])


@given(records=record_lists(), codec=st.sampled_from(CODECS))
def test_what_a_client_builds_is_accepted(records: list[Record], codec: CompressionType) -> None:
    batch = build_batch(records, compression=codec)
    _validate(batch)
    max_timestamp = validate_records(batch, 0, parse_header(batch), requires_keys=False)
    assert max_timestamp == parse_header(batch).max_timestamp_ms


def test_batches_are_validated_where_they_stand_in_a_request() -> None:
    request = b"request header" + sample_batch() + b"more"
    validate_produced(parse_header(request, 14), request, 14)


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"base_offset": 1}, InvalidRecord, "base offset"),
        ({"base_offset": -1}, InvalidRecord, "base offset"),
        ({"record_count": 0, "last_offset_delta": -1}, InvalidRecord, "0 records"),
        ({"record_count": -1}, InvalidRecord, "-1 records"),
        ({"record_count": 19}, InvalidRecord, "offsets"),
        ({"last_offset_delta": 20}, InvalidRecord, "offsets"),
        ({"last_offset_delta": -5}, InvalidRecord, "offsets"),
        ({"attributes": 0x20}, InvalidRecord, "control"),
        ({"attributes": 0x28}, InvalidRecord, "control"),
        ({"attributes": 0x08}, InvalidTimestamp, "LogAppendTime"),
        ({"attributes": 0x05}, UnsupportedCompression, "codec 5"),
        ({"producer_id": 7}, InvalidRecord, "sequence"),
    ],
)
def test_what_kafka_refuses_is_refused_with_its_error(
    fields: dict[str, int], error: type[TidelogError], words: str
) -> None:
    with pytest.raises(error, match=words):
        _validate(_altered(**fields))


def test_an_idempotent_batch_with_a_sequence_is_accepted() -> None:
    _validate(_altered(producer_id=7, producer_epoch=0, base_sequence=0))


def test_a_wrong_crc_is_corrupt() -> None:
    batch = bytearray(sample_batch())
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordBatch, match="CRC"):
        _validate(batch)


def test_every_flipped_bit_but_the_leader_epochs_is_refused() -> None:
    """The broker overwrites the leader epoch anyway."""
    batch = sample_batch(CompressionType.SNAPPY)
    for bit in [*range(8 * 12), *range(8 * 16, 8 * len(batch))]:
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(TidelogError):
            _validate(flipped)


@pytest.mark.parametrize(
    ("first", "last", "is_accepted"),
    [
        (1000, 1000, True),
        (900, 1200, True),
        (899, 1000, False),
        (1000, 1201, False),
        (-1, -1, True),
        (-1, 1201, False),
    ],
)
def test_timestamps_must_lie_around_the_clock(first: int, last: int, is_accepted: bool) -> None:
    header = parse_header(_altered(base_timestamp_ms=first, max_timestamp_ms=last))
    if is_accepted:
        validate_timestamps(header, now_ms=1000, before_max_ms=100, after_max_ms=200)
        return
    with pytest.raises(InvalidTimestamp, match=r"outside \[900, 1200\]"):
        validate_timestamps(header, now_ms=1000, before_max_ms=100, after_max_ms=200)


def _validate_records(batch: bytes | bytearray, *, requires_keys: bool = False) -> int:
    return validate_records(batch, 0, parse_header(batch), requires_keys=requires_keys)


@pytest.mark.parametrize("codec", CODECS)
def test_compacted_topics_need_keys(codec: CompressionType) -> None:
    keyed = [record._replace(key=b"") for record in sample_records()]
    _validate_records(build_batch(keyed, compression=codec), requires_keys=True)
    keyed[4] = keyed[4]._replace(key=None)
    batch = build_batch(keyed, compression=codec)
    _validate_records(batch)
    with pytest.raises(InvalidRecord, match="record 4 has no key"):
        _validate_records(batch, requires_keys=True)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [19, 21])
def test_records_must_be_as_many_as_the_header_says(codec: CompressionType, count: int) -> None:
    batch = sample_batch(codec)
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=count - 1)
    altered = pack_batch(header, batch[61:])
    _validate(altered)
    with pytest.raises(InvalidRecord):
        _validate_records(altered)


def test_records_must_be_at_consecutive_offsets() -> None:
    header = parse_header(sample_batch())
    gapped = rebuild_batch(header, [*sample_records()[:5], *sample_records()[6:]])
    with pytest.raises(InvalidRecord, match="offset 6 where 5 is due"):
        _validate_records(gapped)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_records_must_decompress(codec: CompressionType) -> None:
    header = parse_header(sample_batch(codec))
    altered = pack_batch(header, b"\xff" * 200)
    _validate(altered)
    with pytest.raises(InvalidRecord, match="corrupt"):
        _validate_records(altered)


def test_the_largest_timestamp_is_the_records_not_the_headers() -> None:
    batch = bytearray(sample_batch())
    honest: BatchHeader = parse_header(batch)
    set_max_timestamp(batch, 0, 2**62)
    assert _validate_records(batch) == honest.max_timestamp_ms
    set_log_append_time(batch, 0, 5)
    assert _validate_records(batch) == 5
