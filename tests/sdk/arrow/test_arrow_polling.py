"""``poll_arrow`` hands out the records that ``poll`` does: positions, transactions, damage."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog import reused_memory
from tidelog.arrow import row_decoder
from tidelog.consuming import arrow_polling
from tidelog.consuming.arrow_polling import take_arrow
from tidelog.consuming.fetched import Chunk
from tidelog.consuming.positions import PartitionState, Positions
from tidelog.errors import CorruptRecordBatch
from tidelog.reused_memory import THREAD_BYTES_MAX, ReusedMemory, thread_memory
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import CompressionType, Record, build_batch, iter_headers
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)
from tidelog_core.records.header import HEADER_SIZE, set_max_timestamp

from tests.support.batches import NO_PRODUCER, batch_of

TP, OTHER = TopicPartition("t", 3), TopicPartition("t", 4)
EVERYTHING = 2**40
MIB = 1024 * 1024
InMemory: TypeAlias = Callable[[bytes], memoryview]

contents = st.none() | st.binary(max_size=40)
headers = st.lists(st.tuples(st.text(max_size=8), contents), max_size=3).map(tuple)
records = st.builds(Record, st.just(0), st.integers(0, 2**41), contents, contents, headers)
batches = st.lists(
    st.tuples(
        st.lists(records, min_size=1, max_size=6),
        st.sampled_from(CompressionType),
        st.integers(-1, 2),  # the producer of a transaction
        st.sampled_from([None, None, ControlType.ABORT, ControlType.COMMIT]),  # after it
        st.integers(0, 2),  # offsets that compaction has removed after it
    ),
    min_size=1,
    max_size=8,
)


def log_of(made) -> tuple[bytes, list[tuple[int, int]]]:
    """Return the log's bytes, and the first offset and producer of every aborted transaction."""
    log = bytearray()
    aborted = []
    offset = 0
    begun: dict[int, int] = {}
    for rows, codec, producer, end, gap in made:
        batch = build_batch(
            rows,
            base_offset=offset,
            compression=codec,
            producer_id=producer,
            producer_epoch=0 if producer >= 0 else -1,
            base_sequence=0 if producer >= 0 else -1,
            is_transactional=producer >= 0,
        )
        log += batch
        if producer >= 0:
            begun.setdefault(producer, offset)
        offset += len(rows)
        if end is not None and producer >= 0:
            log += build_end_transaction_marker(
                EndTransactionMarker(end, 0),
                producer_id=producer,
                producer_epoch=0,
                timestamp_ms=5,
                base_offset=offset,
            )
            if end is ControlType.ABORT:
                aborted.append((begun[producer], producer))
            del begun[producer]
            offset += 1
        offset += gap
    return bytes(log), aborted


def own(log: bytes) -> memoryview:
    """Return the log in memory that is the chunk's, as a connection receives it."""
    return memoryview(bytearray(log))


MEMORY = pytest.mark.parametrize("in_memory", [memoryview, own], ids=["foreign", "own"])


def positions_of(*chunks: Chunk, position: int = 0, partition: TopicPartition = TP) -> Positions:
    positions = Positions()
    positions.replace([partition])
    state = positions.state(partition)
    state.jump(position)
    state.chunks.extend(chunks)
    return positions


def arrow_rows(found: list[pa.RecordBatch]) -> list[tuple]:
    rows = []
    for batch in found:
        batch.validate(full=True)
        for row in batch.to_pylist():
            headers = tuple((one["key"], one["value"]) for one in row.get("headers") or ())
            time_ms = round(row["timestamp"].timestamp() * 1000)
            rows.append((row["offset"], time_ms, row["key"], row["value"], headers))
    return rows


def plain_rows(positions: Positions, count: int = EVERYTHING) -> list[tuple]:
    return [tuple(record[2:7]) for record in positions.take(count)[0]]


def take_all(positions: Positions) -> list[tuple]:
    return arrow_rows(take_arrow(positions, include_headers=True, size_bytes_max=EVERYTHING)[0])


