"""Decoding against ``decode_records``, which makes a Python object of every record."""

from __future__ import annotations

import datetime
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog.arrow import row_decoder
from tidelog.arrow.decoding import AbortedRange, BatchDecoder, RowRange
from tidelog_core.errors import CorruptObject
from tidelog_core.records.batch import (
    CompressionType,
    build_batch,
    build_empty_batch,
    decode_records,
    iter_headers,
    parse_header,
    rebuild_batch,
)
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.records.record import Record

EVERYTHING = RowRange(topic="t", partition=3, start_offset=0, end_offset=2**63 - 1)
WITH_HEADERS = RowRange(
    topic="t", partition=3, start_offset=0, end_offset=2**63 - 1, include_headers=True
)

contents = st.none() | st.binary(max_size=300)
records = st.builds(
    Record,
    offset=st.just(0),
    timestamp_ms=st.integers(-1, 2**41),
    key=contents,
    value=contents,
    headers=st.lists(st.tuples(st.text(max_size=8), contents), max_size=3).map(tuple),
)
codecs = st.sampled_from(CompressionType)


def decoded(log: bytes, rows: RowRange = WITH_HEADERS, *, piece: int | None = None) -> list[dict]:
    decoder = BatchDecoder(rows, object_key="o")
    found: list[pa.RecordBatch] = []
    for start in range(0, len(log), piece or len(log) or 1):
        found += decoder.feed(log[start : start + (piece or len(log))])
    decoder.finish()
    for batch in found:
        batch.validate(full=True)
    return [row for batch in found for row in batch.to_pylist()]


def expected(log: bytes, rows: RowRange = WITH_HEADERS) -> list[dict]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    found = []
    for position, header in iter_headers(log):
        for record in [] if header.is_control else decode_records(log, position):
            if not rows.start_offset <= record.offset < rows.end_offset:
                continue
            headers = [{"key": k, "value": v} for k, v in record.headers] or None
            found.append(
                {
                    "key": record.key,
                    "value": record.value,
                    "topic": rows.topic,
                    "partition": rows.partition,
                    "offset": record.offset,
                    "timestamp": epoch + datetime.timedelta(milliseconds=record.timestamp_ms),
                    "timestampType": int(header.is_log_append_time),
                    "headers": headers,
                }
            )
    return found


def log_of(batches: list[tuple[list[Record], CompressionType, int | None]]) -> bytes:
    log, offset = b"", 0
    for contents, codec, append_time in batches:
        log += build_batch(
            contents, base_offset=offset, compression=codec, log_append_time_ms=append_time
        )
        offset += len(contents)
    return log


