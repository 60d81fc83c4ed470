"""Plans splits from options, segments and index objects. No store, no Spark, no clock.

``plan`` is called repeatedly: it returns the index objects that it needs until it has
all of them, then the splits. It requests only index objects of segments that are read in
part, split, searched by time or by key, or searched for aborted transactions.

Offsets after the tiered end are read from the objects of chains, if the log has such a tail, or
from the nodes, if the log has their end there: the nodes answer for any offset, so segments may
be tiered after planning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar
from uuid import UUID

import numpy as np
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.log.values import AbortedTransaction
from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.model import TopicPartition
from tidelog_core.tier.stretches import Stretch

from tidelog_spark.options.option_values import EARLIEST, LATEST, Limit, OffsetLimit
from tidelog_spark.options.read_options import ReadOptions
from tidelog_spark.planning.slicing import TimeLimits, cut_slices, tail_slices
from tidelog_spark.reading.splits import DataLost, Slice, Split, Tail
from tidelog_spark.stores.partition_log import PartitionLog, SegmentIndex

SPLIT_SIZE_BYTES = 64 * 1024 * 1024

P = ParamSpec("P")
R = TypeVar("R")

KeyOf = Callable[[TopicPartition, SegmentMeta], str]


class NoSuchTimestamp(TidelogError):
    """No tiered record is as new as the start time of the read."""

    code = ErrorCode.offset_out_of_range


@dataclass(frozen=True, slots=True)
class Plan:
    """The splits in order of topic, partition and offset."""

    splits: tuple[Split, ...]
    warnings: tuple[str, ...]  # losses skipped because failOnDataLoss is false


@dataclass(frozen=True, slots=True)
class MissingIndexes:
    """Request for the index objects of these segments, before the next call."""

    segments: tuple[tuple[TopicPartition, SegmentMeta], ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The offsets to read from a partition."""

    log: PartitionLog
    start_offset: int
    end_offset: int  # exclusive
    times: TimeLimits
    aborted: tuple[AbortedTransaction, ...] = ()


class _Lacking(Exception):
    """Raised internally to skip a partition until an index object is loaded."""


