"""Looks through a history for what a log must never do, in the manner of Jepsen's Kafka workload.

Pure: a history in, anomalies out. The topics looked at here have neither transactions
(``transaction_checker`` is for those) nor compaction, nor is anything deleted, so a log has
a record at every offset from its start to its end, every value at most once unless a
producer without idempotence wrote it, and whatever anyone was told about an offset holds
for ever.

What is no anomaly: a write without an answer that is there; one that failed for certain
and is not; a record that a group gets twice; records of different sessions in any order;
what a client that does so wrote again under another epoch of its producer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.history import (
    UNKNOWN_OFFSET,
    FinalLog,
    History,
    Outcome,
    PartitionKey,
    Poll,
    Positioned,
    Write,
)


class Kind(StrEnum):
    """What can be wrong."""

    LOST_WRITE = "acknowledged write lost"
    FAILED_WRITE_PRESENT = "write reported as failed is present"
    DUPLICATE = "value of an idempotent producer written twice"
    UNKNOWN_VALUE = "value that nobody wrote there"
    CHANGED_OFFSET = "two values at one offset"
    TWO_OFFSETS = "one value at two offsets"
    REORDERED = "writes of one session out of order"
    LOST_READ = "value read and later gone (read past the high watermark)"
    NON_MONOTONIC_POLL = "poll went back"
    SKIPPED_POLL = "poll left records out"
    GROUP_SKIPPED = "group never got a record below its position"
    HOLE = "hole in the log"
    NO_FINAL_LOG = "partition cannot be read after the faults ended"
    STALLED = "did not go on after the faults ended"
    DIVERGENCE = "replicas differ below the high watermark"
    TIER_DIFFERS = "tiered segment differs from the log"
    STORED_DIFFERS = "stored records differ from those served"
    NODE_DIED = "node ended by itself"
    LOST_TRANSACTION = "record of a committed transaction lost"
    ABORTED_READ = "record of an aborted transaction read as committed"
    PARTIAL_COMMIT = "transaction committed in part"
    HANGING_TRANSACTION = "transaction left open after the faults ended"
    NOT_EXACTLY_ONCE = "input not processed exactly once"
    LOST_POSITION = "position of a member gone from the log"
    NOT_SHARED = "record never delivered to the share group"
    SHARED_AGAIN = "record delivered again though it was accepted"
    DELIVERY_COUNT = "delivery count went back"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong, and with what."""

    kind: Kind
    where: str
    detail: str
    inputs: tuple[PartitionKey, int] | None = None  # of a pipeline: where it read what is wrong

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the faults of the run leave to be promised."""

    is_acks_one_kept: bool = True  # acks=1 outlives what happened: one replica, no lost disk


@dataclass(frozen=True, slots=True)
class _Partition:
    """Everything about one partition."""

    name: PartitionKey
    writes: list[Write]
    readings: list[tuple[Poll, list[tuple[int, str]]]]
    final: FinalLog
    by_offset: dict[int, str]  # of the final log
    offsets: dict[str, list[int]]  # of the final log, by value
    resent: frozenset[str]  # values that stand in several epochs of their producer

    @property
    def by_value(self) -> dict[str, Write]:
        return {write.value: write for write in self.writes}


def check(history: History, rules: Rules = Rules()) -> list[Anomaly]:
    """Return everything that is wrong with the history, partition by partition."""
    found: list[Anomaly] = []
    written = {PartitionKey(write.topic, write.partition) for write in history.writes}
    finals = {PartitionKey(final.topic, final.partition) for final in history.finals}
    found += [
        Anomaly(Kind.NO_FINAL_LOG, str(name), "written to, but never read to its end")
        for name in sorted(written - finals)
    ]
    for partition in _by_partition(history):
        found += _lost_writes(partition, rules)
        found += _changed_offsets(partition, rules)
        for rule in _RULES:
            found += rule(partition)
    found += _polls(history)
    return found


def _by_partition(history: History) -> Iterator[_Partition]:
    writes: dict[PartitionKey, list[Write]] = defaultdict(list)
    for write in history.writes:
        writes[PartitionKey(write.topic, write.partition)].append(write)
    readings: dict[PartitionKey, list[tuple[Poll, list[tuple[int, str]]]]] = defaultdict(list)
    for poll in history.readings:
        if isinstance(poll, Poll):
            for name, records in _split(poll).items():
                readings[name].append((poll, records))
    resent: dict[PartitionKey, set[str]] = defaultdict(set)
    for again in history.resent:
        resent[PartitionKey(again.topic, again.partition)].add(again.value)
    for final in history.finals:
        name = PartitionKey(final.topic, final.partition)
        offsets: dict[str, list[int]] = defaultdict(list)
        for offset, value in final.records:
            offsets[value].append(offset)
        yield _Partition(
            name=name,
            writes=writes[name],
            readings=readings[name],
            final=final,
            by_offset=dict(final.records),
            offsets=dict(offsets),
            resent=frozenset(resent[name]),
        )


def _split(poll: Poll) -> dict[PartitionKey, list[tuple[int, str]]]:
    split: dict[PartitionKey, list[tuple[int, str]]] = defaultdict(list)
    for topic, number, offset, value in poll.records:
        split[PartitionKey(topic, number)].append((offset, value))
    return split


def _lost_writes(partition: _Partition, rules: Rules) -> Iterator[Anomaly]:
    for write in partition.writes:
        is_promised = write.acks == -1 or (write.acks == 1 and rules.is_acks_one_kept)
        if write.outcome is Outcome.OK and is_promised and write.value not in partition.offsets:
            yield _anomaly(
                partition,
                Kind.LOST_WRITE,
                f"{_tell(write)}, acknowledged at {write.completed_s:.3f} s; the log ends at"
                f" {partition.final.end_offset}",
            )


def _failed_writes_present(partition: _Partition) -> Iterator[Anomaly]:
    for write in partition.writes:
        if write.outcome is Outcome.FAIL and write.value in partition.offsets:
            offset = partition.offsets[write.value][0]
            detail = f"{_tell(write)} ({write.problem}) stands at offset {offset}"
            yield _anomaly(partition, Kind.FAILED_WRITE_PRESENT, detail)


def _duplicates(partition: _Partition) -> Iterator[Anomaly]:
    writes = partition.by_value
    for value, offsets in partition.offsets.items():
        write = writes.get(value)
        if len(offsets) > 1 and write is not None and write.is_idempotent:
            if write.may_resend and value in partition.resent:
                continue
            detail = f"{_tell(write)} stands at offsets {offsets}"
            yield _anomaly(partition, Kind.DUPLICATE, detail)


def _unknown_values(partition: _Partition) -> Iterator[Anomaly]:
    written = {write.value for write in partition.writes}
    for value, offsets in partition.offsets.items():
        if value not in written:
            yield _anomaly(partition, Kind.UNKNOWN_VALUE, f"{value!r} at offset {offsets[0]}")


def _changed_offsets(partition: _Partition, rules: Rules) -> Iterator[Anomaly]:
    """Two values at one offset, or an idempotent value at two, whoever saw them.

    Where acks=1 may be lost, what took its place stands at its offset.
    """
    at_offset: dict[int, dict[str, str]] = defaultdict(dict)
    of_value: dict[str, dict[int, str]] = defaultdict(dict)
    for offset, value, source in _observations(partition, rules):
        at_offset[offset].setdefault(value, source)
        of_value[value].setdefault(offset, source)
    for offset, values in sorted(at_offset.items()):
        if len(values) > 1:
            told = ", ".join(f"{value!r} ({source})" for value, source in values.items())
            yield _anomaly(partition, Kind.CHANGED_OFFSET, f"offset {offset}: {told}")
    writes = partition.by_value
    for value, sources in of_value.items():
        write = writes.get(value)
        is_duplicate = len(partition.offsets.get(value, [])) > 1  # told by its own rule
        if len(sources) > 1 and write is not None and write.is_idempotent and not is_duplicate:
            told = ", ".join(f"{offset} ({source})" for offset, source in sources.items())
            yield _anomaly(partition, Kind.TWO_OFFSETS, f"{_tell(write)}: {told}")


def _observations(partition: _Partition, rules: Rules) -> Iterator[tuple[int, str, str]]:
    """Yield offset, value and who says that they belong together."""
    for offset, value in partition.final.records:
        yield offset, value, "final log"
    for write in partition.writes:
        is_kept = write.acks == -1 or rules.is_acks_one_kept
        if write.outcome is Outcome.OK and write.offset != UNKNOWN_OFFSET and is_kept:
            yield write.offset, write.value, f"acknowledged at {write.completed_s:.3f} s"
    for poll, records in partition.readings:
        for offset, value in records:
            yield offset, value, f"read by {poll.session} at {poll.at_s:.3f} s"


def _reordered(partition: _Partition) -> Iterator[Anomaly]:
    """Within a session the log has the order of the calls.

    All that is there counts where the session was idempotent. Without idempotence a
    straggler of a request that was given up may come late: only first copies of what
    was acknowledged count then, and only of a client that promises an order.
    """
    sessions: dict[str, list[Write]] = defaultdict(list)
    for write in partition.writes:
        is_counted = write.is_idempotent or (write.is_ordered and write.outcome is Outcome.OK)
        if is_counted and write.value in partition.offsets:
            sessions[write.session].append(write)
    for writes in sessions.values():
        writes.sort(key=lambda write: write.number)
        for before, after in itertools.pairwise(writes):
            first = min(partition.offsets[before.value])
            second = min(partition.offsets[after.value])
            if first > second:
                detail = f"{_tell(before)} at {first}, after {_tell(after)} at {second}"
                yield _anomaly(partition, Kind.REORDERED, detail)


def _lost_reads(partition: _Partition) -> Iterator[Anomaly]:
    told: set[int] = set()
    for poll, records in partition.readings:
        for offset, value in records:
            is_gone = offset >= partition.final.start_offset and offset not in partition.by_offset
            if is_gone and offset not in told:
                told.add(offset)
                detail = f"{value!r} at offset {offset}, read by {poll.session}"
                yield _anomaly(partition, Kind.LOST_READ, f"{detail} at {poll.at_s:.3f} s")


def _holes(partition: _Partition) -> Iterator[Anomaly]:
    expected = partition.final.start_offset
    for offset, _ in partition.final.records:
        if offset != expected:
            detail = f"offset {offset} follows offset {expected - 1}"
            yield _anomaly(partition, Kind.HOLE, detail)
        expected = offset + 1
    if expected != partition.final.end_offset:
        detail = f"the last record is at {expected - 1}, the end at {partition.final.end_offset}"
        yield _anomaly(partition, Kind.HOLE, detail)


def _group_gaps(partition: _Partition) -> Iterator[Anomaly]:
    """A group starts at the log's start, so below its highest record it has had them all."""
    seen: dict[str, set[int]] = defaultdict(set)
    for poll, records in partition.readings:
        if poll.group:
            seen[poll.group].update(offset for offset, _ in records)
    for group, offsets in seen.items():
        last = max(offsets)
        missed = [o for o in sorted(partition.by_offset) if o < last and o not in offsets]
        if missed:
            detail = f"{group} missed {len(missed)} records, {_some(missed)}, of {last}"
            yield _anomaly(partition, Kind.GROUP_SKIPPED, detail)


