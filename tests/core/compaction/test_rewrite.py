"""What a rewrite leaves of a log, against the oracle of ``random_logs``."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.compaction.offset_map import ENTRY_OVERHEAD_BYTES, OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, Rewrite, last_batches
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.errors import CorruptRecordBatch
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.records.batch import (
    CompressionType,
    Record,
    build_batch,
    decode_records,
    parse_header,
    rebuild_batch,
)
from tidelog_core.records.control import ControlType

from tests.support.clock import NOW_MS
from tests.support.offset_maps import kept_from
from tests.support.random_logs import (
    IDEMPOTENT_PRODUCER,
    OPERATIONS,
    RandomLog,
    apply,
    committed_records,
    oracle,
    positioned,
    producers_of,
)

AMPLE_BYTES = 2**20
RETENTION_MS = 1000


def compact(
    batches: list[bytes],
    *,
    start_offset: int = 0,
    up_to: int | None = None,
    size_bytes_max: int = AMPLE_BYTES,
    now_ms: int | None = None,
    knows_producers: bool = True,
    kept: list[AbortedTransaction] | None = None,
) -> tuple[list[bytes], int]:
    """Compact as a node does, return what is left and the end of what was compacted.

    Without ``now_ms`` tombstones and markers stay. ``kept`` takes what belongs into the
    transaction index.
    """
    producers, aborted = producers_of(batches)
    latest = OffsetMap(start_offset=start_offset, size_bytes_max=size_bytes_max)
    transactions = CleanedTransactions(one for one in aborted if one.last_offset >= start_offset)
    for buffer, position, header in positioned(batches):
        if up_to is None or header.next_offset <= up_to:
            latest.add(buffer, position, header, transactions)
    rewrite = Rewrite(
        end_offset=latest.end_offset,
        keep=latest.keeps,
        transactions=CleanedTransactions(aborted),
        deletes=None if now_ms is None else DeleteRule(now_ms, RETENTION_MS),
        last_batches=last_batches(producers.items()) if knows_producers else {},
    )
    rewritten = [rewrite.batch(*batch) for batch in positioned(batches)]
    if kept is not None and rewrite.transactions is not None:
        kept += rewrite.transactions.take_kept()
    return [batch for batch in rewritten if batch is not None], latest.end_offset


def small_log(*appends: tuple[bytes | None, bytes | None]) -> RandomLog:
    log = RandomLog()
    for record in appends:
        log.append([record], -1, CompressionType.NONE)
    return log


def rebuild_with_horizon(batch: bytes, delete_horizon_ms: int) -> bytes:
    records = decode_records(batch)
    return rebuild_batch(parse_header(batch), records, delete_horizon_ms=delete_horizon_ms)


def markers_of(batches: list[bytes]) -> list[int]:
    headers = [parse_header(batch) for batch in batches]
    return [header.base_offset for header in headers if header.is_control]


def ends_of_transactions_with_data(batches: list[bytes]) -> list[int]:
    """Return the markers that readers need: those of producers with data since their last."""
    open_producers: set[int] = set()
    needed = []
    for header in map(parse_header, batches):
        if header.is_control and header.producer_id in open_producers:
            open_producers.remove(header.producer_id)
            needed.append(header.base_offset)
        elif header.is_transactional and not header.is_control:
            open_producers.add(header.producer_id)
    return needed


@settings(max_examples=150, deadline=None)
@given(operations=OPERATIONS, data=st.data())
def test_only_the_newest_committed_record_of_every_key_is_left(
    operations: list[tuple[object, ...]], data: st.DataObject
) -> None:
    log = RandomLog()
    apply(log, operations)
    up_to = data.draw(st.integers(0, log.end_offset))
    left, end_offset = compact(log.batches, up_to=up_to)
    assert end_offset <= up_to
    assert committed_records(left) == oracle(committed_records(log.batches), end_offset)


@settings(max_examples=100, deadline=None)
@given(first=OPERATIONS, second=OPERATIONS, room=st.integers(1, 6))
def test_rounds_with_a_small_map_reach_the_end_and_the_same_records(
    first: list[tuple[object, ...]], second: list[tuple[object, ...]], room: int
) -> None:
    log = RandomLog()
    apply(log, first)
    batches, start_offset = log.batches, 0
    while start_offset < log.end_offset:
        if second and start_offset > 0:
            log.batches = list(batches)
            apply(log, second)
            batches, second = log.batches, []
        before = committed_records(batches)
        size_bytes_max = room * (ENTRY_OVERHEAD_BYTES + 5)
        batches, reached = compact(
            batches, start_offset=start_offset, size_bytes_max=size_bytes_max
        )
        assert reached > start_offset
        assert committed_records(batches) == oracle(before, reached)
        start_offset = reached


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_offsets_producers_and_times_of_a_batch_outlive_its_records(
    operations: list[tuple[object, ...]],
) -> None:
    log = RandomLog()
    apply(log, operations)
    left, _ = compact(log.batches, now_ms=NOW_MS)
    headers = {parse_header(batch).base_offset: parse_header(batch) for batch in log.batches}
    records = {record.offset: record for batch in log.batches for record in decode_records(batch)}
    for batch in left:
        header = parse_header(batch)
        same = ("last_offset_delta", "producer_id", "producer_epoch", "base_sequence")
        for name in (*same, "partition_leader_epoch", "is_transactional", "is_control"):
            assert getattr(header, name) == getattr(headers[header.base_offset], name)
        if header.record_count:
            assert header.compression == headers[header.base_offset].compression
        assert all(records[record.offset] == record for record in decode_records(batch))


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_producers_continue_from_what_is_left(operations: list[tuple[object, ...]]) -> None:
    log = RandomLog()
    apply(log, operations)
    left, _ = compact(log.batches)
    before, _ = producers_of(log.batches)
    after, _ = producers_of(left)
    after.advance_high_watermark(log.end_offset)
    assert after.first_unstable_offset is None
    assert {producer_id: entry.last_sequence for producer_id, entry in after.items()} == {
        producer_id: entry.last_sequence for producer_id, entry in before.items()
    }
    assert [parse_header(batch).next_offset for batch in left[-1:]] == [
        parse_header(batch).next_offset for batch in log.batches[-1:]
    ]


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_tombstones_and_markers_go_once_their_retention_has_passed(
    operations: list[tuple[object, ...]],
) -> None:
    log = RandomLog()
    apply(log, operations)
    # The first record of a key that nobody writes again, so that the end is a record.
    log.append([(b"last", b"value")], -1, CompressionType.NONE)
    survivors = oracle(committed_records(log.batches), log.end_offset)
    batches = log.batches
    # The second round finds the transactions whose data the first has dropped.
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + RETENTION_MS - 1):
        batches, _ = compact(batches, now_ms=now_ms)
        assert committed_records(batches) == survivors
    batches, _ = compact(batches, now_ms=NOW_MS + RETENTION_MS)
    assert committed_records(batches) == [one for one in survivors if one.value is not None]


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_a_marker_goes_once_no_data_of_its_transaction_are_left(
    operations: list[tuple[object, ...]],
) -> None:
    log = RandomLog()
    apply(log, operations)
    log.append([(b"last", b"value")], -1, CompressionType.NONE)
    batches = log.batches
    for now_ms in (NOW_MS, NOW_MS, NOW_MS + RETENTION_MS - 1):
        batches, _ = compact(batches, now_ms=now_ms, knows_producers=False)
        assert markers_of(batches) == markers_of(log.batches)
    # The tombstones go first; a transaction of nothing else has no data then.
    for periods in (1, 1, 2):
        now_ms = NOW_MS + periods * RETENTION_MS
        batches, _ = compact(batches, now_ms=now_ms, knows_producers=False)
    assert markers_of(batches) == ends_of_transactions_with_data(batches)


@settings(max_examples=100, deadline=None)
@given(operations=OPERATIONS)
def test_the_transaction_index_tells_what_the_batches_tell(
    operations: list[tuple[object, ...]],
) -> None:
    log = RandomLog()
    apply(log, operations)
    batches, kept = log.batches, list[AbortedTransaction]()
    for _ in range(2):
        kept.clear()
        batches, _ = compact(batches, kept=kept)
        told = [(one.producer_id, one.last_offset) for one in producers_of(batches)[1]]
        # The round that drops the last data of a transaction still tells of it.
        assert set(told) <= {(one.producer_id, one.last_offset) for one in kept}
    assert [(one.producer_id, one.last_offset) for one in kept] == told


@pytest.mark.parametrize("codec", CompressionType)
def test_a_batch_that_loses_records_keeps_its_codec(codec: CompressionType) -> None:
    log = RandomLog()
    log.append([(b"a", b"1"), (b"b", b"2"), (b"a", b"3")], -1, codec)
    left, _ = compact(log.batches)
    assert parse_header(left[0]).compression is codec
    assert [record.offset for record in decode_records(left[0])] == [1, 2]


def test_a_batch_that_loses_nothing_stays_byte_for_byte() -> None:
    log = small_log((b"a", b"1"), (b"b", b"2"))
    assert compact(log.batches, now_ms=NOW_MS)[0] == log.batches


def test_the_batch_at_the_rounds_end_stays_without_records() -> None:
    log = small_log((b"a", b"1"), (None, b"no key"))
    left, _ = compact(log.batches)
    assert [
        (parse_header(batch).base_offset, parse_header(batch).record_count) for batch in left
    ] == [
        (0, 1),
        (1, 0),
    ]


def test_an_expired_tombstone_above_what_the_map_has_seen_stays() -> None:
    """Its older values are still there: the map became full before it."""
    log = small_log((b"a", b"1"), (b"b", b"2"), (b"a", None))
    room = 2 * (ENTRY_OVERHEAD_BYTES + 1)
    batches, _ = compact(log.batches, now_ms=NOW_MS)
    assert parse_header(batches[-1]).delete_horizon_ms == NOW_MS + RETENTION_MS
    replica = [*log.batches[:2], batches[-1]]  # a follower has fetched it with its horizon
    left, end_offset = compact(replica, up_to=2, size_bytes_max=room, now_ms=NOW_MS + RETENTION_MS)
    assert end_offset == 2
    assert [record.offset for record in committed_records(left)] == [0, 1, 2]


def test_what_a_full_map_has_not_seen_of_a_batch_stays() -> None:
    log = RandomLog()
    log.append([(b"a", b"0"), (b"b", b"1")], -1, CompressionType.NONE)
    log.append([(b"a", b"2"), (b"c", b"3"), (None, b"4"), (b"b", None)], -1, CompressionType.NONE)
    room = 2 * (ENTRY_OVERHEAD_BYTES + 1)
    expired = [log.batches[0], rebuild_with_horizon(log.batches[1], NOW_MS)]
    left, end_offset = compact(expired, size_bytes_max=room, now_ms=NOW_MS)
    assert end_offset == 3
    assert [record.offset for record in committed_records(left)] == [1, 2, 3, 4, 5]


def test_a_batch_above_the_rounds_end_gets_no_delete_horizon() -> None:
    """An older value of a tombstone's key may be left below it."""
    log = small_log((b"a", b"0"), (b"b", b"1"))
    log.append([(b"a", b"2"), (b"c", None)], -1, CompressionType.NONE)
    left, end_offset = compact(
        log.batches, size_bytes_max=2 * (ENTRY_OVERHEAD_BYTES + 1), now_ms=NOW_MS
    )
    assert end_offset == 3
    assert [parse_header(batch).delete_horizon_ms for batch in left] == [None, None]


