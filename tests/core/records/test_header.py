from __future__ import annotations

import mmap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.errors import CorruptRecordBatch, UnsupportedCompression, UnsupportedMagic
from tidelog_core.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    CompressionType,
    build_batch,
    check_crc,
    decode_records,
    iter_headers,
    parse_header,
    patch,
    set_log_append_time,
    set_max_timestamp,
)

from tests.core.records.samples import CODECS, sample_batch, sample_records


def _header(**fields: int) -> BatchHeader:
    return parse_header(sample_batch())._replace(**fields)


def test_every_field_is_read_from_its_place() -> None:
    values = list(range(1, 14))
    values[1], values[3] = 100, 2
    sizes = [8, 4, 4, 1, 4, 2, 4, 8, 8, 8, 2, 4, 4]
    data = b"".join(value.to_bytes(size, "big") for value, size in zip(values, sizes, strict=True))
    header = parse_header(b"xx" + data, 2)
    assert header == tuple(values)
    assert header.base_offset == 1
    assert header.size_bytes == 112
    assert header.partition_leader_epoch == 3
    assert header.crc == 5
    assert header.attributes == 6
    assert header.last_offset == 1 + 7
    assert header.next_offset == 1 + 7 + 1
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (8, 9)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (10, 11, 12)
    assert header.record_count == 13


@pytest.mark.parametrize("codec", CODECS)
def test_attributes_are_distinguished(codec: CompressionType) -> None:
    plain = _header(attributes=int(codec))
    assert plain.compression is codec
    assert not plain.is_transactional
    assert not plain.is_control
    assert not plain.is_log_append_time
    assert plain.delete_horizon_ms is None
    assert _header(attributes=codec | 0x08).is_log_append_time
    assert _header(attributes=codec | 0x10).is_transactional
    assert _header(attributes=codec | 0x20).is_control
    assert _header(attributes=codec | 0x40, base_timestamp_ms=9).delete_horizon_ms == 9
    assert _header(attributes=codec | 0x78).compression is codec


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_unknown_codecs_are_refused(codec: int) -> None:
    with pytest.raises(UnsupportedCompression, match=str(codec)):
        _ = _header(attributes=codec).compression


@pytest.mark.parametrize(
    ("base_sequence", "last_offset_delta", "expected"),
    [(-1, 5, -1), (0, 0, 0), (10, 5, 15), (2**31 - 1, 0, 2**31 - 1), (2**31 - 2, 4, 2)],
)
def test_last_sequence_wraps_after_the_largest(
    base_sequence: int, last_offset_delta: int, expected: int
) -> None:
    header = _header(base_sequence=base_sequence, last_offset_delta=last_offset_delta)
    assert header.last_sequence == expected


@pytest.mark.parametrize("magic", [-1, 0, 1, 3, 127])
def test_other_message_formats_are_refused(magic: int) -> None:
    batch = bytearray(sample_batch())
    batch[16] = magic & 0xFF
    with pytest.raises(UnsupportedMagic):
        parse_header(batch)


def test_old_messages_shorter_than_our_header_are_refused_by_their_magic() -> None:
    message = bytearray(40)
    message[16] = 1
    with pytest.raises(UnsupportedMagic, match="format 1"):
        parse_header(message)


@pytest.mark.parametrize("cut", range(HEADER_SIZE))
def test_a_cut_header_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptRecordBatch, match="cut"):
        parse_header(sample_batch()[:cut])


@pytest.mark.parametrize("length", [-(2**31), -1, 0, HEADER_SIZE - 12 - 1])
def test_an_impossible_length_is_corrupt(length: int) -> None:
    batch = bytearray(sample_batch())
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptRecordBatch, match="length"):
        parse_header(batch)


