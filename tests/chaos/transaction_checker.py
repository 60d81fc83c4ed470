"""Looks through a history for what transactions must never do.

Pure: a history in, anomalies out. A transaction is committed in all its partitions or in
none; nobody who asks for what is committed ever sees a record of one that is not; and a
pipeline, which commits what it has read together with what it has made of it, makes of
every record of its source one record of its target, in the source's order.

What is no anomaly: a transaction without an answer that is committed, or is not; control
records, which leave offsets out.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.chaos.checker import Anomaly, Kind
from tests.chaos.history import (
    PIPED,
    CommittedLog,
    CommittedPoll,
    History,
    Outcome,
    PartitionKey,
    Pipeline,
    PipelineStep,
    Step,
    Transaction,
)


@dataclass(frozen=True, slots=True)
class _Committed:
    """What is committed of one partition, by value and by offset."""

    log: CommittedLog
    offsets: Mapping[str, list[int]]
    by_offset: Mapping[int, str]


_Logs = Mapping[PartitionKey, _Committed]


def check_transactions(history: History) -> list[Anomaly]:
    """Return everything that is wrong with the transactions of the history."""
    logs = {
        PartitionKey(log.topic, log.partition): _committed(log)
        for log in sorted(history.committed_logs, key=lambda log: (log.topic, log.partition))
    }
    by_value = {value: one for one in history.transactions for *_, value in one.values}
    found: list[Anomaly] = []
    for transaction in history.transactions:
        found += _outcome(transaction, logs)
    for name, committed in logs.items():
        found += _contents(name, committed, by_value)
    found += _order(history.transactions, logs)
    for poll in history.committed_polls:
        found += _readings(poll, logs, by_value)
    found += _positions(history.committed_polls, logs)
    for pipeline in history.pipelines:
        found += _pipeline(pipeline, history, logs)
    for step in history.steps:
        found += _resets(step)
    return found


def _committed(log: CommittedLog) -> _Committed:
    offsets: dict[str, list[int]] = defaultdict(list)
    for offset, value in log.records:
        offsets[value].append(offset)
    return _Committed(log, dict(offsets), dict(log.records))


def _outcome(transaction: Transaction, logs: _Logs) -> Iterator[Anomaly]:
    """Committed is everything or nothing, and what the producer was told."""
    where = _tell(transaction)
    present: list[str] = []
    absent: list[str] = []
    for topic, partition, value in transaction.values:
        committed = logs.get(PartitionKey(topic, partition))
        if committed is None:
            detail = f"{where} wrote to it; it cannot be read"
            yield Anomaly(Kind.NO_FINAL_LOG, f"{topic}-{partition}", detail)
            return
        told = f"{topic}-{partition} {value!r}"
        (present if value in committed.offsets else absent).append(told)
    match transaction.outcome:
        case Outcome.OK if absent:
            yield Anomaly(Kind.LOST_TRANSACTION, where, f"{len(absent)} gone, as {absent[0]}")
        case Outcome.FAIL if present:
            yield Anomaly(Kind.ABORTED_READ, where, f"{len(present)} there, as {present[0]}")
        case Outcome.INFO if present and absent:
            detail = f"{len(present)} there, as {present[0]}; {len(absent)} gone, as {absent[0]}"
            yield Anomaly(Kind.PARTIAL_COMMIT, where, detail)


def _contents(
    name: PartitionKey, committed: _Committed, by_value: Mapping[str, Transaction]
) -> Iterator[Anomaly]:
    log = committed.log
    if log.stable_offset != log.end_offset:
        detail = f"the last stable offset is {log.stable_offset} of {log.end_offset}"
        yield Anomaly(Kind.HANGING_TRANSACTION, str(name), detail)
    for value, offsets in committed.offsets.items():
        if value not in by_value:
            yield Anomaly(Kind.UNKNOWN_VALUE, str(name), f"{value!r} at offset {offsets[0]}")
        elif len(offsets) > 1:
            yield Anomaly(Kind.DUPLICATE, str(name), f"{value!r} stands at offsets {offsets}")


def _order(transactions: list[Transaction], logs: _Logs) -> Iterator[Anomaly]:
    """A partition has the records of a session in the order in which it sent them."""
    lasts: dict[tuple[str, PartitionKey], int] = {}
    for transaction in sorted(transactions, key=lambda one: one.number):
        for topic, partition, value in transaction.values:
            name = PartitionKey(topic, partition)
            offsets = logs[name].offsets.get(value) if name in logs else None
            if offsets is None:
                continue
            last = lasts.get((transaction.session, name), -1)
            if offsets[0] < last:
                detail = f"{value!r} stands at {offsets[0]}, what was sent before it at {last}"
                yield Anomaly(Kind.REORDERED, str(name), detail)
            lasts[transaction.session, name] = offsets[0]


def _readings(
    poll: CommittedPoll, logs: _Logs, by_value: Mapping[str, Transaction]
) -> Iterator[Anomaly]:
    """Whatever was read as committed is committed, at that offset."""
    for topic, partition, offset, value in poll.records:
        committed = logs.get(PartitionKey(topic, partition))
        if committed is None or committed.by_offset.get(offset) == value:
            continue
        detail = f"{value!r} at offset {offset}, read by {poll.session} at {poll.at_s:.3f} s"
        written = by_value.get(value)
        is_aborted = written is not None and written.outcome is Outcome.FAIL
        kind = Kind.ABORTED_READ if is_aborted else Kind.LOST_READ
        yield Anomaly(kind, f"{topic}-{partition}", detail)


def _positions(polls: list[CommittedPoll], logs: _Logs) -> Iterator[Anomaly]:
    """Each reader gets every committed record from the start on, once and in order."""
    offsets = {name: sorted(committed.by_offset) for name, committed in logs.items()}
    positions: dict[tuple[str, PartitionKey], int] = defaultdict(int)
    for poll in polls:
        for topic, partition, offset, _ in poll.records:
            name = PartitionKey(topic, partition)
            position = positions[poll.session, name]
            positions[poll.session, name] = max(position, offset + 1)
            detail = (
                f"{poll.session} got {offset} at {poll.at_s:.3f} s, its position was {position}"
            )
            if offset < position:
                yield Anomaly(Kind.NON_MONOTONIC_POLL, str(name), detail)
            elif name in offsets:
                first, end = (bisect.bisect_left(offsets[name], at) for at in (position, offset))
                if end > first:
                    detail += f"; {end - first} records in between"
                    yield Anomaly(Kind.SKIPPED_POLL, str(name), detail)


def _pipeline(pipeline: Pipeline, history: History, logs: _Logs) -> Iterator[Anomaly]:
    """Of every record one, in the order of the source's partition."""
    made: dict[str, list[tuple[PartitionKey, int, str]]] = defaultdict(list)
    for name, committed in logs.items():
        if name.topic == pipeline.target:
            for offset, value in committed.log.records:
                text, _, maker = value.partition(PIPED)
                made[text].append((name, offset, maker))
    for final in history.finals:
        if final.topic != pipeline.source:
            continue
        source = PartitionKey(final.topic, final.partition)
        where = f"{source} to {pipeline.target}"
        inputs: dict[str, list[int]] = defaultdict(list)  # more than one without idempotence
        for offset, value in final.records:
            inputs[value].append(offset)
        lasts: dict[PartitionKey, int] = {}
        for value, offsets in inputs.items():
            outputs = made.pop(value, [])
            if len(outputs) != len(offsets):
                told = ", ".join(f"{name} {place} by {maker}" for name, place, maker in outputs)
                detail = f"{value!r} at offsets {offsets} was made into {len(outputs)}: {told}"
                yield Anomaly(Kind.NOT_EXACTLY_ONCE, where, detail, (source, offsets[0]))
                continue
            name, place, _ = outputs[0]
            if place < lasts.get(name, -1):
                detail = f"{value!r} of offset {offsets[0]} stands at {name} {place}, too early"
                yield Anomaly(Kind.REORDERED, where, detail, (source, offsets[0]))
            lasts[name] = place
    for value, outputs in made.items():
        detail = f"{value!r} is not in the source, and was made into {len(outputs)}"
        yield Anomaly(Kind.NOT_EXACTLY_ONCE, pipeline.target, detail)


def _resets(step: PipelineStep) -> Iterator[Anomaly]:
    """What a member has come to stays in the log, on whichever leader."""
    if step.step is Step.RESET:
        for topic, partition, offset in step.places:
            source = PartitionKey(topic, partition)
            detail = f"{step.session} at {step.at_s:.3f} s, at {offset}: {step.detail}"
            yield Anomaly(Kind.LOST_POSITION, str(source), detail, (source, offset))


def _tell(transaction: Transaction) -> str:
    told = f"transaction {transaction.number} of {transaction.session}"
    return f"{told} ({transaction.outcome}, {transaction.completed_s:.3f} s)"
