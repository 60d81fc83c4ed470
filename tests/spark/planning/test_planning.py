"""Planning is pure: segments and index objects in, splits out."""

from __future__ import annotations

import dataclasses
import itertools
import json
from uuid import UUID, uuid4

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.model import TopicPartition
from tidelog_core.tier.stretches import stretches_of
from tidelog_spark.options.read_options import ReadOptions, parse_options
from tidelog_spark.planning.plan import MissingIndexes, NoSuchTimestamp, Plan, plan
from tidelog_spark.reading.splits import DataLost, Slice, Tail
from tidelog_spark.stores.partition_log import (
    PartitionLog,
    SegmentIndex,
    partition_log,
)

TOPIC_ID = UUID(int=1)
T0 = TopicPartition("t", 0)


def options(**given: str) -> ReadOptions:
    return parse_options(
        {"metadata": "sqlite:///m", "objects": "file:///o", "subscribe": "t", **given}
    )


def meta(
    base: int,
    end: int,
    *,
    size: int = 1000,
    epoch: int = 0,
    state: SegmentState = SegmentState.COPY_FINISHED,
    epochs: tuple[tuple[int, int], ...] | None = None,
    max_timestamp_ms: int | None = None,
) -> SegmentMeta:
    return SegmentMeta(
        topic_id=TOPIC_ID,
        partition=0,
        base_offset=base,
        end_offset=end,
        leader_epoch=epoch,
        segment_id=uuid4(),
        state=state,
        size_bytes=size,
        index_size_bytes=1,
        max_timestamp_ms=end - 1 if max_timestamp_ms is None else max_timestamp_ms,
        leader_epochs=((epoch, base),) if epochs is None else epochs,
        chained_hash="",
        created_ms=0,
    )


def index_of(segment: SegmentMeta, *, batch_offsets: int = 10, aborted=()) -> SegmentIndex:
    """An index of equal batches whose timestamps are their offsets."""
    bases = np.arange(segment.base_offset, segment.end_offset, batch_offsets)
    ends = np.append(bases[1:], segment.end_offset)
    edges = np.linspace(0, segment.size_bytes, len(bases) + 1).astype(np.int64)
    return SegmentIndex(bases, ends - 1, edges[:-1], np.diff(edges), ends - 1, tuple(aborted))


class Planned:
    """The plan, and which segments' index objects it took."""

    def __init__(self, logs, *, indexes=None, size: int = 10_000, **given: str) -> None:
        self.asked: list[SegmentMeta] = []
        self.rounds = 0
        known: dict[UUID, SegmentIndex] = {}
        while True:
            answer = plan(
                options(**given),
                logs,
                known,
                key_of=lambda partition, segment: f"{partition}/{segment.base_offset}",
                split_size_bytes=size,
            )
            if isinstance(answer, Plan):
                break
            assert isinstance(answer, MissingIndexes)
            self.rounds += 1
            for _, segment in answer.segments:
                assert segment.segment_id not in known
                self.asked.append(segment)
                known[segment.segment_id] = (indexes or {}).get(segment.segment_id) or index_of(
                    segment
                )
        self.splits, self.warnings = answer.splits, answer.warnings
        self.slices = [part for split in self.splits for part in split.slices]
        self.offsets = [(part.start_offset, part.end_offset) for part in self.slices]


def log_of(*segments: SegmentMeta, start: int = 0, partition: TopicPartition = T0) -> PartitionLog:
    return partition_log(partition, start, segments)


def offsets(*, at: int) -> str:
    return json.dumps({"t": {"0": at}})


def test_whole_small_segments_take_no_index_object_and_share_splits():
    planned = Planned([log_of(meta(0, 100), meta(100, 200), meta(200, 300))], size=2000)
    assert planned.asked == []
    assert planned.slices == [
        Slice("t-0/0", 0, 1000, 0, 100),
        Slice("t-0/100", 0, 1000, 100, 200),
        Slice("t-0/200", 0, 1000, 200, 300),
    ]
    assert [len(split.slices) for split in planned.splits] == [2, 1]


