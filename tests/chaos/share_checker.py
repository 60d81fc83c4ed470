"""Looks through a history for what a share group must never do.

Pure: a history in, anomalies out. Every record is delivered at least once. One whose
acceptance was acknowledged is never delivered again to whoever asks after that. How often a
record was delivered only grows: what is stored with a member's word outlives the leader.

What is no anomaly: a record that several members get, as long as none has accepted it; one
that was accepted without an answer; a delivery count that begins again below one that nobody
has said anything to, for only what is said is stored.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.chaos.checker import Anomaly, Kind
from tests.chaos.history import FinalLog, History, Outcome, PartitionKey, Settled, Shared


@dataclass(frozen=True, slots=True)
class _Delivery:
    """One record, handed out once."""

    shared: Shared
    value: str


def check_sharing(history: History, topic: str) -> list[Anomaly]:
    """Return everything that is wrong with what the group that reads the topic was given."""
    deliveries: dict[tuple[PartitionKey, int], list[_Delivery]] = defaultdict(list)
    for shared in history.shared:
        name = PartitionKey(shared.topic, shared.partition)
        for offset, value in shared.records:
            deliveries[name, offset].append(_Delivery(shared, value))
    settled: dict[tuple[PartitionKey, int], list[Settled]] = defaultdict(list)
    for one in history.settled:
        if one.outcome is Outcome.OK:
            for offset in range(one.first_offset, one.last_offset + 1):
                settled[PartitionKey(one.topic, one.partition), offset].append(one)
    found: list[Anomaly] = []
    for final in history.finals:
        if final.topic == topic:
            found += _against_log(final, deliveries)
    for (name, offset), given in deliveries.items():
        where = f"{name} at offset {offset}"
        found += _again(where, given, settled.get((name, offset), ()))
        found += _counts(where, given, settled.get((name, offset), ()))
    return found


def _against_log(
    final: FinalLog, deliveries: Mapping[tuple[PartitionKey, int], Sequence[_Delivery]]
) -> Iterator[Anomaly]:
    name = PartitionKey(final.topic, final.partition)
    missed = []
    for offset, value in final.records:
        given = deliveries.get((name, offset), ())
        if not given:
            missed.append(offset)
        for one in given:
            if one.value != value:
                detail = f"{one.value!r} was shared at {one.shared.at_s:.3f} s, not {value!r}"
                yield Anomaly(Kind.CHANGED_OFFSET, f"{name} at offset {offset}", detail)
    if missed:
        detail = f"{len(missed)} of {len(final.records)}, the first at offset {missed[0]}"
        yield Anomaly(Kind.NOT_SHARED, str(name), detail)


def _again(where: str, given: Sequence[_Delivery], settled: Sequence[Settled]) -> Iterator[Anomaly]:
    accepted_s = min((one.completed_s for one in settled if one.is_accepted), default=None)
    for one in given:
        if accepted_s is not None and one.shared.asked_s > accepted_s:
            detail = f"accepted by {accepted_s:.3f} s, {_tell(one)}"
            yield Anomaly(Kind.SHARED_AGAIN, where, detail)


def _counts(
    where: str, given: Sequence[_Delivery], settled: Sequence[Settled]
) -> Iterator[Anomaly]:
    """Each count is above that of every earlier delivery whose end is stored."""
    stored = [
        (word.completed_s, before.shared.delivery_count)
        for word in settled
        for before in given
        if before.shared.session == word.session and before.shared.at_s <= word.said_s
    ]
    for one in given:
        counts = [count for at_s, count in stored if at_s < one.shared.asked_s]
        if counts and one.shared.delivery_count <= max(counts):
            detail = f"{max(counts)} deliveries are stored, {_tell(one)}"
            yield Anomaly(Kind.DELIVERY_COUNT, where, detail)


def _tell(delivery: _Delivery) -> str:
    shared = delivery.shared
    return (
        f"delivery {shared.delivery_count} to {shared.session}, who asked at {shared.asked_s:.3f} s"
    )
