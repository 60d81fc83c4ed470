"""Tombstones in the local log of a partition whose tier is compacted up to some offset."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.compaction.offset_map import OffsetMap
from tidelog_core.compaction.rewrite import DeleteRule, Rewrite, last_batches
from tidelog_core.compaction.transactions import CleanedTransactions
from tidelog_core.records.batch import CompressionType, Record, decode_records, parse_header
from tidelog_core.records.control import ControlType

from tests.support.clock import NOW_MS
from tests.support.random_logs import (
    KEYS,
    TRANSACTIONAL_PRODUCERS,
    RandomLog,
    apply,
    committed_records,
    positioned,
    producers_of,
)

RETENTION_MS = 1_000
AMPLE_BYTES = 2**20

# Few keys, and deleted often: what random logs of many keys seldom hold.
_RECORDS = st.lists(st.tuples(st.sampled_from(KEYS[:2]), st.sampled_from((None, b"v"))), min_size=1)
_APPEND = st.tuples(
    _RECORDS, st.sampled_from((-1, *TRANSACTIONAL_PRODUCERS)), st.just(CompressionType.NONE)
)
_END = st.tuples(st.sampled_from(TRANSACTIONAL_PRODUCERS), st.sampled_from(ControlType))
DELETING = st.lists(st.one_of(_APPEND, _APPEND, _APPEND, _END), min_size=3, max_size=12)


def compacted(
    log: RandomLog, batches: list[bytes], *, up_to: int, deletes: DeleteRule
) -> list[bytes]:
    """Return what one round leaves of a part of the log that ends where no transaction is open."""
    producers, found = producers_of(log.batches)
    start_offset = parse_header(batches[0]).base_offset if batches else 0
    aborted = [one for one in found if one.last_offset >= start_offset]
    latest = OffsetMap(start_offset=0, size_bytes_max=AMPLE_BYTES)
    transactions = CleanedTransactions(aborted)
    for buffer, position, header in positioned(batches):
        if header.next_offset <= up_to:
            latest.add(buffer, position, header, transactions)
    rewrite = Rewrite(
        end_offset=up_to,
        keep=latest.keeps,
        transactions=CleanedTransactions(aborted),
        deletes=deletes,
        last_batches=last_batches(producers.items()),
    )
    rewritten = [rewrite.batch(*batch) for batch in positioned(batches)]
    return [batch for batch in rewritten if batch is not None]


def settled_ends(log: RandomLog) -> list[int]:
    """Return the ends of batches at which no transaction is open."""
    ends, opened = [0], set()
    for batch in log.batches:
        header = parse_header(batch)
        if header.is_control:
            opened.discard(header.producer_id)
        elif header.producer_id in TRANSACTIONAL_PRODUCERS:
            opened.add(header.producer_id)
        if not opened:
            ends.append(header.next_offset)
    return ends


def parted(batches: list[bytes], offset: int) -> tuple[list[bytes], list[bytes]]:
    """Return the batches that begin below the offset, and the others."""
    below = [batch for batch in batches if parse_header(batch).base_offset < offset]
    return below, batches[len(below) :]


def state(batches: list[bytes]) -> dict[bytes | None, bytes | None]:
    """Return what a reader of all of them believes of every key."""
    found = {record.key: record.value for record in committed_records(batches)}
    return {key: value for key, value in found.items() if value is not None}


@settings(max_examples=60, deadline=None)
@given(operations=DELETING, data=st.data())
def test_a_reader_that_comes_from_the_tier_sees_every_deletion(
    operations: list[tuple[object, ...]], data: st.DataObject
) -> None:
    """Wherever it goes over, however often either side was compacted."""
    log = RandomLog()
    apply(log, operations)
    ends = settled_ends(log)
    tier_end = data.draw(st.sampled_from(ends))
    local_start = data.draw(st.sampled_from([end for end in ends if end <= tier_end]))
    compacted_up_to = data.draw(st.sampled_from([end for end in ends if end <= tier_end]))
    truth = state(log.batches)
    tier, _ = parted(log.batches, tier_end)
    _, local = parted(log.batches, local_start)
    if compacted_up_to:
        for pass_index in range(data.draw(st.integers(1, 2))):
            rule = DeleteRule(NOW_MS + pass_index * (RETENTION_MS + 1), RETENTION_MS)
            tier = compacted(log, tier, up_to=compacted_up_to, deletes=rule)
    for pass_index in range(3):
        for over in (local_start, tier_end):
            view = parted(tier, over)[0] + parted(local, over)[1]
            assert state(view) == truth
        now_ms = NOW_MS + pass_index * (RETENTION_MS + 1)
        rule = DeleteRule(now_ms, RETENTION_MS, tombstones_below=compacted_up_to)
        local = compacted(log, local, up_to=log.end_offset, deletes=rule)
    offsets = [one.offset for batch in local for one in decode_records(batch)]
    assert all(left < right for left, right in pairwise(offsets))


def test_tombstones_go_where_the_tier_is_compacted_and_stay_behind_that() -> None:
    log = RandomLog()
    log.append([(b"a", b"1"), (b"b", b"1")], -1, CompressionType.NONE)
    log.append([(b"a", None)], -1, CompressionType.NONE)
    log.append([(b"c", b"1")], TRANSACTIONAL_PRODUCERS[0], CompressionType.NONE)
    log.end_all()
    log.append([(b"b", None)], -1, CompressionType.NONE)
    _, local = parted(log.batches, 2)

    def tombstones(at_ms: int, batches: list[bytes]) -> tuple[list[bytes], list[Record]]:
        rule = DeleteRule(at_ms, RETENTION_MS, tombstones_below=5)
        left = compacted(log, batches, up_to=log.end_offset, deletes=rule)
        records = [
            one
            for batch in left
            if not parse_header(batch).is_control
            for one in decode_records(batch)
        ]
        return left, [one for one in records if one.value is None]

    left, found = tombstones(NOW_MS, local)
    assert [one.key for one in found] == [b"a", b"b"]  # a gets its time
    left, found = tombstones(NOW_MS + RETENTION_MS - 1, left)
    assert [one.key for one in found] == [b"a", b"b"]
    left, found = tombstones(NOW_MS + RETENTION_MS, left)
    assert [one.key for one in found] == [b"b"]
    left, found = tombstones(NOW_MS + 9 * RETENTION_MS, left)
    assert [one.key for one in found] == [b"b"]
    assert [parse_header(one).is_control for one in left] == [False, True, False]