def test_a_big_segment_is_cut_where_batches_begin():
    planned = Planned([log_of(meta(0, 100, size=1000))], size=400)
    assert planned.rounds == 1
    assert planned.slices == [
        Slice("t-0/0", 0, 400, 0, 40),
        Slice("t-0/0", 400, 300, 40, 70),
        Slice("t-0/0", 700, 300, 70, 100),
    ]
    assert len(planned.splits) == 3


def test_offsets_inside_batches_keep_the_whole_batch_and_cut_the_rows():
    planned = Planned(
        [log_of(meta(0, 100), meta(100, 200))],
        startingOffsets=offsets(at=25),
        endingOffsets=offsets(at=131),
    )
    assert planned.slices == [
        Slice("t-0/0", 200, 800, 25, 100),
        Slice("t-0/100", 0, 400, 100, 131),
    ]


def test_nothing_below_the_log_start_offset_is_read():
    planned = Planned([log_of(meta(0, 100), meta(100, 200), start=115)])
    assert planned.slices == [Slice("t-0/100", 100, 900, 115, 200)]
    assert Planned([log_of(meta(0, 100), start=100)]).splits == ()
    assert Planned([log_of()]).splits == ()
    assert Planned([log_of(meta(0, 100), start=500)]).splits == ()


def test_only_finished_segments_are_read():
    states = (SegmentState.COPY_STARTED, SegmentState.DELETE_STARTED)
    for state in states:
        log = log_of(meta(0, 100), meta(100, 200, state=state))
        assert Planned([log]).offsets == [(0, 100)]


def test_the_tier_ends_before_a_segment_that_is_still_being_copied():
    log = log_of(meta(0, 100), meta(100, 200, state=SegmentState.COPY_STARTED), meta(200, 300))
    assert Planned([log]).offsets == [(0, 100)]
    with pytest.raises(DataLost, match=r"offsets \[100, 250\) of t-0 are not tiered yet"):
        Planned([log], endingOffsets=offsets(at=250))


def test_lost_offsets_raise_and_are_all_named():
    logs = [
        log_of(meta(0, 100), meta(150, 200)),
        log_of(meta(10, 100), partition=TopicPartition("t", 1)),
    ]
    with pytest.raises(DataLost) as raised:
        Planned(logs)
    assert raised.value.problems == (
        "offsets [100, 150) of t-0 are in no tiered segment",
        "offsets [0, 10) of t-1 are in no tiered segment",
    )
    assert "failOnDataLoss=false" in str(raised.value)


def test_lost_offsets_are_skipped_with_a_warning_where_that_is_asked_for():
    log = log_of(meta(0, 100), meta(150, 200), start=20)
    planned = Planned(
        [log],
        failOnDataLoss="false",
        startingOffsets=offsets(at=5),
        endingOffsets=offsets(at=210),
    )
    assert planned.offsets == [(20, 100), (150, 200)]
    assert planned.warnings == (
        "offsets [5, 20) of t-0 were deleted",
        "offsets [200, 210) of t-0 are not tiered yet",
        "offsets [100, 150) of t-0 are in no tiered segment",
    )


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        (5, 30, r"\[5, 20\) of t-0 were deleted"),
        (5, 9, r"\[5, 9\) of t-0 were deleted"),
        (90, 120, r"\[100, 120\) of t-0 are not tiered yet"),
        (110, 120, r"\[110, 120\) of t-0 are not tiered yet"),
    ],
)
def test_offsets_outside_the_log_raise(start, end, says):
    log = log_of(meta(0, 100), start=20)
    limits = {"startingOffsets": offsets(at=start), "endingOffsets": offsets(at=end)}
    with pytest.raises(DataLost, match=says):
        Planned([log], **limits)
    planned = Planned([log], failOnDataLoss="false", **limits)
    assert all(20 <= low < high <= 100 for low, high in planned.offsets)
    assert len(planned.warnings) == 1


def test_an_empty_range_at_the_end_is_empty():
    log = log_of(meta(0, 100))
    assert Planned([log], startingOffsets=offsets(at=100)).splits == ()
    limits = {"startingOffsets": offsets(at=40), "endingOffsets": offsets(at=40)}
    assert Planned([log], **limits).splits == ()