def test_batches_that_expand_are_handed_out_in_parts_of_limited_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Batches of some hundred bytes with 256 KiB each: a run of them has many megabytes."""
    monkeypatch.setattr(arrow_polling, "EXPANDED_BYTES_MAX", 1024 * 1024)
    monkeypatch.setattr(row_decoder, "BYTES_PER_BATCH", 768 * 1024)
    monkeypatch.setattr(arrow_polling, "RUN_SIZE_BYTES_MIN", 256)
    batch_count, zeros = 60, bytes(64 * 1024)
    log = b"".join(
        build_batch(
            [Record(0, 1_000, None, zeros, ())] * 4,
            base_offset=4 * number,
            compression=CompressionType.ZSTD,
        )
        for number in range(batch_count)
    )
    assert len(log) < arrow_polling.RUN_SIZE_BYTES_MAX
    positions = positions_of(Chunk(TP, log))
    state, offsets, fetches = positions.state(TP), [], 1
    while len(offsets) < 4 * batch_count:
        if not state.chunks:
            fetches += 1
            place = next(at for at, one in iter_headers(log) if one.last_offset >= state.position)
            state.chunks.append(Chunk(TP, log[place:]))
        found, _ = take_arrow(positions, include_headers=False, size_bytes_max=1)
        assert sum(one.nbytes for one in found) < arrow_polling.EXPANDED_BYTES_MAX + 1_100_000
        offsets += [row for one in found for row in one.column("offset").to_pylist()]
    assert offsets == list(range(4 * batch_count))
    assert fetches <= 12, "shorter runs need no further fetches"
    assert state.position == 4 * batch_count


@settings(max_examples=60, deadline=None)
@given(batches, st.integers(0, 12), st.booleans(), st.integers(1, 3000), st.booleans())
def test_the_rows_are_those_of_poll(
    made, position, read_committed, run_size_bytes, include_headers
) -> None:
    log, aborted = log_of(made)
    given = {"aborted": aborted, "read_committed": read_committed}
    by_record = positions_of(Chunk(TP, log, **given), position=position)
    expected = plain_rows(by_record)
    if expected:  # ``take`` stops looking once it has nothing to hand out.
        by_record.state(TP).next_run()
    if not include_headers:
        expected = [row[:-1] for row in expected]
    for memory in (log, own(log)):
        by_column = positions_of(Chunk(TP, memory, **given), position=position)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrow_polling, "RUN_SIZE_BYTES_MAX", run_size_bytes)
            found, _ = take_arrow(
                by_column, include_headers=include_headers, size_bytes_max=EVERYTHING
            )
        rows = arrow_rows(found)
        assert (rows if include_headers else [row[:-1] for row in rows]) == expected
        one, other = by_record.state(TP), by_column.state(TP)
        assert (other.position, other.last_epoch) == (one.position, one.last_epoch)
        assert not other.chunks


@pytest.mark.parametrize("codec", CompressionType, ids=[one.name for one in CompressionType])
def test_columns_in_the_programs_hands_do_not_change_while_memory_is_used_again(
    codec: CompressionType,
) -> None:
    """A quarter of the batches is kept, as a program may; the memory of the others comes again."""
    frames = ReusedMemory(8 * MIB)
    chance = random.Random(3)
    kept: list[tuple[pa.RecordBatch, list[bytes]]] = []
    places: set[int] = set()
    for number in range(24):
        values = [chance.randbytes(2_000) for _ in range(600)]
        records = [Record(0, 1_000, b"k", value, ()) for value in values]
        log = build_batch(records, base_offset=0, compression=codec)
        view = frames.take(len(log))[: len(log)]
        places.add(id(view.obj))
        view[:] = log
        found, _ = take_arrow(
            positions_of(Chunk(TP, view)), include_headers=False, size_bytes_max=EVERYTHING
        )
        assert [value for one in found for value in one.column("value").to_pylist()] == values
        if number % 4 == 0:
            kept.append((found[0], values[: found[0].num_rows]))
        del view, found
    assert len(places) < 24, "memory was used again"
    for batch, values in kept:
        batch.validate(full=True)
        assert batch.column("value").to_pylist() == values
        assert set(batch.column("key").to_pylist()) == {b"k"}


def test_values_that_are_a_small_part_do_not_keep_the_rest_in_memory() -> None:
    """The values are a twentieth of what was received: the rest are headers."""
    records = [Record(0, 1_000, None, b"v" * 50, (("h", bytes(1_000)),)) for _ in range(500)]
    for codec in (CompressionType.NONE, CompressionType.LZ4):
        log = own(build_batch(records, base_offset=0, compression=codec))
        found, _ = take_arrow(
            positions_of(Chunk(TP, log)), include_headers=False, size_bytes_max=EVERYTHING
        )
        assert sum(one.get_total_buffer_size() for one in found) < 500 * 150
        assert found[0].column("value").to_pylist() == [b"v" * 50] * 500


def kept_bytes(*memories: ReusedMemory) -> int:
    """Return the bytes of memory that something has views of."""
    blocks = [block for memory in memories for block in memory._kept]
    return sum(len(block) for block in blocks if not reused_memory._is_free(block))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4], ids=["none", "lz4"])
def test_a_batch_in_the_programs_hands_keeps_at_most_three_times_its_bytes(
    codec: CompressionType, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was received with it, and however large the memory is that was free."""
    chance = random.Random(seed)
    frames, unpacked = ReusedMemory(64 * MIB), thread_memory()
    unpacked.clear()
    for memory in (frames, unpacked):
        free = [memory.take(size) for size in (70_000, 200_000, MIB, 3 * MIB, 8 * MIB)]
        del free
    monkeypatch.setattr(arrow_polling, "RUN_SIZE_BYTES_MAX", chance.choice([100_000, 4 * MIB]))
    value_bytes, row_count = chance.choice([(20, 2_000), (1_000, 3_000), (30_000, 100)])
    value = chance.randbytes(value_bytes)
    key = chance.choice([None, b"k" * 10, b"k" * 900])
    batch_rows = row_count // chance.choice([1, 7, 40])
    log = b"".join(
        build_batch(
            [Record(0, 1_000, key, value, ())] * batch_rows, base_offset=at, compression=codec
        )
        for at in range(0, row_count - batch_rows + 1, batch_rows)
    )
    for _ in range(6):
        answer_bytes = chance.choice([1, 2, 8]) * len(log)  # of several partitions
        view = frames.take(answer_bytes)[: len(log)]
        view[:] = log
        position = chance.choice([0, chance.randrange(row_count - batch_rows + 1)])
        pool_bytes = pa.total_allocated_bytes()
        found, _ = take_arrow(
            positions_of(Chunk(TP, view), position=position),
            include_headers=False,
            size_bytes_max=EVERYTHING,
        )
        del view
        kept = chance.choice(found)
        del found
        own_bytes = kept.nbytes
        kept_in_all = kept_bytes(frames, unpacked) + pa.total_allocated_bytes() - pool_bytes
        assert kept_in_all <= 3 * own_bytes + 1_000
        assert set(kept.column("value").to_pylist()) == {value}
        del kept
        assert kept_bytes(frames, unpacked) == 0


