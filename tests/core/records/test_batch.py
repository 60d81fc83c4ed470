"""Records to batches and back, ours and other people's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptRecordBatch, InvalidRecord
from tidelog_core.records.batch import (
    HEADER_SIZE,
    CompressionType,
    Record,
    build_batch,
    build_empty_batch,
    check_crc,
    convert_compression,
    decode_records,
    parse_header,
    rebuild_batch,
    record_size_bytes_max,
)

from tests.core.records.peers import (
    KAFKA_PYTHON_CODECS,
    build_with_aiokafka,
    build_with_kafka_python,
    read_with_aiokafka,
    read_with_kafka_python,
)
from tests.core.records.samples import (
    CODECS,
    TIMESTAMP_MS,
    record_lists,
    sample_batch,
    sample_records,
)

NONE = CompressionType.NONE


@given(records=record_lists(), codec=st.sampled_from(CODECS), base_offset=st.integers(0, 2**62))
def test_records_survive_a_round_trip(
    records: list[Record], codec: CompressionType, base_offset: int
) -> None:
    batch = build_batch(records, base_offset=base_offset, compression=codec)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert header.size_bytes == len(batch)
    assert (header.base_offset, header.last_offset_delta) == (base_offset, len(records) - 1)
    assert header.max_timestamp_ms == max(record.timestamp_ms for record in records)
    expected = [record._replace(offset=base_offset + record.offset) for record in records]
    assert decode_records(batch) == expected
    for buffer in (bytearray(b"xyz" + batch + b"z"), memoryview(b"xyz" + batch)):
        assert decode_records(buffer, 3) == expected
    assert decode_records(b"xyz" + batch + b"behind", 3) == expected


@given(records=record_lists(), codec=st.sampled_from(CODECS))
def test_aiokafka_reads_what_we_build(records: list[Record], codec: CompressionType) -> None:
    assert read_with_aiokafka(build_batch(records, compression=codec)) == records


@given(records=record_lists(), codec=st.sampled_from(KAFKA_PYTHON_CODECS))
def test_kafka_python_reads_what_we_build(records: list[Record], codec: CompressionType) -> None:
    assert read_with_kafka_python(build_batch(records, compression=codec)) == records


@given(records=record_lists(), codec=st.sampled_from(CODECS))
def test_we_read_what_aiokafka_builds(records: list[Record], codec: CompressionType) -> None:
    """Their builder takes a first timestamp of -1 for none yet, and then writes another."""
    records[0] = records[0]._replace(timestamp_ms=max(0, records[0].timestamp_ms))
    batch = build_with_aiokafka(records, codec)
    check_crc(batch, 0, parse_header(batch))
    assert decode_records(batch) == records


@given(records=record_lists(), codec=st.sampled_from(KAFKA_PYTHON_CODECS))
def test_we_read_what_kafka_python_builds(records: list[Record], codec: CompressionType) -> None:
    batch = build_with_kafka_python(records, codec)
    check_crc(batch, 0, parse_header(batch))
    assert decode_records(batch) == records


@given(records=record_lists())
def test_we_build_the_bytes_that_kafka_python_builds(records: list[Record]) -> None:
    """Uncompressed, there is one way to write a batch; theirs leaves the leader epoch at 0."""
    built = build_batch(records, leader_epoch=0)
    theirs = bytearray(build_with_kafka_python(records, NONE))
    assert built[:12] + built[16:] == bytes(theirs[:12] + theirs[16:])


@pytest.mark.parametrize("codec", CODECS)
def test_many_and_large_records_survive_a_round_trip(codec: CompressionType) -> None:
    """Sizes, deltas and counts past one, two and three bytes."""
    records = [
        Record(index, TIMESTAMP_MS + index * index * 40, b"k" * (index % 300), b"v" * (index % 70))
        for index in range(9000)
    ]
    records[5] = records[5]._replace(value=b"large" * 500_000)
    records[6] = records[6]._replace(key=b"k" * 9000)
    records[7] = records[7]._replace(headers=tuple((f"h{i}" * 40, b"c" * i) for i in range(200)))
    records[8] = records[8]._replace(headers=(("n" * 9000, b"c" * 9000),))
    batch = build_batch(records, compression=codec)
    assert decode_records(batch) == records
    assert read_with_aiokafka(batch) == records


@pytest.mark.parametrize("codec", CODECS)
def test_fields_of_a_producer_are_kept(codec: CompressionType) -> None:
    batch = build_batch(
        sample_records(),
        base_offset=1000,
        compression=codec,
        producer_id=77,
        producer_epoch=4,
        base_sequence=2**31 - 1,
        leader_epoch=6,
        is_transactional=True,
        log_append_time_ms=42,
    )
    header = parse_header(batch)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 4, 2**31 - 1)
    assert header.last_sequence == 18
    assert header.partition_leader_epoch == 6
    assert header.is_transactional
    assert not header.is_control
    assert header.is_log_append_time
    assert {record.timestamp_ms for record in decode_records(batch)} == {42}


def test_header_keys_that_are_not_utf8_survive() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    records = [Record(0, 1, None, b"v", ((name, b"x"),))]
    batch = build_batch(records)
    assert b"\xff\xfe" in batch
    assert decode_records(batch) == records


@given(records=record_lists())
def test_record_size_is_never_estimated_too_small(records: list[Record]) -> None:
    size = sum(record_size_bytes_max(*record[2:]) for record in records)
    assert len(build_batch(records)) <= HEADER_SIZE + size


def test_build_rejects_no_records() -> None:
    with pytest.raises(InvalidRecord, match="at least one"):
        build_batch([])


@pytest.mark.parametrize(
    "record",
    [
        Record(0, 2**63, None, None),
        Record(0, 0, None, None, (("\ud800", b""),)),
    ],
)
def test_build_rejects_what_does_not_fit_the_format(record: Record) -> None:
    with pytest.raises(InvalidRecord, match="fit"):
        build_batch([Record(0, 0, None, None), record])


def test_build_rejects_fields_that_do_not_fit() -> None:
    with pytest.raises(InvalidRecord, match="fit"):
        build_batch(sample_records(), producer_epoch=2**15)


@pytest.mark.parametrize("codec", CODECS)
def test_decoding_flipped_bits_raises_nothing_but_our_errors(codec: CompressionType) -> None:
    """Without the CRC, a decoder has to stand any bytes."""
    batch = sample_batch(codec, count=6)
    refused = 0
    for bit in range(8 * 17, 8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            decode_records(flipped)
        except CorruptRecordBatch:
            refused += 1
    assert refused > 0


@given(body=st.binary(max_size=80), count=st.integers(-1, 12))
def test_decoding_any_bytes_raises_nothing_but_our_errors(body: bytes, count: int) -> None:
    batch = bytearray(sample_batch()[:HEADER_SIZE] + body)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    try:
        records = decode_records(batch)
    except CorruptRecordBatch:
        return
    assert len(records) == count


def test_decoding_a_cut_batch_is_corrupt() -> None:
    batch = sample_batch()
    for cut in range(len(batch)):
        with pytest.raises(CorruptRecordBatch, match="cut"):
            decode_records(batch[:cut])


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("count", [-1, 0, 1, 19, 21, 2**31 - 1])
def test_decoding_rejects_a_count_that_is_not_the_number_of_records(
    codec: CompressionType, count: int
) -> None:
    batch = bytearray(sample_batch(codec))
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordBatch):
        decode_records(batch)
    with pytest.raises(CorruptRecordBatch):
        decode_records(bytes(batch) + batch)


@pytest.mark.parametrize(
    "record",
    [
        "0c 00 00 00 01 01 00",  # says 6 bytes, is 6: the one that is right
        "0e 00 00 00 01 01 00",  # size too large
        "0a 00 00 00 01 01 00",  # size too small
        "0b 00 00 00 01 01 00",  # size negative
        "0c 00 00 00 02 01 00",  # key runs into what follows
        "0c 00 00 00 01 7e 00",  # value runs past the end
        "0c 00 00 00 01 01 01",  # minus one headers
        "0c 00 00 00 01 01 02",  # a header, but no bytes
        "12 00 00 00 01 01 02 01 01",  # a header whose key is null
        "0c 00 00 80 80 80 80 80 80 80 80 80 80 01 01 01 00",  # a number of eleven bytes
        "24 00 00 00 fe ff ff ff ff ff ff ff ff 7f 01 00",  # a key of 2**69 bytes
        "24 00 00 00 01 fe ff ff ff ff ff ff ff ff 7f 00",  # a value of them
        "24 00 00 00 01 01 02 fe ff ff ff ff ff ff ff ff 7f 00",  # a header's key
        "24 00 00 00 01 01 02 00 fe ff ff ff ff ff ff ff ff 7f",  # a header's value
        "24 00 00 00 01 01 fe ff ff ff ff ff ff ff ff 7f 00",  # headers
    ],
)
def test_decoding_rejects_a_record_that_does_not_add_up(record: str) -> None:
    body = bytes.fromhex(record)
    batch = bytearray(sample_batch()[:HEADER_SIZE] + body)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = (1).to_bytes(4, "big")
    if record.startswith("0c 00 00 00 01 01 00"):
        ((_, _, key, value, headers),) = decode_records(batch)
        assert (key, value, headers) == (None, None, ())
        return
    for buffer in (batch, bytes(batch), bytes(batch) + sample_batch()):
        with pytest.raises(CorruptRecordBatch):
            decode_records(buffer)


def test_decoding_rejects_an_unknown_codec() -> None:
    batch = bytearray(sample_batch())
    batch[22] |= 7
    with pytest.raises(CorruptRecordBatch, match="codec 7"):
        decode_records(batch)


def test_decoding_keeps_to_its_limit() -> None:
    batch = build_batch([Record(0, 0, None, bytes(100_000))], compression=CompressionType.ZSTD)
    with pytest.raises(CorruptRecordBatch, match="limit 1000 bytes"):
        decode_records(batch, size_bytes_max=1000)


@pytest.mark.parametrize("source", CODECS)
@pytest.mark.parametrize("target", CODECS)
def test_converting_changes_the_codec_and_nothing_else(
    source: CompressionType, target: CompressionType
) -> None:
    batch = build_batch(
        sample_records(),
        base_offset=5,
        compression=source,
        producer_id=9,
        producer_epoch=1,
        base_sequence=3,
        leader_epoch=2,
        is_transactional=True,
        log_append_time_ms=77,
    )
    converted = convert_compression(b"xy" + batch, target, position=2)
    before, after = parse_header(batch), parse_header(converted)
    check_crc(converted, 0, after)
    assert after.compression is target
    unchanged = {"batch_length": 0, "crc": 0, "attributes": 0}
    assert after._replace(**unchanged) == before._replace(**unchanged)
    assert after.attributes & ~7 == before.attributes & ~7
    assert decode_records(converted) == decode_records(batch)


def test_converting_rejects_records_that_do_not_decompress() -> None:
    batch = bytearray(sample_batch(CompressionType.LZ4))
    batch[HEADER_SIZE] ^= 0xFF
    with pytest.raises(CorruptRecordBatch):
        convert_compression(batch, CompressionType.ZSTD)


@given(records=record_lists(), kept=st.sets(st.integers(0, 19)), codec=st.sampled_from(CODECS))
def test_compaction_keeps_offsets_and_sequences(
    records: list[Record], kept: set[int], codec: CompressionType
) -> None:
    batch = build_batch(
        records,
        base_offset=100,
        compression=codec,
        producer_id=9,
        producer_epoch=1,
        base_sequence=3,
        leader_epoch=2,
    )
    header = parse_header(batch)
    left = [record for record in decode_records(batch) if record.offset - 100 in kept]
    rebuilt = rebuild_batch(header, left)
    after = parse_header(rebuilt)
    check_crc(rebuilt, 0, after)
    assert decode_records(rebuilt) == left
    assert (after.base_offset, after.last_offset) == (header.base_offset, header.last_offset)
    assert after.last_sequence == header.last_sequence
    assert (after.producer_id, after.partition_leader_epoch) == (9, 2)
    assert after.record_count == len(left)


def test_delete_horizon_is_kept_and_does_not_move_timestamps() -> None:
    header = parse_header(sample_batch())
    records = sample_records()[3:9]
    once = rebuild_batch(header, records, delete_horizon_ms=123)
    twice = rebuild_batch(parse_header(once), records[1:])
    assert parse_header(twice).delete_horizon_ms == 123
    assert decode_records(twice) == records[1:]
    assert read_with_aiokafka(twice) == records[1:]


def test_log_append_time_survives_compaction() -> None:
    header = parse_header(build_batch(sample_records(), log_append_time_ms=77))
    rebuilt = rebuild_batch(header, sample_records()[3:5])
    assert [record.timestamp_ms for record in decode_records(rebuilt)] == [77, 77]


def test_an_empty_batch_is_only_a_header() -> None:
    header = parse_header(sample_batch(CompressionType.GZIP))
    empty = build_empty_batch(header)
    after = parse_header(empty)
    check_crc(empty, 0, after)
    assert len(empty) == HEADER_SIZE
    assert decode_records(empty) == []
    assert (after.compression, after.base_timestamp_ms) == (NONE, -1)
    assert after.max_timestamp_ms == header.max_timestamp_ms


@pytest.mark.parametrize("offsets", [[20], [-1], [3, 3], [4, 3], [0, 5, 2, 6]])
def test_compaction_rejects_offsets_that_are_not_the_batchs(offsets: list[int]) -> None:
    header = parse_header(sample_batch())
    with pytest.raises(InvalidRecord, match="offsets"):
        rebuild_batch(header, [Record(offset, 0, b"k", b"v") for offset in offsets])