_RULES: tuple[Callable[[_Partition], Iterator[Anomaly]], ...] = (
    _failed_writes_present,
    _duplicates,
    _unknown_values,
    _reordered,
    _lost_reads,
    _holes,
    _group_gaps,
)


def _polls(history: History) -> Iterator[Anomaly]:
    """Within a session, and between rebalances, offsets go up by one."""
    positions: dict[tuple[str, PartitionKey], int] = {}
    for event in history.readings:
        if isinstance(event, Positioned):
            for topic, number in event.partitions:
                positions.pop((event.session, PartitionKey(topic, number)), None)
            continue
        for topic, number, offset, _ in event.records:
            name = PartitionKey(topic, number)
            last = positions.get((event.session, name))
            positions[event.session, name] = offset
            if last is None or offset == last + 1:
                continue
            kind = Kind.SKIPPED_POLL if offset > last else Kind.NON_MONOTONIC_POLL
            detail = f"{event.session} got {offset} after {last} at {event.at_s:.3f} s"
            yield Anomaly(kind, str(name), detail)


def _anomaly(partition: _Partition, kind: Kind, detail: str) -> Anomaly:
    return Anomaly(kind, str(partition.name), detail)


def _tell(write: Write) -> str:
    return f"{write.value!r} (acks={'all' if write.acks == -1 else write.acks})"


def _some(offsets: Iterable[int]) -> str:
    listed = list(offsets)
    more = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return ", ".join(map(str, listed[:5])) + more