def test_no_record_is_passed_over_after_an_error_that_is_not_of_the_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    positions = positions_of(Chunk(TP, own(batch_of(b"0", b"1"))))
    state = positions.state(TP)
    with monkeypatch.context() as patch:
        patch.setattr(row_decoder, "numbers", fail)
        with pytest.raises(MemoryError):
            take_all(positions)
    assert (state.position, state.fetch_position, len(state.chunks)) == (0, 0, 0)


def test_a_large_batch_leaves_no_large_memory_behind() -> None:
    for size_bytes in (1_000, THREAD_BYTES_MAX + 1):
        record = Record(0, 1_000, None, bytes(size_bytes), ())
        log = build_batch([record], base_offset=0, compression=CompressionType.GZIP)
        assert len(take_all(positions_of(Chunk(TP, log)))) == 1
        assert 0 < thread_memory().kept_bytes <= THREAD_BYTES_MAX


def test_records_that_poll_has_decoded_come_first() -> None:
    log = batch_of(b"0", b"1", b"2") + batch_of(b"3", base_offset=3)
    positions = positions_of(Chunk(TP, log))
    assert [row[0] for row in plain_rows(positions, 2)] == [0, 1]
    assert [row[0] for row in take_all(positions)] == [2, 3]
    assert positions.state(TP).position == 4