batch_lists = st.lists(
    st.tuples(
        st.lists(records, min_size=1, max_size=12),
        codecs,
        st.none() | st.integers(0, 2**41),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=200)
@given(batches=batch_lists, start=st.integers(0, 40), length=st.integers(0, 40))
def test_rows_are_those_of_the_record_decoder(batches, start, length):
    log = log_of(batches)
    assert decoded(log) == expected(log)
    rows = RowRange("tøpic", 0, start, start + length, include_headers=True)
    assert decoded(log, rows) == expected(log, rows)


@settings(deadline=None, max_examples=50)
@given(batches=batch_lists, piece=st.integers(1, 200))
def test_pieces_may_end_anywhere(batches, piece):
    log = log_of(batches)
    assert decoded(log, piece=piece) == expected(log)


@pytest.mark.parametrize("piece", [1, 13, 60, 61, 62, 500])
def test_pieces_may_be_views_of_memory_that_is_written_over(piece):
    log = b"".join(
        build_batch([Record(0, 5, b"k", b"v" * 40)] * 3, base_offset=3 * n, compression=codec)
        for n, codec in enumerate(CompressionType)
    )
    decoder = BatchDecoder(WITH_HEADERS, object_key="o")
    memory = bytearray(piece)
    found = []
    for start in range(0, len(log), piece):
        size = min(piece, len(log) - start)
        memory[:size] = log[start : start + size]
        found += [
            row for batch in decoder.feed(memoryview(memory)[:size]) for row in batch.to_pylist()
        ]
    decoder.finish()
    assert found == expected(log)


def test_without_headers_there_is_no_such_column():
    log = build_batch([Record(0, 5, b"k", b"v", (("h", b"x"),))])
    assert decoded(log, EVERYTHING) == [
        {name: value for name, value in row.items() if name != "headers"} for row in expected(log)
    ]


def test_many_rows_become_several_arrow_batches():
    row_count = row_decoder.ROWS_PER_BATCH
    batch = build_batch([Record(0, 0, b"k", b"v")] * 1000)
    log = bytearray()
    for number in range(row_count // 1000 + 10):
        log += struct.pack(">q", number * 1000) + batch[8:]
    found = list(BatchDecoder(EVERYTHING, object_key="o").feed(bytes(log)))
    assert [b.num_rows for b in found] == [66_000, 9000]
    assert pa.Table.from_batches(found)["offset"].to_pylist() == list(range(75_000))


def test_control_batches_are_never_rows_but_their_offsets_pass():
    marker = build_end_transaction_marker(
        EndTransactionMarker(ControlType.COMMIT, 0),
        producer_id=1,
        producer_epoch=0,
        timestamp_ms=1,
        base_offset=1,
    )
    log = build_batch([Record(0, 0, None, b"a")]) + marker
    log += build_batch([Record(0, 0, None, b"b")], base_offset=2)
    assert [row["offset"] for row in decoded(log)] == [0, 2]


def test_aborted_batches_are_left_out_for_their_producer_and_offsets_only():
    def sent(offset: int, producer_id: int, *, is_transactional: bool = True) -> bytes:
        return build_batch(
            [Record(0, 0, None, b"v")],
            base_offset=offset,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            is_transactional=is_transactional,
        )

    log = b"".join(
        [sent(0, 7), sent(1, 7), sent(2, 8), sent(3, 7, is_transactional=False), sent(4, 7)]
    )
    rows = RowRange("t", 0, 0, 100, aborted=(AbortedRange(7, 1, 4),))
    assert [row["offset"] for row in decoded(log, rows)] == [0, 2, 3, 4]


def test_compacted_and_empty_batches_keep_their_offsets():
    records = [Record(i, i, b"k%d" % i, b"v") for i in range(10)]
    batch = build_batch(records, base_offset=100)
    header = parse_header(batch)
    kept = [r._replace(offset=100 + r.offset) for r in records if r.offset in (2, 7)]
    log = rebuild_batch(header, kept)
    log += build_empty_batch(header._replace(base_offset=110))
    log += build_batch(records, base_offset=120, compression=CompressionType.ZSTD)
    assert decoded(log) == expected(log)
    assert [row["offset"] for row in decoded(log)][:3] == [102, 107, 120]


def test_header_keys_that_are_not_utf8_are_replaced():
    log = build_batch([Record(0, 0, None, None, (("a\udcff", b"1"), ("ö", None)))])
    assert decoded(log)[0]["headers"] == [
        {"key": "a\ufffd", "value": b"1"},
        {"key": "ö", "value": None},
    ]


def test_timestamps_beyond_microseconds_are_held_at_the_bounds():
    log = build_batch([Record(0, 2**63 - 1, None, None)])
    log += build_batch([Record(0, -(2**62), None, None)], base_offset=1)
    batch = next(BatchDecoder(EVERYTHING, object_key="o").feed(log))
    top = (2**63 - 1) // 1000 * 1000
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [top, -top]


@pytest.mark.parametrize("codec", CompressionType)
def test_a_flipped_bit_anywhere_raises_or_moves_only_the_offset(codec):
    """Base offset, length and leader epoch lie outside the CRC; the rest must not pass."""
    first = build_batch([Record(0, 1, b"k", b"v" * 50)] * 3, compression=codec)
    second = build_batch([Record(0, 1, b"k", b"w" * 50)] * 3, base_offset=3, compression=codec)
    for position in range(len(first)):
        log = bytearray(first + second)
        log[position] ^= 0x04
        if position < 8 or 12 <= position < 16:
            continue
        with pytest.raises(CorruptObject, match=r"object 'o' is corrupt: batch at byte \d+"):
            decoded(bytes(log))


def test_a_base_offset_that_goes_back_raises():
    log = build_batch([Record(0, 1, b"k", b"v")] * 3) * 2
    with pytest.raises(CorruptObject, match="base offset 0 is below offset 3"):
        decoded(log)


def test_a_cut_log_raises_at_every_byte():
    log = build_batch([Record(0, 1, b"k", b"v")] * 3)
    for end in range(1, len(log)):
        with pytest.raises(CorruptObject, match="cut off"):
            decoded(log[:end])


def test_the_position_in_errors_counts_from_the_start_of_the_object():
    batch = build_batch([Record(0, 1, b"k", b"v")])
    decoder = BatchDecoder(EVERYTHING, object_key="o", position=1000)
    list(decoder.feed(batch))
    broken = bytearray(build_batch([Record(0, 1, b"k", b"v")], base_offset=1))
    broken[-1] ^= 1
    with pytest.raises(CorruptObject, match=f"batch at byte {1000 + len(batch)}: its CRC"):
        list(decoder.feed(bytes(broken)))


@settings(deadline=None, max_examples=300)
@given(body=st.binary(max_size=60), count=st.integers(0, 9), patch=st.data())
def test_bodies_with_a_right_crc_and_wrong_content_raise_or_agree(body, count, patch):
    """A producer may send nonsense: the loop must judge it as the record decoder does."""
    from crc32c import crc32c

    if patch.draw(st.booleans()):  # nearly right content finds more than noise does
        whole = build_batch([Record(0, 1, b"k", b"v", (("h", b"x"),))] * 3)
        mutable = bytearray(whole[61:])
        for _ in range(patch.draw(st.integers(0, 2))):
            mutable[patch.draw(st.integers(0, len(mutable) - 1))] = patch.draw(st.integers(0, 255))
        body, count = bytes(mutable), 3
    head = struct.pack(">hiqqqhii", 0, 8, 0, 0, -1, -1, -1, count)
    log = struct.pack(">qiib", 0, 9 + len(head) + len(body), 0, 2)
    log += struct.pack(">I", crc32c(head + body)) + head + body
    try:
        found = decoded(log)
    except CorruptObject:
        return  # Some offsets that the record decoder lets pass are refused here.
    wanted = expected(log)
    assert [(r["offset"], r["key"], r["value"], r["timestamp"]) for r in found] == [
        (r["offset"], r["key"], r["value"], r["timestamp"]) for r in wanted
    ]


def test_many_rows_share_the_column_of_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of millions of rows would have more bytes than Arrow can address."""
    monkeypatch.setattr(row_decoder, "TOPIC_ROWS_MAX", 4)
    batch = build_batch([Record(n, 5, None, b"%d" % n) for n in range(10)], base_offset=0)
    found = list(BatchDecoder(WITH_HEADERS, object_key="x").feed(batch))
    assert [one.num_rows for one in found] == [4, 4, 2]
    for one in found:
        one.validate(full=True)
    assert [row["offset"] for one in found for row in one.to_pylist()] == list(range(10))
    assert {row["topic"] for one in found for row in one.to_pylist()} == {"t"}
