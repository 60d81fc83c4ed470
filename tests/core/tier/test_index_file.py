"""Index objects: built from segments, read back, refused when damaged."""

from __future__ import annotations

import hashlib
import random
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tidelog_core.errors import CorruptObject, CorruptRecordBatch
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import CompressionType, build_batch, iter_headers
from tidelog_core.tier.index_build import build_index_file
from tidelog_core.tier.index_file import HEADER, SECTION, IndexFile, crc32c_of

from tests.support.tier_segments import (
    BASE_TIMESTAMP_MS,
    RECORDS_PER_BATCH,
    SEGMENT_ID,
    TOPIC_ID,
    numbered_batch,
    write_source,
)

BASE = 1000
BATCH_COUNT = 50
END = BASE + BATCH_COUNT * RECORDS_PER_BATCH
BATCH_TABLE = np.dtype(
    [
        ("base_offset", "<i8"),
        ("last_offset", "<i8"),
        ("max_timestamp_ms", "<i8"),
        ("position", "<u4"),
        ("size_bytes", "<u4"),
        ("record_count", "<u4"),
        ("flags", "<u4"),
    ]
)


def batches(compression: CompressionType = CompressionType.NONE) -> list[bytes]:
    starts = range(BASE, END, RECORDS_PER_BATCH)
    return [numbered_batch(start, compression=compression) for start in starts]


def test_an_index_says_everything_about_its_segment(tmp_path: Path) -> None:
    aborted = (AbortedTransaction(7, 1003, 1009, 1000), AbortedTransaction(8, 900, 1200, 1010))
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END, aborted=aborted)
    built = build_index_file(source)
    index = IndexFile.parse(built.data)
    assert (index.base_offset, index.end_offset, index.partition) == (BASE, END, 4)
    assert (index.topic_id, index.segment_id, index.leader_epoch) == (TOPIC_ID, SEGMENT_ID, 3)
    assert index.record_count == END - BASE
    assert index.log_size_bytes == source.size_bytes
    assert index.log_crc32c == crc32c_of(source.path.read_bytes())
    assert index.log_sha256 == hashlib.sha256(source.path.read_bytes()).digest()
    assert index.max_timestamp_ms == built.max_timestamp_ms == BASE_TIMESTAMP_MS + END - 1
    assert index.aborted == aborted
    assert index.leader_epochs == ((1, BASE), (3, BASE + 5))
    assert bytes(index.producer_snapshot) == b"producers"
    assert bytes(index.offset_index) == source.offset_index.read_bytes()
    assert bytes(index.time_index) == source.time_index.read_bytes()
    assert index.chained_hash == built.chained_hash
    assert index.size_bytes == len(built.data)
    rows = [
        (h.base_offset, h.last_offset, h.max_timestamp_ms, position, h.size_bytes)
        for position, h in iter_headers(source.path.read_bytes())
    ]
    assert [tuple(row)[:5] for row in index.batches] == rows
    assert {row.record_count for row in index.batches} == {RECORDS_PER_BATCH}


def test_numpy_reads_the_batch_table_as_it_is(tmp_path: Path) -> None:
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    index = IndexFile.parse(build_index_file(source).data)
    table = np.frombuffer(index.batches.buffer, BATCH_TABLE)
    assert table["base_offset"].tolist() == list(range(BASE, END, RECORDS_PER_BATCH))
    assert int(table["size_bytes"].sum()) == source.size_bytes


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """A reader of ``docs/format.md`` that knows nothing of our code finds the batches."""
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    data = build_index_file(source).data
    assert data[:8] == b"TLINDEX\0"
    version, section_count = struct.unpack_from("<HH", data, 8)
    assert version == 1
    for number in range(section_count):
        kind, flags, position, size, row_size, crc = struct.unpack_from(
            "<IIQQII", data, 112 + 32 * number
        )
        assert position % 8 == 0
        assert crc32c_of(data[position : position + size]) == crc
        if kind == 1:
            assert flags == 1
            assert row_size == 40
            assert struct.unpack_from("<qqq", data, position) == (
                BASE,
                BASE + RECORDS_PER_BATCH - 1,
                BASE_TIMESTAMP_MS + BASE + RECORDS_PER_BATCH - 1,
            )
    assert HEADER.size == 112
    assert SECTION.size == 32


def test_offsets_and_positions_are_found(tmp_path: Path) -> None:
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    table = IndexFile.parse(build_index_file(source).data).batches
    for row, batch_row in enumerate(table):
        assert table.row_of_offset(batch_row.base_offset) == row
        assert table.row_of_offset(batch_row.last_offset) == row
        assert table.row_at_position(batch_row.position) == row
        assert table.row_at_position(batch_row.position + 1) == row + 1
    assert table.row_of_offset(0) == 0
    assert table.row_of_offset(END) == len(table)
    with pytest.raises(IndexError):
        table[len(table)]