@pytest.mark.parametrize("wanted", [1, 3, 7, 10, 20])
def test_at_least_min_partitions_where_there_are_batches_enough(wanted):
    log = log_of(meta(0, 100), meta(100, 200))
    planned = Planned([log], minPartitions=str(wanted))
    assert len(planned.splits) >= wanted
    assert_complete(planned, 0, 200)


def test_min_partitions_beyond_the_batches_gives_one_split_a_batch():
    planned = Planned([log_of(meta(0, 100))], minPartitions="1000")
    assert len(planned.splits) == 10


def test_partitions_come_in_order_and_never_share_a_split():
    logs = [log_of(meta(0, 10, size=10), partition=TopicPartition("t", n)) for n in (2, 0, 1)]
    assert [split.partition for split in Planned(logs).splits] == [0, 1, 2]


def test_a_starting_time_reads_one_index_and_leaves_the_first_rows_to_the_reader():
    log = log_of(meta(0, 100), meta(100, 200), meta(200, 300))
    planned = Planned([log], startingTimestamp="123")
    assert [segment.base_offset for segment in planned.asked] == [100]
    assert planned.slices == [
        Slice("t-0/100", 200, 100, 120, 130, from_timestamp_ms=123),
        Slice("t-0/100", 300, 700, 130, 200),
        Slice("t-0/200", 0, 1000, 200, 300),
    ]


def test_an_ending_time_ends_inside_its_batch():
    log = log_of(meta(0, 100), meta(100, 200))
    planned = Planned([log], startingTimestamp="15", endingTimestamp="104")
    assert planned.slices == [
        Slice("t-0/0", 100, 100, 10, 20, from_timestamp_ms=15),
        Slice("t-0/0", 200, 800, 20, 100),
        Slice("t-0/100", 0, 100, 100, 110, until_timestamp_ms=104),
    ]
    planned = Planned([log], startingTimestamp="15", endingTimestamp="17")
    assert planned.slices == [
        Slice("t-0/0", 100, 100, 10, 20, from_timestamp_ms=15, until_timestamp_ms=17)
    ]
    planned = Planned([log], endingTimestamp="5000")
    assert planned.offsets == [(0, 100), (100, 200)]
    planned = Planned([log], startingOffsets=offsets(at=150), endingTimestamp="104")
    assert planned.splits == ()


def test_a_starting_time_after_all_records_raises_unless_told_otherwise():
    log = log_of(meta(0, 100))
    with pytest.raises(NoSuchTimestamp, match="t-0 has a timestamp of at least 500"):
        Planned([log], startingTimestamp="500")
    given = {"startingOffsetsByTimestampStrategy": "latest"}
    assert Planned([log], startingTimestamp="500", **given).splits == ()


def test_read_committed_gives_each_split_the_aborted_transactions_that_touch_it():
    first, second = meta(0, 100), meta(100, 200)
    across = AbortedTransaction(7, 90, 110, 90)
    late = AbortedTransaction(8, 150, 160, 150)
    indexes = {
        first.segment_id: index_of(first, aborted=[across]),
        second.segment_id: index_of(second, aborted=[across, late]),
    }
    planned = Planned(
        [log_of(first, second)], indexes=indexes, isolation="read_committed", size=500
    )
    assert planned.rounds == 1
    assert [(s.slices[0].start_offset, s.aborted) for s in planned.splits] == [
        (0, ()),
        (50, (across,)),
        (100, (across,)),
        (150, (late,)),
    ]
    assert all(split.aborted == () for split in Planned([log_of(first, second)]).splits)


@given(
    lengths=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=12),
    bounds=st.tuples(st.integers(0, 90), st.integers(0, 90)),
)
def test_the_stretches_between_two_offsets_are_those_that_overlap_them(lengths, bounds):
    """Holes between segments included."""
    segments, end = [], 0
    for hole, length in lengths:
        segments.append(meta(end + hole, end + hole + length))
        end += hole + length
    log = log_of(*segments)
    low, high = sorted(bounds)
    expected = [
        (max(s.base_offset, low), min(s.end_offset, high))
        for s in segments
        if s.base_offset < high and s.end_offset > low
    ]
    found = [(s.start_offset, s.end_offset) for s in log.between(low, high)]
    assert found == (expected if low < high else [])


