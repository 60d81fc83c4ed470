"""The state machine of a share partition: events and times in, answers out (KIP-932).

    start offset (SPSO) ≤ … in flight … ≤ end offset (SPEO)

All records before the start offset are done; none from the end offset on was ever delivered. Those
between are available, acquired by a member until a deadline, or in a terminal state: acknowledged,
or archived. The start offset moves past terminal records.

An acquisition counts as a delivery. Records that are released, or whose deadline has passed, become
available again, or archived if they have reached the limit of deliveries. If the member leaves, the
delivery of its records does not count.

Offsets without a record, removed by compaction, are archived when a read shows them. Those inside
delivered batches are acquired, and the client that does not find them acknowledges them as gaps.

Acquisitions are not stored: ``stored`` has acquired records in their state before, and they may be
delivered again by the next leader or after a restart. Nothing here has a clock, a socket or a
store.
Source: ``SharePartition`` of Kafka.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from tidelog_core.errors import InvalidRecordState, InvalidRequest
from tidelog_core.metadata.coordination.share_partitions import (
    STORED_BATCHES_MAX,
    RecordState,
    StateBatch,
    merge_batches,
)

from tidelog_node.wire.share_fetch import Acknowledgement, Acquired

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)  # the wire's values
NOBODY = ""
# Of new records delivered at once, besides the limit of records in flight: more would not fit
# into the stored record if each ended in another state.
NEW_RECORDS_MAX = STORED_BATCHES_MAX // 2


class LogBatch(NamedTuple):
    """The offsets of one record batch of the log."""

    base_offset: int
    last_offset: int  # inclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class AcquireLimits:
    """Limits of one acquisition."""

    records_max: int  # exceeded up to the end of a batch, unless ``is_exact``
    batch_size: int  # of records in a range of the answer; ranges end at batches
    in_flight_max: int  # no new records from this number on: group.share.partition.max.record.locks
    is_exact: bool = False


@dataclass(slots=True)
class _Run:
    """Consecutive records in the same state."""

    first: int
    last: int  # inclusive
    state: RecordState
    delivery_count: int
    member_id: str = NOBODY  # the member that has acquired them
    deadline_ms: int = 0  # of the acquisition

    @property
    def was_never_delivered(self) -> bool:
        """Whether they were archived without a delivery: they do not count as in flight."""
        return self.state is RecordState.ARCHIVED and self.delivery_count == 0

    def is_like(self, other: _Run) -> bool:
        return (
            self.state is other.state
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
            and self.deadline_ms == other.deadline_ms
        )


class SharePartitionState:
    """One share partition. Times are of any clock that never goes back, in milliseconds."""

    __slots__ = ("_delivery_count_limit", "_runs", "_start")

    def __init__(
        self, start_offset: int, batches: Sequence[StateBatch] = (), *, delivery_count_limit: int
    ) -> None:
        """Begin from the result of ``stored``."""
        self._delivery_count_limit = delivery_count_limit
        self._start = start_offset
        # Without a gap from the start offset to the end offset.
        self._runs: list[_Run] = []
        for first, last, state, count in batches:
            if first > self.end_offset:
                self._append(first - 1, RecordState.AVAILABLE, 0)
            self._append(last, state, count)
        self._settle()

    @property
    def start_offset(self) -> int:
        """The first offset that is not done."""
        return self._start

    @property
    def end_offset(self) -> int:
        """The first offset from which on nothing was ever delivered."""
        return self._runs[-1].last + 1 if self._runs else self._start

    @property
    def next_fetch_offset(self) -> int:
        """The first offset with records that may be available."""
        for run in self._runs:
            if run.state is RecordState.AVAILABLE:
                return run.first
        return self.end_offset

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which the next acquisition expires, ``None`` without acquisitions."""
        deadlines = [r.deadline_ms for r in self._runs if r.state is RecordState.ACQUIRED]
        return min(deadlines, default=None)

    def can_acquire(self, in_flight_max: int) -> bool:
        """Whether records from ``next_fetch_offset`` on may be delivered."""
        return self.next_fetch_offset < self.end_offset or self._in_flight_count() < in_flight_max

    def stored(self) -> tuple[int, tuple[StateBatch, ...]]:
        """Return the start offset and the states to store of the records from it on."""
        batches = []
        for run in self._runs:
            state, count = run.state, run.delivery_count
            if state is RecordState.ACQUIRED:
                state, count = RecordState.AVAILABLE, count - 1
            if state.is_terminal or count > 0:
                batches.append(StateBatch(run.first, run.last, state, count))
        return self._start, merge_batches(batches)

    # -- events --

    def acquire(
        self,
        member_id: str,
        batches: Sequence[LogBatch],
        limits: AcquireLimits,
        *,
        read_offset: int,
        deadline_ms: int,
        aborted: Sequence[LogBatch] = (),
    ) -> list[Acquired]:
        """Acquire available records of the batches for the member; return them, ascending.

        ``batches`` are all batches of the log from ``read_offset`` on, without exception, and
        ``read_offset`` was the ``next_fetch_offset`` of this state, just now or earlier.
        ``aborted`` are the batches of aborted transactions; they are archived.
        """
        read_offset = max(read_offset, self._start)
        batches = [batch for batch in batches if batch.last_offset >= read_offset]
        if not batches or limits.records_max <= 0:
            return []
        first, last = max(read_offset, batches[0].base_offset), batches[-1].last_offset
        self._archive_missing(read_offset, first)
        taken: list[Acquired] = []
        left = limits.records_max
        for run in self._available(first, last):
            if left <= 0:
                break
            low, high = max(run.first, first), min(run.last, last)
            high = _cut(low, high, left, batches, is_exact=limits.is_exact)
            left -= high - low + 1
            taken.append(Acquired(low, high, run.delivery_count + 1))
        room = min(left, limits.in_flight_max - self._in_flight_count())
        low = max(first, self.end_offset)
        if room > 0 and low <= last:
            self._archive_missing(self.end_offset, low)
            high = min(last, low + NEW_RECORDS_MAX - 1)
            high = _cut(low, high, room, batches, is_exact=limits.is_exact)
            self._append(high, RecordState.AVAILABLE, 0)
            taken.append(Acquired(low, high, 1))
        shown: list[Acquired] = []
        for some in taken:
            self._set(
                _Run(*some[:2], RecordState.ACQUIRED, some.delivery_count, member_id, deadline_ms)
            )
            for hidden in _overlaps(some, aborted):
                self._set(_Run(*hidden, RecordState.ARCHIVED, 0))
            for low, high in _outside(some, aborted):
                shown += _in_batches(
                    Acquired(low, high, some.delivery_count), batches, limits.batch_size
                )
        self._settle()
        return shown

    def acknowledge(
        self,
        member_id: str,
        acknowledgements: Sequence[Acknowledgement],
        *,
        deadline_ms: int,
        may_renew: bool = False,
    ) -> None:
        """Apply acknowledgements of records that the member has acquired: all or nothing.

        ``deadline_ms`` is the new deadline of renewed acquisitions. Offsets below the start offset
        are ignored. Raises ``InvalidRequest``, ``InvalidRecordState``.
        """
        _require_valid(acknowledgements, RENEW if may_renew else REJECT)
        changes = self._changes(acknowledgements)
        for low, high, _ in changes:
            self._require_acquired(member_id, low, high)
        for low, high, kind in changes:
            self._split(low, high)
            for run in self._between(low, high):
                if kind == RENEW:
                    run.deadline_ms = deadline_ms
                elif kind == RELEASE:
                    self._give_back(run)
                else:
                    is_done = kind == ACCEPT
                    _end(run, RecordState.ACKNOWLEDGED if is_done else RecordState.ARCHIVED)
        self._settle()

    def _changes(self, acknowledgements: Sequence[Acknowledgement]) -> list[tuple[int, int, int]]:
        """Return ranges with one type each, first and last offset in flight, and the type."""
        changes = []
        for first, last, types in acknowledgements:
            if last < self._start:
                continue
            if last >= self.end_offset:
                raise InvalidRequest(f"offset {last} is past the records that were acquired")
            changes += [
                (max(low, self._start), high, kind)
                for low, high, kind in _of_one_type(first, last, types)
                if high >= self._start
            ]
        return changes

    def _require_acquired(self, member_id: str, first: int, last: int) -> None:
        for run in self._between(first, last):
            if run.state is not RecordState.ACQUIRED:
                raise InvalidRecordState(f"offset {max(first, run.first)} is not acquired")
            if run.member_id != member_id:
                raise InvalidRecordState(f"another member has offset {max(first, run.first)}")

    def release(self, member_id: str) -> None:
        """Release all records of a member that leaves: their delivery does not count."""
        for run in self._runs:
            if run.state is RecordState.ACQUIRED and run.member_id == member_id:
                run.delivery_count -= 1
                _end(run, RecordState.AVAILABLE)
        self._settle()

    def expire(self, now_ms: int) -> None:
        """Release the records whose deadline has passed."""
        for run in self._runs:
            if run.state is RecordState.ACQUIRED and run.deadline_ms <= now_ms:
                self._give_back(run)
        self._settle()

    def advance_log_start(self, log_start_offset: int) -> None:
        """Drop everything below the log start offset: the log no longer has it."""
        if log_start_offset <= self._start:
            return
        if log_start_offset < self.end_offset:
            self._split(log_start_offset, log_start_offset)
        self._runs = [run for run in self._runs if run.first >= log_start_offset]
        self._start = log_start_offset
        self._settle()

    def cut_at(self, log_end_offset: int) -> None:
        """Forget the states of offsets from the log's end on.

        The log will give these offsets to other records. Only for a state that has just begun.
        """
        if log_end_offset < self.end_offset:
            if log_end_offset > self._start:
                self._split(log_end_offset, log_end_offset)
            self._runs = [run for run in self._runs if run.last < log_end_offset]
        self._start = min(self._start, log_end_offset)
        self._settle()

    # -- runs --

    def _in_flight_count(self) -> int:
        return sum(run.last - run.first + 1 for run in self._runs if not run.was_never_delivered)

    def _index(self, offset: int) -> int:
        return bisect_right(self._runs, offset, key=attrgetter("first")) - 1

    def _between(self, first: int, last: int) -> list[_Run]:
        """Return the runs that overlap the offsets, both inclusive and in flight."""
        return self._runs[self._index(first) : self._index(last) + 1]

    def _available(self, first: int, last: int) -> list[_Run]:
        last = min(last, self.end_offset - 1)
        if first > last:
            return []
        return [r for r in self._between(first, last) if r.state is RecordState.AVAILABLE]

    def _append(self, last: int, state: RecordState, delivery_count: int) -> None:
        self._runs.append(_Run(self.end_offset, last, state, delivery_count))

    def _split(self, first: int, last: int) -> None:
        """Make a run begin at the first offset and one end at the last, both in flight."""
        for offset in (first, last + 1):
            at = self._index(offset)
            if at >= 0 and self._runs[at].first < offset <= self._runs[at].last:
                run = self._runs[at]
                self._runs.insert(at + 1, dataclasses.replace(run, first=offset))
                run.last = offset - 1

    def _set(self, run: _Run) -> None:
        """Replace the state of the run's offsets, which are in flight."""
        self._split(run.first, run.last)
        self._runs[self._index(run.first) : self._index(run.last) + 1] = [run]

    def _archive_missing(self, start: int, end: int) -> None:
        """Archive available offsets in ``[start, end)``, where the log has no records."""
        for run in self._available(start, end - 1):
            self._set(_Run(max(run.first, start), min(run.last, end - 1), RecordState.ARCHIVED, 0))
        if self.end_offset < end:
            self._append(end - 1, RecordState.ARCHIVED, 0)

    def _give_back(self, run: _Run) -> None:
        is_last = run.delivery_count >= self._delivery_count_limit
        _end(run, RecordState.ARCHIVED if is_last else RecordState.AVAILABLE)

    def _settle(self) -> None:
        """Move the start past terminal records, and join equal neighbouring runs."""
        kept: list[_Run] = []
        for run in self._runs:
            if not kept and run.state.is_terminal:
                self._start = run.last + 1
            elif kept and kept[-1].is_like(run):
                kept[-1].last = run.last
            else:
                kept.append(run)
        self._runs = kept