def test_records_that_arrow_cannot_have_as_they_are_are_not_lost() -> None:
    far = Record(0, 2**62, None, b"0", (("\udcff", b"x"),))
    log = build_batch([far, far._replace(offset=1, value=b"1")], base_offset=0)
    positions = positions_of(Chunk(TP, log))
    plain_rows(positions, 1)
    (batch,), _ = take_arrow(positions, include_headers=True, size_bytes_max=1)
    assert batch.column("headers").to_pylist() == [[{"key": "\ufffd", "value": b"x"}]]
    assert batch.column("value").to_pylist() == [b"1"]
    assert positions.state(TP).position == 2


def test_partitions_take_turns_and_the_rest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_polling, "RUN_SIZE_BYTES_MAX", 1)
    log = b"".join(batch_of(b"%d" % n, base_offset=n) for n in range(4))
    positions = positions_of(Chunk(TP, log))
    positions.replace([TP, OTHER])
    other = positions.state(OTHER)
    other.jump(0)
    other.chunks.append(Chunk(OTHER, log))
    found, states = take_arrow(positions, include_headers=False, size_bytes_max=1)
    assert [batch.column("partition").to_pylist() for batch in found] == [[3]]
    assert [state.partition for state in states] == [TP]
    found, _ = take_arrow(positions, include_headers=False, size_bytes_max=EVERYTHING)
    taken = [(b.column("partition")[0].as_py(), b.column("offset")[0].as_py()) for b in found]
    assert taken == [(4, 0), (3, 1), (4, 1), (3, 2), (4, 2), (3, 3), (4, 3)]


def test_a_partition_that_is_held_or_paused_gives_nothing() -> None:
    for attribute in ("is_held", "is_paused"):
        positions = positions_of(Chunk(TP, batch_of(b"0")))
        setattr(positions.state(TP), attribute, True)
        assert take_all(positions) == []
        setattr(positions.state(TP), attribute, False)
        assert len(take_all(positions)) == 1


@MEMORY
def test_rows_before_a_damaged_batch_come_before_its_error(in_memory: InMemory) -> None:
    good = batch_of(b"0", b"1")
    bad = bytearray(batch_of(b"2", base_offset=2))
    bad[-1] ^= 1
    positions = positions_of(Chunk(TP, in_memory(good + bytes(bad))))
    state = positions.state(TP)
    assert [row[0] for row in take_all(positions)] == [0, 1]
    with pytest.raises(CorruptRecordBatch):
        take_all(positions)
    assert (state.position, state.fetch_position) == (2, 2), "it is fetched again"


@MEMORY
def test_malformed_records_are_an_error_that_names_the_batch(in_memory: InMemory) -> None:
    batch = bytearray(batch_of(b"0", b"1", base_offset=7))
    batch[61] = 0x7E  # the first record's length
    positions = positions_of(Chunk(TP, in_memory(bytes(batch)), check_crcs=False), position=7)
    with pytest.raises(CorruptRecordBatch, match="t-3: batch at offset 7: a record's length"):
        take_all(positions)


@MEMORY
def test_a_malformed_header_is_an_error_too(in_memory: InMemory) -> None:
    """No CRC covers a base offset."""
    batch = bytearray(batch_of(b"0"))
    batch[:8] = b"\xff" * 8
    log = batch_of(b"0", base_offset=7) + bytes(batch)
    positions = positions_of(Chunk(TP, in_memory(log)), position=7)
    assert [row[0] for row in take_all(positions)] == [7]
    with pytest.raises(CorruptRecordBatch, match=r"t-3: the header of the batch .* is malformed"):
        take_all(positions)
    state = positions.state(TP)
    assert (state.position, state.fetch_position) == (8, 8), "it is fetched again"