def plan(
    options: ReadOptions,
    logs: Sequence[PartitionLog],
    indexes: Mapping[UUID, SegmentIndex],
    *,
    key_of: KeyOf,
    problems: Sequence[str] = (),
    split_size_bytes: int = SPLIT_SIZE_BYTES,
) -> Plan | MissingIndexes:
    """Return the splits, or the index objects (by segment id) needed for them.

    ``problems`` are losses found by the caller, as sentences without a full stop. Raises
    ``DataLost`` with all requested but missing ranges, unless ``failOnDataLoss`` is false.
    """
    planner = _Planner(options, indexes, key_of)
    planner.problems.extend(problems)
    ordered = sorted(logs, key=lambda log: log.partition)
    wanted = [found for log in ordered if (found := planner.attempt(planner.wanted_of, log))]
    if planner.lacking:
        return MissingIndexes(tuple(planner.lacking.values()))
    if planner.problems and options.fail_on_data_loss:
        raise DataLost(planner.problems)
    while True:
        splits: list[Split] = []
        for one in wanted:
            splits += planner.attempt(planner.splits_of, one, split_size_bytes) or ()
        if planner.lacking:
            return MissingIndexes(tuple(planner.lacking.values()))
        if len(splits) >= options.min_partitions or not splits or split_size_bytes == 1:
            return Plan(tuple(splits), tuple(planner.problems))
        size_bytes = sum(part.size_bytes for split in splits for part in split.slices)
        split_size_bytes = max(1, min(split_size_bytes // 2, size_bytes // options.min_partitions))


class _Planner:
    """One call of ``plan``: its problems and missing index objects."""

    def __init__(
        self, options: ReadOptions, indexes: Mapping[UUID, SegmentIndex], key_of: KeyOf
    ) -> None:
        self.problems: list[str] = []
        self.lacking: dict[UUID, tuple[TopicPartition, SegmentMeta]] = {}
        self._options = options
        self._indexes = indexes
        self._key_of = key_of

    def attempt(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Return the step's result, or ``None`` if an index object is missing."""
        try:
            return step(*args, **kwargs)
        except _Lacking:
            return None

    def wanted_of(self, log: PartitionLog) -> _Wanted | None:
        """Return the offsets to read from the partition, or ``None``."""
        start, from_ms = self._start(log)
        end, until_offset, until_ms = self._end(log)
        low, high = min(start, end), max(start, end)
        if low < log.log_start_offset:
            self._lost(log, low, min(high, log.log_start_offset), "were deleted")
        if high > log.end_offset:
            is_tiered_only = log.node_end_offset is None and log.tail is None
            where = "are not tiered yet" if is_tiered_only else "are not written yet"
            self._lost(log, max(low, log.end_offset), high, where)
        start, end = max(start, log.log_start_offset), min(end, log.end_offset)
        for hole in log.holes(start, min(end, log.tiered_end_offset)):
            self._lost(log, *hole, "are in no tiered segment")
        if log.tail is not None:
            for hole in log.tail.holes(start, end):
                self._lost(log, *hole, "are in no tiered segment, and in no object of a chain")
        if start >= end:
            return None
        aborted = self._aborted(log, start, end) if self._options.is_read_committed else ()
        # Offsets whose batch is a separate slice, because its rows are selected by time.
        times = TimeLimits(
            -1 if from_ms is None else start,
            from_ms,
            -1 if until_ms is None else max(until_offset, start),
            until_ms,
        )
        return _Wanted(log, start, end, times, aborted)

    def splits_of(self, wanted: _Wanted, split_size_bytes: int) -> list[Split]:
        """Return the partition's splits of about the size, divided between batches."""
        splits: list[list[Slice]] = []
        filled_bytes = split_size_bytes
        for part in self._slices(wanted, split_size_bytes):
            if filled_bytes + part.size_bytes > split_size_bytes:
                splits.append([])
                filled_bytes = 0
            splits[-1].append(part)
            filled_bytes += part.size_bytes
        topic, partition = wanted.log.partition
        found = [
            Split(
                topic,
                partition,
                tuple(slices),
                tuple(
                    transaction
                    for transaction in wanted.aborted
                    if transaction.first_offset < slices[-1].end_offset
                    and transaction.last_offset >= slices[0].start_offset
                ),
                topic_id=wanted.log.topic_id,
            )
            for slices in splits
        ]
        tail_start = max(wanted.start_offset, wanted.log.tiered_end_offset)
        if tail_start < wanted.end_offset and wanted.log.tail is None:
            tail = Tail(tail_start, wanted.end_offset)
            found.append(Split(topic, partition, (), tail=tail, topic_id=wanted.log.topic_id))
        return found

    def _index(self, log: PartitionLog, segment: SegmentMeta) -> SegmentIndex:
        index = self._indexes.get(segment.segment_id)
        if index is None:
            self.lacking[segment.segment_id] = (log.partition, segment)
            raise _Lacking
        return index

    def _lost(self, log: PartitionLog, start: int, end: int, problem: str) -> None:
        self.problems.append(f"offsets [{start}, {end}) of {log.partition} {problem}")

    def _start(self, log: PartitionLog) -> tuple[int, int | None]:
        """Return the start offset, and the earliest time of rows in the first batch."""
        limit = self._options.start
        asked = _asked(limit, log.partition)
        if isinstance(limit, OffsetLimit):
            return (log.log_start_offset if asked == EARLIEST else asked), None
        found = self._batch_at_time(log, asked)
        if found is not None:
            return found[0], asked
        if self._options.is_late_start_latest:
            return log.end_offset, None
        raise NoSuchTimestamp(
            f"no tiered record of {log.partition} has a timestamp of at least {asked}; with"
            " startingOffsetsByTimestampStrategy=latest such a partition is read from its end"
        )

    def _end(self, log: PartitionLog) -> tuple[int, int, int | None]:
        """Return the end offset, and for a limit by time the last batch's offset and the time."""
        limit = self._options.end
        asked = _asked(limit, log.partition)
        if isinstance(limit, OffsetLimit):
            return (log.end_offset if asked == LATEST else asked), -1, None
        found = self._batch_at_time(log, asked)
        if found is None:
            return log.end_offset, -1, None
        return found[1], found[0], asked

    def _batch_at_time(self, log: PartitionLog, timestamp_ms: int) -> tuple[int, int] | None:
        """Return offsets ``[start, end)`` of the first batch with a record at or after the time."""
        for stretch in log.between(log.log_start_offset, log.tiered_end_offset):
            if stretch.segment.max_timestamp_ms < timestamp_ms:
                continue
            index = self._index(log, stretch.segment)
            fits = np.flatnonzero(
                (index.max_timestamps >= timestamp_ms)
                & (index.last_offsets >= stretch.start_offset)
                & (index.base_offsets < stretch.end_offset)
            )
            if len(fits):
                first = int(fits[0])
                start = max(int(index.base_offsets[first]), stretch.start_offset)
                return start, min(int(index.last_offsets[first]) + 1, stretch.end_offset)
        return None if log.tail is None else log.tail.batch_at_time(timestamp_ms)

    def _aborted(self, log: PartitionLog, start: int, end: int) -> tuple[AbortedTransaction, ...]:
        """Return the aborted transactions with records in the range.

        Each index object lists all transactions with records in its segment: a segment is tiered
        only after their end.
        """
        stretches = log.between(start, end)
        indexes = [self.attempt(self._index, log, stretch.segment) for stretch in stretches]
        found: dict[AbortedTransaction, None] = {}
        for index in indexes:
            if index is None:
                raise _Lacking  # After the loop, to request all missing ones at once.
            found.update(dict.fromkeys(index.aborted))
        if log.tail is not None:
            found.update(dict.fromkeys(log.tail.view.aborted))
        return tuple(
            transaction
            for transaction in found
            if transaction.first_offset < end and transaction.last_offset >= start
        )

    def _slices(self, wanted: _Wanted, split_size_bytes: int) -> list[Slice]:
        slices: list[Slice] = []
        is_lacking = False
        for stretch in wanted.log.between(wanted.start_offset, wanted.end_offset):
            found = self.attempt(self._slices_of, wanted, stretch, split_size_bytes)
            slices += found or ()
            is_lacking |= found is None
        if is_lacking:
            raise _Lacking
        if wanted.log.tail is not None:
            slices += tail_slices(
                wanted.log.tail, wanted.start_offset, wanted.end_offset, wanted.times
            )
        return slices

    def _slices_of(self, wanted: _Wanted, stretch: Stretch, split_size_bytes: int) -> list[Slice]:
        segment = stretch.segment
        keys = self._options.keys
        if keys is not None and not self._index(wanted.log, segment).may_contain(keys):
            return []
        key = self._key_of(wanted.log.partition, segment)
        start, end = stretch.start_offset, stretch.end_offset
        is_whole = (start, end) == (segment.base_offset, segment.end_offset)
        is_timed = wanted.times.is_in(start, end)
        if is_whole and not is_timed and segment.size_bytes <= split_size_bytes:
            return [Slice(key, 0, segment.size_bytes, start, end)] if segment.size_bytes else []
        index = self._index(wanted.log, segment)
        return cut_slices(key, index, (start, end), wanted.times, split_size_bytes)


def _asked(limit: Limit, partition: TopicPartition) -> int:
    return limit.by_partition[partition] if limit.everywhere is None else limit.everywhere