def _end(run: _Run, state: RecordState) -> None:
    run.state, run.member_id, run.deadline_ms = state, NOBODY, 0


def _require_valid(acknowledgements: Sequence[Acknowledgement], type_max: int) -> None:
    """Raise for acknowledgements that are invalid. Source: ``KafkaApis``, with its codes."""
    end = 0  # the last offset of the previous one, inclusive
    for number, (first, last, types) in enumerate(acknowledgements):
        if first < end or last < first:
            raise InvalidRequest(f"offsets {first} to {last} are out of order")
        if number > 0 and first == end:
            raise InvalidRecordState(f"offset {first} is acknowledged twice")
        if len(types) not in (1, last - first + 1):
            raise InvalidRequest(f"{len(types)} types for offsets {first} to {last}")
        if max(types) > type_max:
            raise InvalidRequest(f"{max(types)} is no type of acknowledgement")
        end = last


def _of_one_type(first: int, last: int, types: bytes) -> Iterator[tuple[int, int, int]]:
    if len(types) == 1:
        yield first, last, types[0]
        return
    for kind, same in groupby(types):
        count = sum(1 for _ in same)
        yield first, first + count - 1, kind
        first += count


def _cut(
    first: int, last: int, records_max: int, batches: Sequence[LogBatch], *, is_exact: bool
) -> int:
    """Return the last offset to take from ``first`` on, at most ``last``."""
    wanted = first + records_max - 1
    if wanted >= last or is_exact:
        return min(wanted, last)
    batch = batches[bisect_right(batches, wanted, key=attrgetter("base_offset")) - 1]
    return min(max(wanted, batch.last_offset), last)


def _in_batches(
    acquired: Acquired, batches: Sequence[LogBatch], batch_size: int
) -> Iterator[Acquired]:
    """Yield the records in ranges that end at batches, once they are large enough."""
    first, last, count = acquired
    at = bisect_right(batches, first, key=attrgetter("base_offset"))
    for batch in batches[at:]:
        if last - first < batch_size or batch.base_offset > last:
            break
        if batch.base_offset - first >= batch_size:
            yield Acquired(first, batch.base_offset - 1, count)
            first = batch.base_offset
    yield Acquired(first, last, count)


def _overlaps(acquired: Acquired, batches: Sequence[LogBatch]) -> Iterator[tuple[int, int]]:
    for batch in batches:
        low = max(batch.base_offset, acquired.first_offset)
        high = min(batch.last_offset, acquired.last_offset)
        if low <= high:
            yield low, high


def _outside(acquired: Acquired, batches: Sequence[LogBatch]) -> Iterator[tuple[int, int]]:
    first = acquired.first_offset
    for low, high in _overlaps(acquired, batches):
        if first < low:
            yield first, low - 1
        first = high + 1
    if first <= acquired.last_offset:
        yield first, acquired.last_offset