@MEMORY
@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4], ids=["none", "lz4"])
def test_of_damaged_batches_that_follow_each_other_the_first_is_named(
    in_memory: InMemory, codec: CompressionType
) -> None:
    wrong_crc = bytearray(batch_of(b"1" * 100, base_offset=1, compression=codec))
    wrong_crc[20] ^= 1
    wrong_header = bytearray(batch_of(b"2", base_offset=2))
    wrong_header[:8] = b"\xff" * 8
    log = batch_of(b"0") + bytes(wrong_crc) + bytes(wrong_header)
    positions = positions_of(Chunk(TP, in_memory(log)))
    assert [row[0] for row in take_all(positions)] == [0]
    with pytest.raises(CorruptRecordBatch, match="its CRC is"):
        take_all(positions)
    assert positions.state(TP).position == 1


@MEMORY
def test_a_damaged_header_of_an_lz4_frame_is_an_error_as_it_is_for_poll(
    in_memory: InMemory,
) -> None:
    """Its producer damaged it: the CRC fits. Byte 6 is its own checksum, bytes 4 and 5 its fields."""
    for place in (4, 5, 6):
        batch = bytearray(batch_of(b"0" * 1_000, compression=CompressionType.LZ4))
        batch[HEADER_SIZE + place] ^= 0x10
        set_max_timestamp(batch, 0, 5)  # It makes a CRC that fits.
        for take in (take_all, plain_rows):
            positions = positions_of(Chunk(TP, in_memory(bytes(batch))))
            with pytest.raises(CorruptRecordBatch, match="lz4 data is corrupt"):
                take(positions)


@MEMORY
@pytest.mark.parametrize("codec", CompressionType, ids=[one.name for one in CompressionType])
@pytest.mark.parametrize("include_headers", [False, True], ids=["bare", "with_headers"])
def test_rows_before_malformed_records_come_before_the_error(
    in_memory: InMemory, codec: CompressionType, include_headers: bool
) -> None:
    """The second record of the last batch is the malformed one."""
    rows = [Record(n, 1_000, b"k", b"value %d" % n, (("h", b"%d" % n),)) for n in range(6)]
    last = bytearray(build_batch(rows[4:], base_offset=4))
    last[last.rindex(b"value 5") - 1] = 0x7E  # its size
    log = b"".join(
        build_batch(rows[n : n + 2], base_offset=n, compression=codec) for n in (0, 2)
    ) + bytes(last)
    positions = positions_of(Chunk(TP, in_memory(log), check_crcs=False))
    found, _ = take_arrow(positions, include_headers=include_headers, size_bytes_max=EVERYTHING)
    expected = [(n, 1_000, b"k", b"value %d" % n, (("h", b"%d" % n),)) for n in range(4)]
    if include_headers:
        assert arrow_rows(found) == expected
    else:
        assert [row[:-1] for row in arrow_rows(found)] == [row[:-1] for row in expected]
    state = positions.state(TP)
    assert (state.position, state.fetch_position, len(state.chunks)) == (4, 4, 0)
    state.chunks.append(Chunk(TP, in_memory(bytes(last)), check_crcs=False))
    with pytest.raises(CorruptRecordBatch, match="t-3: batch at offset 4: a record's value"):
        take_all(positions)


def test_rows_before_what_cannot_be_decompressed_come_before_the_error() -> None:
    last = bytearray(batch_of(b"2", base_offset=2, compression=CompressionType.LZ4))
    last[70] ^= 0xFF
    log = batch_of(b"0") + batch_of(b"1", base_offset=1) + bytes(last)
    positions = positions_of(Chunk(TP, own(log), check_crcs=False))
    assert [row[3] for row in take_all(positions)] == [b"0", b"1"]
    assert positions.state(TP).position == 2


def test_headers_are_left_out_unless_asked_for() -> None:
    found, _ = take_arrow(
        positions_of(Chunk(TP, batch_of(b"0", producer=NO_PRODUCER))),
        include_headers=False,
        size_bytes_max=1,
    )
    assert "headers" not in found[0].schema.names


def test_an_error_of_a_partition_is_kept_until_it_is_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    positions = positions_of(Chunk(TP, batch_of(b"0")))
    positions.replace([TP, OTHER])
    other: PartitionState = positions.state(OTHER)
    other.jump(0)
    other.error = CorruptRecordBatch("t-4: damaged")
    assert [row[0] for row in take_all(positions)] == [0]
    with pytest.raises(CorruptRecordBatch, match="t-4: damaged"):
        take_all(positions)