def test_what_is_beyond_the_tier_is_one_split_of_its_own_where_the_nodes_are_asked():
    log = dataclasses.replace(log_of(meta(0, 100), start=20), node_end_offset=130)
    planned = Planned([log], startingOffsets=offsets(at=90))
    assert [(s.slices != (), s.tail) for s in planned.splits] == [
        (True, None),
        (False, Tail(100, 130)),
    ]
    assert [s.tail for s in Planned([log], startingOffsets=offsets(at=120)).splits] == [
        Tail(120, 130)
    ]
    assert all(s.tail is None for s in Planned([log], endingOffsets=offsets(at=100)).splits)
    with pytest.raises(DataLost, match=r"offsets \[130, 140\) of t-0 are not written yet"):
        Planned([log], endingOffsets=offsets(at=140))
    behind = dataclasses.replace(log, node_end_offset=70)
    assert Planned([behind]).offsets == [(20, 100)]


def test_where_leaders_overlap_the_newer_ones_segment_is_read():
    old, older = meta(100, 200), meta(0, 100)
    new = meta(150, 260, epoch=1, epochs=((0, 150), (1, 220)))
    assert spans([old, older, new]) == [(0, 100, 0), (100, 150, 0), (150, 260, 1)]


def test_what_a_newer_epoch_truncated_is_not_read():
    segments = [meta(0, 100), meta(100, 200), meta(200, 300)]
    new = meta(150, 220, epoch=1, epochs=((0, 150), (1, 180)))
    assert spans([*segments, new]) == [(0, 100, 0), (100, 150, 0), (150, 220, 1)]


def test_a_segment_copied_again_by_the_next_leader_leaves_the_later_ones():
    segments = [meta(0, 100), meta(200, 300)]
    new = meta(100, 200, epoch=1, epochs=((0, 100),))
    assert spans([*segments, new]) == [(0, 100, 0), (100, 200, 1), (200, 300, 0)]


def test_the_same_segment_copied_twice_is_read_once():
    assert len(spans([meta(0, 100), meta(0, 100), meta(100, 200)])) == 2


def spans(segments: list[SegmentMeta]) -> list[tuple[int, int, int]]:
    found = {
        tuple((s.start_offset, s.end_offset, s.segment.leader_epoch) for s in stretches_of(order))
        for order in itertools.permutations(segments)
    }
    assert len(found) == 1, "the order of the listing must not matter"
    return list(found.pop())


def assert_complete(planned: Planned, start: int, end: int) -> None:
    """Slices follow each other without gap or overlap, and so do their bytes."""
    covered = [(low, high) for low, high in planned.offsets]
    assert (covered[0][0], covered[-1][1]) == (start, end)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(covered))
    for key, parts in itertools.groupby(planned.slices, key=lambda part: part.object_key):
        for left, right in itertools.pairwise(list(parts)):
            assert left.position + left.size_bytes == right.position, key


@settings(deadline=None, max_examples=200)
@given(
    lengths=st.lists(st.integers(1, 120), min_size=1, max_size=6),
    size=st.integers(1, 4000),
    minimum=st.integers(1, 30),
    bounds=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_every_plan_covers_its_offsets_once(lengths, size, minimum, bounds):
    edges = [0, *itertools.accumulate(lengths)]
    log = log_of(
        *(meta(*pair, size=37 * (pair[1] - pair[0])) for pair in itertools.pairwise(edges))
    )
    start, end = sorted(round(edges[-1] * bound) for bound in bounds)
    planned = Planned(
        [log],
        size=size,
        minPartitions=str(minimum),
        startingOffsets=offsets(at=start),
        endingOffsets=offsets(at=end),
    )
    if start == end:
        assert planned.splits == ()
        return
    assert_complete(planned, start, end)
    assert all(dataclasses.is_dataclass(split) for split in planned.splits)