def test_an_offset_that_compaction_removed_leads_to_the_next_batch(tmp_path: Path) -> None:
    kept = [numbered_batch(BASE), numbered_batch(BASE + 100)]
    source = write_source(tmp_path, kept, base_offset=BASE, end_offset=END)
    table = IndexFile.parse(build_index_file(source).data).batches
    assert table.row_of_offset(BASE + 50) == 1


def test_a_time_leads_to_the_first_batch_that_reaches_it(tmp_path: Path) -> None:
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    index = IndexFile.parse(build_index_file(source).data)
    for offset in (0, BASE, BASE + 9, BASE + 10, END - 1):
        expected = next(
            n
            for n, row in enumerate(index.batches)
            if row.max_timestamp_ms >= BASE_TIMESTAMP_MS + offset
        )
        assert index.row_of_timestamp(BASE_TIMESTAMP_MS + offset) == expected
    assert index.row_of_timestamp(BASE_TIMESTAMP_MS + END) is None


def test_an_empty_segment_has_an_index(tmp_path: Path) -> None:
    source = write_source(tmp_path, [], base_offset=BASE, end_offset=END)
    index = IndexFile.parse(build_index_file(source).data)
    assert len(index.batches) == 0
    assert index.max_timestamp_ms == -1
    assert index.row_of_timestamp(0) is None


@pytest.mark.parametrize("compression", list(CompressionType))
def test_the_key_filter_knows_every_key_and_few_others(
    tmp_path: Path, compression: CompressionType
) -> None:
    source = write_source(tmp_path, batches(compression), base_offset=BASE, end_offset=END)
    key_filter = IndexFile.parse(build_index_file(source).data).key_filter
    assert key_filter is not None
    assert key_filter.key_count == END - BASE
    assert all(key_filter.may_contain(f"k{n}".encode()) for n in range(BASE, END))
    wrong = sum(key_filter.may_contain(f"k{n}".encode()) for n in range(END, END + 10_000))
    assert wrong < 200


def test_records_without_keys_and_control_batches_are_not_in_the_filter(tmp_path: Path) -> None:
    from tidelog_core.records.batch import Record

    plain = build_batch([Record(0, 1, None, b"x", ()), Record(1, 2, b"", b"y", ())])
    control = build_batch(
        [Record(2, 3, b"\0\0\0\0", b"\0\0\0\0\0\0", ())],
        base_offset=2,
        is_control=True,
        is_transactional=True,
        producer_id=1,
        producer_epoch=0,
    )
    source = write_source(tmp_path, [plain, control], base_offset=0, end_offset=3)
    key_filter = IndexFile.parse(build_index_file(source).data).key_filter
    assert key_filter is not None
    assert key_filter.key_count == 1
    assert key_filter.may_contain(b"")


def test_a_compacted_segment_of_few_records_has_a_filter_however_many_offsets_it_spans(
    tmp_path: Path,
) -> None:
    source = write_source(
        tmp_path, batches()[::10], base_offset=BASE, end_offset=END, key_filter_records_max=499
    )
    key_filter = IndexFile.parse(build_index_file(source).data).key_filter
    assert key_filter is not None
    assert key_filter.key_count == (END - BASE) // 10
    assert key_filter.may_contain(f"k{BASE}".encode())


def test_a_segment_of_too_many_records_has_no_filter(tmp_path: Path) -> None:
    source = write_source(
        tmp_path, batches(), base_offset=BASE, end_offset=END, key_filter_records_max=499
    )
    built = build_index_file(source)
    assert not built.has_key_filter
    assert IndexFile.parse(built.data).key_filter is None


def test_every_flipped_byte_and_every_cut_is_noticed(tmp_path: Path) -> None:
    source = write_source(tmp_path, batches()[:3], base_offset=BASE, end_offset=BASE + 30)
    data = build_index_file(source).data
    whole = IndexFile.parse(data)
    random.seed(7)
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1 << random.randrange(8)
        try:
            parsed = IndexFile.parse(bytes(damaged))
        except CorruptObject:
            continue
        # Only padding may go unnoticed.
        assert {k: bytes(v) for k, v in parsed.sections.items()} == {
            k: bytes(v) for k, v in whole.sections.items()
        }
        assert replace(parsed, sections={}) == replace(whole, sections={})
    for size in range(len(data)):
        with pytest.raises(CorruptObject, match=r"x\.index"):
            IndexFile.parse(data[:size], key="x.index")


def test_a_damaged_segment_gets_no_index(tmp_path: Path) -> None:
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    data = bytearray(source.path.read_bytes())
    data[len(data) // 2] ^= 1
    source.path.write_bytes(data)
    with pytest.raises(CorruptRecordBatch):
        build_index_file(source)


@pytest.mark.parametrize(
    "changes", [{"base_offset": BASE + 1}, {"end_offset": END - 1}, {"size_bytes": 10}]
)
def test_a_segment_other_than_announced_gets_no_index(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    source = write_source(tmp_path, batches(), base_offset=BASE, end_offset=END)
    with pytest.raises(CorruptRecordBatch):
        build_index_file(replace(source, **changes))  # type: ignore[arg-type]
