"""A run in words: what was done, what was done to it, how long it was away, what is wrong."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.chaos.checker import Anomaly
from tests.chaos.history import History, Outcome, PartitionKey, Poll, Write
from tests.chaos.pipeline_steps import steps_about, tell_steps

ANOMALIES_SHOWN_MAX = 40
PARTITIONS_SHOWN_MAX = 4  # whose steps of the pipeline are told
NOTES_SHOWN_MAX = 12


def longest_gaps(writes: Sequence[Write]) -> dict[PartitionKey, tuple[float, float]]:
    """Return each partition's longest time without an acknowledgement, and when it began.

    Counted from the first write asked for to the last one acknowledged, over all sessions.
    """
    done: dict[PartitionKey, list[float]] = defaultdict(list)
    asked: dict[PartitionKey, float] = {}
    for write in writes:
        name = PartitionKey(write.topic, write.partition)
        asked[name] = min(asked.get(name, write.invoked_s), write.invoked_s)
        if write.outcome is Outcome.OK and write.acks != 0:
            done[name].append(write.completed_s)
    longest: dict[PartitionKey, tuple[float, float]] = {}
    for name, first_s in asked.items():
        times = [first_s, *sorted(done[name])]
        gaps = [(after - before, before) for before, after in itertools.pairwise(times)]
        longest[name] = max(gaps, default=(float("inf"), first_s))
    return longest


def summarize(
    history: History,
    anomalies: Sequence[Anomaly],
    *,
    title: str,
    recovered: Mapping[str, float | None],
) -> str:
    """Return the report. ``recovered`` has the seconds after which a partition took writes."""
    lines = [title, ""]
    lines += _operations(history)
    lines += ["", f"faults ({len(history.faults)})"]
    for fault in sorted(history.faults, key=lambda fault: fault.started_s):
        span = f"{fault.started_s:7.2f} to {fault.ended_s:7.2f} s"
        lines.append(f"  {span}  {fault.kind:<14}{fault.target}  {fault.detail}".rstrip())
    lines += ["", "longest time without an acknowledged write"]
    for name, (gap_s, from_s) in sorted(longest_gaps(history.writes).items()):
        told = _recovery(str(name), recovered)
        lines.append(
            f"  {name!s:<16}{gap_s:6.2f} s from {from_s:7.2f} s; {told} when the faults had ended"
        )
    lines += _notes(history)
    lines += ["", f"anomalies: {len(anomalies)}"]
    for kind, count in Counter(anomaly.kind for anomaly in anomalies).most_common():
        lines.append(f"  {count:>6}  {kind}")
    shown: Counter[str] = Counter()
    for anomaly in anomalies:
        shown[anomaly.kind] += 1
        if shown[anomaly.kind] <= ANOMALIES_SHOWN_MAX // 4:
            lines.append(f"  - {anomaly}")
    lines += _steps(history, anomalies)
    return "\n".join(lines)


def _steps(history: History, anomalies: Sequence[Anomaly]) -> list[str]:
    """Tell how the pipeline came to the first anomaly of each partition."""
    firsts: dict[PartitionKey, int] = {}
    for anomaly in anomalies:
        if anomaly.inputs is not None:
            firsts.setdefault(*anomaly.inputs)
    lines = []
    for source, offset in list(firsts.items())[:PARTITIONS_SHOWN_MAX]:
        lines += ["", f"steps of the pipeline about {source} {offset}"]
        steps = steps_about(history.steps, source, offset)
        lines += [f"  {line}" for line in tell_steps(steps, source)]
    return lines


def _recovery(name: str, recovered: Mapping[str, float | None]) -> str:
    if name not in recovered:
        return "was not tried"  # It was made later, or the run ended first.
    after = recovered[name]
    return f"took writes again {'never' if after is None else f'after {after:.2f} s'}"


def _operations(history: History) -> list[str]:
    lines = ["operations"]
    by_kind: dict[str, Counter[Outcome]] = defaultdict(Counter)
    for write in history.writes:
        acks = "all" if write.acks == -1 else str(write.acks)
        kind = "idempotent" if write.is_idempotent else f"plain acks={acks}"
        by_kind[kind][write.outcome] += 1
    for kind, counts in sorted(by_kind.items()):
        told = ", ".join(f"{counts[outcome]:,} {outcome}" for outcome in Outcome)
        lines.append(f"  writes {kind:<16}{told}")
    polls = [event for event in history.readings if isinstance(event, Poll)]
    for group in sorted({poll.group for poll in polls}):
        mine = [poll for poll in polls if poll.group == group]
        records = sum(len(poll.records) for poll in mine)
        lines.append(f"  polls {group or 'assigned':<17}{len(mine):,} with {records:,} records")
    ended = Counter(transaction.outcome for transaction in history.transactions)
    told = ", ".join(f"{ended[outcome]:,} {outcome}" for outcome in Outcome)
    lines.append(f"  transactions           {told}")
    if history.shared:
        records = sum(len(one.records) for one in history.shared)
        settled = Counter((one.is_accepted, one.outcome) for one in history.settled)
        told = f"{settled[True, Outcome.OK]:,} accepted, {settled[False, Outcome.OK]:,} released"
        lines.append(f"  share group            {records:,} deliveries, ranges: {told}")
    committed = sum(len(log.records) for log in history.committed_logs)
    count = len(history.committed_logs)
    lines.append(f"  committed logs         {count} with {committed:,} records")
    final = sum(len(log.records) for log in history.finals)
    if history.resent:
        lines.append(f"  values sent again under another producer epoch: {len(history.resent):,}")
    lines.append(f"  final logs             {len(history.finals)} with {final:,} records")
    return lines


def _notes(history: History) -> list[str]:
    notes = sorted(history.notes, key=lambda note: note.at_s)
    lines = ["", f"notes ({len(notes)})"]
    lines += [f"  {n.at_s:7.2f} s  {n.about}: {n.text[:160]}" for n in notes[:NOTES_SHOWN_MAX]]
    if len(notes) > NOTES_SHOWN_MAX:
        lines.append(f"  and {len(notes) - NOTES_SHOWN_MAX} more")
    return lines