def test_a_delete_horizon_once_set_stays() -> None:
    log = small_log((b"a", b"1"), (b"a", None), (b"b", b"2"))
    once, _ = compact(log.batches, now_ms=NOW_MS)
    twice, _ = compact(once, now_ms=NOW_MS + RETENTION_MS - 1)
    assert twice == once


def test_a_marker_stays_while_data_of_its_transaction_do() -> None:
    log = RandomLog()
    log.append([(b"a", b"1")], 11, CompressionType.NONE)
    log.end(11, ControlType.COMMIT)
    log.append([(b"b", b"2")], -1, CompressionType.NONE)
    batches = log.batches
    for hours in range(3):
        batches, _ = compact(batches, now_ms=NOW_MS + hours * 3_600_000)
    assert batches == log.batches


def test_a_rewrite_may_erase_one_key_and_leave_all_else_as_it_is() -> None:
    log = RandomLog()
    log.append([(b"a", b"1"), (b"b", b"2")], 11, CompressionType.LZ4)
    log.end(11, ControlType.ABORT)
    log.append([(b"b", b"3")], IDEMPOTENT_PRODUCER, CompressionType.NONE)
    log.append([(b"a", b"4"), (None, b"no key")], -1, CompressionType.NONE)

    def keep(record: Record) -> bool:
        return record.key != b"b"

    erase = Rewrite(end_offset=log.end_offset, keep=keep)
    left = [batch for one in positioned(log.batches) if (batch := erase.batch(*one)) is not None]
    assert [parse_header(batch).base_offset for batch in left] == [0, 2, 4]
    assert left[1:] == [log.batches[1], log.batches[3]]
    assert [(record.offset, record.key) for record in decode_records(left[0])] == [(0, b"a")]


@pytest.mark.parametrize("position", [25, 70])
def test_a_damaged_batch_is_an_error(position: int) -> None:
    content = bytearray(build_batch([Record(0, NOW_MS, b"key", b"value" * 5)]))
    content[position] ^= 1
    header = parse_header(content)
    rewrite = Rewrite(end_offset=1, keep=lambda _record: True)
    with pytest.raises(CorruptRecordBatch):
        rewrite.batch(content, 0, header)
    with pytest.raises(CorruptRecordBatch):
        OffsetMap(start_offset=0, size_bytes_max=AMPLE_BYTES).add(
            content, 0, header, CleanedTransactions()
        )


def test_a_map_without_room_takes_its_first_key() -> None:
    log = small_log((b"a", b"1"), (b"a", b"2"), (b"b", b"3"))
    latest = OffsetMap(start_offset=0, size_bytes_max=0)
    for batch in positioned(log.batches):
        latest.add(*batch, CleanedTransactions())
    assert (latest.is_full, latest.end_offset, kept_from(latest, b"a")) == (True, 2, 1)