def test_headers_of_a_run_are_found_by_position() -> None:
    batches = [build_batch(sample_records(count), base_offset=count) for count in (1, 5, 20)]
    run = b"".join(batches)
    found = list(iter_headers(run))
    assert [header.base_offset for _, header in found] == [1, 5, 20]
    assert [position for position, _ in found] == [0, len(batches[0]), len(run) - len(batches[2])]
    assert list(iter_headers(run, len(batches[0]))) == found[1:]
    assert list(iter_headers(run, 0, len(run) - len(batches[2]))) == found[:2]
    assert list(iter_headers(b"")) == []


def test_headers_before_a_torn_tail_are_yielded() -> None:
    """Recovery relies on it: whatever came out before the error is whole."""
    first, second = sample_batch(count=3), sample_batch(count=2)
    for cut in range(1, len(second)):
        headers = iter_headers(first + second[:cut])
        assert next(headers)[0] == 0
        with pytest.raises(CorruptRecordBatch, match="cut"):
            next(headers)


def test_a_header_is_read_without_its_records() -> None:
    batch = sample_batch()
    assert parse_header(batch[:HEADER_SIZE]) == parse_header(batch)


@pytest.mark.parametrize("codec", CODECS)
def test_every_flipped_bit_behind_the_crc_is_found(codec: CompressionType) -> None:
    batch = sample_batch(codec, count=4)
    for bit in range(8 * 17, 8 * len(batch)):
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptRecordBatch, match="CRC"):
            check_crc(flipped, 0, parse_header(flipped))


def test_every_flipped_bit_in_length_and_magic_is_found() -> None:
    batch = sample_batch()
    for bit in [*range(8 * 8, 8 * 12), *range(8 * 16, 8 * 17)]:
        flipped = bytearray(batch)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises((CorruptRecordBatch, UnsupportedMagic)):
            check_crc(flipped, 0, parse_header(flipped))


def test_crc_of_a_cut_batch_is_corrupt() -> None:
    batch = sample_batch()
    with pytest.raises(CorruptRecordBatch, match="cut"):
        check_crc(batch[:-1], 0, parse_header(batch))


@given(base_offset=st.integers(0, 2**63 - 1), leader_epoch=st.integers(-1, 2**31 - 1))
def test_patching_changes_two_fields_and_keeps_the_crc(base_offset: int, leader_epoch: int) -> None:
    run = bytearray(b"before" + sample_batch() + b"behind")
    before = parse_header(run, 6)
    patch(memoryview(run), 6, base_offset=base_offset, leader_epoch=leader_epoch)
    after = parse_header(run, 6)
    assert after == before._replace(base_offset=base_offset, partition_leader_epoch=leader_epoch)
    check_crc(run, 6, after)
    assert (run[:6], run[-6:]) == (b"before", b"behind")


@pytest.mark.parametrize("codec", CODECS)
def test_log_append_time_becomes_every_records_timestamp(codec: CompressionType) -> None:
    run = bytearray(b"before" + sample_batch(codec))
    set_log_append_time(run, 6, 12_345)
    header = parse_header(run, 6)
    check_crc(run, 6, header)
    assert header.is_log_append_time
    assert header.compression is codec
    assert header.max_timestamp_ms == 12_345
    expected = [record._replace(timestamp_ms=12_345) for record in sample_records()]
    assert decode_records(run, 6) == expected


def test_max_timestamp_is_set_with_its_crc() -> None:
    batch = bytearray(sample_batch())
    set_max_timestamp(batch, 0, 99)
    header = parse_header(batch)
    check_crc(batch, 0, header)
    assert header.max_timestamp_ms == 99
    assert decode_records(batch) == sample_records()


def test_a_mapped_file_is_read_and_can_be_closed_after_an_error(tmp_path: Path) -> None:
    batch = bytearray(sample_batch())
    batch[-1] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batch)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        ((position, header),) = iter_headers(mapped)
        assert len(decode_records(mapped, position)) == header.record_count
        with pytest.raises(CorruptRecordBatch) as caught:
            check_crc(mapped, position, header)
    assert caught.value.__traceback__ is not None
    assert mapped.closed
