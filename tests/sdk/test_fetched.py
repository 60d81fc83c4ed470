"""From fetched bytes to records: batches, gaps, transactions, damage. Pure."""

from __future__ import annotations

import pytest
from tidelog.consuming.fetched import Chunk, kept_records
from tidelog.consuming.positions import PartitionState
from tidelog.errors import CorruptRecordBatch
from tidelog.reused_memory import ReusedMemory
from tidelog_core.errors import UnsupportedMagic
from tidelog_core.model import TopicPartition
from tidelog_core.records.batch import CompressionType
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
)

from tests.support.batches import NO_PRODUCER, batch_of

TP = TopicPartition("t", 3)


def numbers(
    base: int,
    count: int,
    *,
    pid: int = -1,
    transactional: bool = False,
    codec: CompressionType = CompressionType.NONE,
) -> bytes:
    """Return a batch whose record at offset n has the value ``n``."""
    return batch_of(
        *(b"%d" % offset for offset in range(base, base + count)),
        key=b"k",
        timestamp_ms=1000,
        producer=(pid, 0, 0) if pid >= 0 else NO_PRODUCER,
        base_offset=base,
        is_transactional=transactional,
        compression=codec,
    )


def marker(offset: int, pid: int, type: ControlType) -> bytes:
    return build_end_transaction_marker(
        EndTransactionMarker(type, 0),
        producer_id=pid,
        producer_epoch=0,
        timestamp_ms=5,
        base_offset=offset,
    )


def drain(chunk: Chunk, position: int = 0) -> list[int]:
    offsets: list[int] = []
    while chunk:
        records, position, _ = chunk.next_batch(position)
        offsets += [record.offset for record in records]
    return offsets


def test_records_know_where_they_stand() -> None:
    records, next_offset, _ = Chunk(TP, numbers(5, 2)).next_batch(5)
    assert records[1]._asdict() == {
        "topic": "t",
        "partition": 3,
        "offset": 6,
        "timestamp_ms": 1001,
        "key": b"k",
        "value": b"6",
        "headers": (),
        "is_log_append_time": False,
    }
    assert next_offset == 7


def test_records_before_the_position_are_left_out() -> None:
    assert drain(Chunk(TP, numbers(5, 4)), 7) == [7, 8]


def test_a_batch_cut_at_the_end_is_left_for_the_next_fetch() -> None:
    whole = numbers(0, 3)
    for cut in (1, 30, len(whole) - 1):
        chunk = Chunk(TP, whole + numbers(3, 2)[:cut] if cut < len(numbers(3, 2)) else whole)
        assert chunk.next_offset == 3
        assert drain(chunk) == [0, 1, 2]


def test_bytes_without_a_whole_batch_are_corrupt() -> None:
    for cut in (1, 61, 70):
        with pytest.raises(CorruptRecordBatch, match="t-3"):
            Chunk(TP, numbers(0, 3)[:cut])


def test_damage_is_found_by_the_crc_unless_told_not_to_look() -> None:
    data = bytearray(numbers(0, 3))
    data[-2] ^= 1
    with pytest.raises(CorruptRecordBatch):
        drain(Chunk(TP, bytes(data)))
    assert len(drain(Chunk(TP, bytes(data), check_crcs=False))) == 3


def test_batches_before_one_of_another_format_come_before_the_error() -> None:
    other = bytearray(numbers(2, 2))
    other[16] = 1
    short = bytearray(numbers(2, 2))
    short[8:12] = (48).to_bytes(4, "big")
    for wrong, problem in ((other, UnsupportedMagic), (short, CorruptRecordBatch)):
        chunk = Chunk(TP, numbers(0, 2) + bytes(wrong) + numbers(4, 1))
        assert chunk.next_offset == 2
        assert drain(chunk) == [0, 1]
        with pytest.raises(problem):
            Chunk(TP, bytes(wrong))


def test_next_batches_are_whole_and_a_short_rest_is_among_them() -> None:
    batches = [numbers(offset, 1) for offset in range(10, 34)]
    size = len(batches[0])
    chunk = Chunk(TP, b"".join(batches) + batches[0][:30])
    counts, found = [], b""
    while chunk:
        data, count = chunk.next_batches(8 * size + 1)
        found += data
        counts.append(count)
        chunk.pass_batches(count)
    assert counts == [8, 8, 8]
    assert found == b"".join(batches)
    assert Chunk(TP, b"".join(batches[:17])).next_batches(16 * size)[1] == 17
    assert Chunk(TP, b"".join(batches[:3])).next_batches(1)[1] == 1


TRANSACTIONS = b"".join(
    [
        numbers(0, 2, pid=1, transactional=True),  # aborted
        numbers(2, 2, pid=2, transactional=True),  # committed
        numbers(4, 1),  # not transactional
        marker(5, 1, ControlType.ABORT),
        numbers(6, 2, pid=1, transactional=True),  # the same producer's next one, committed
        marker(8, 2, ControlType.COMMIT),
        marker(9, 1, ControlType.COMMIT),
    ]
)


def test_read_committed_leaves_out_aborted_transactions_only() -> None:
    chunk = Chunk(TP, TRANSACTIONS, aborted=[(0, 1)], read_committed=True)
    assert drain(chunk) == [2, 3, 4, 6, 7]
    assert chunk.next_offset == 10


def test_read_uncommitted_leaves_out_markers_only() -> None:
    assert drain(Chunk(TP, TRANSACTIONS)) == [0, 1, 2, 3, 4, 6, 7]


def test_position_moves_over_what_is_not_handed_out() -> None:
    state = PartitionState(TP)
    state.jump(0)
    data = numbers(0, 2, pid=1, transactional=True) + marker(2, 1, ControlType.ABORT)
    state.chunks.append(Chunk(TP, data, aborted=[(0, 1)], read_committed=True))
    assert not state.next_run()
    assert state.position == 3


@pytest.mark.parametrize("codec", CompressionType)
def test_every_codec_is_read(codec: CompressionType) -> None:
    assert drain(Chunk(TP, numbers(0, 50, codec=codec))) == list(range(50))


def test_a_jump_drops_what_was_fetched() -> None:
    state = PartitionState(TP)
    state.jump(0)
    state.chunks.append(Chunk(TP, numbers(0, 4)))
    assert state.next_run()
    assert [r.offset for r in state.take(2)] == [0, 1]
    assert (state.position, state.buffered_size_bytes) == (2, 0)
    state.jump(40)
    assert not state.next_run()
    assert state.position == 40


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_records_are_read_from_any_buffer(kind: type) -> None:
    log = numbers(0, 3) + numbers(3, 2, codec=CompressionType.LZ4)
    assert drain(Chunk(TP, kind(log))) == [0, 1, 2, 3, 4]


def test_few_records_of_a_large_answer_do_not_keep_it_in_memory() -> None:
    room = ReusedMemory(1 << 20).take
    answer = memoryview(bytearray(1_000_000))
    assert kept_records(answer[:500_000], room).obj is answer.obj
    answer[10:400] = b"x" * 390
    few = kept_records(answer[10:400], room)
    assert (type(few), bytes(few)) == (bytes, b"x" * 390)
    answer[10:400_010] = b"y" * 400_000
    some = kept_records(answer[10:400_010], lambda size: room(size)[:size])
    assert bytes(some) == b"y" * 400_000
    assert memoryview(some.obj).nbytes < 500_000
    assert kept_records(b"abc", room) == b"abc"
