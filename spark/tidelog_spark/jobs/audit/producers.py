"""Checks the sequences and epochs of every producer, within and across segments.

A log is represented by spans, one row each: first a span for every batch of a producer;
after a check at most two per producer: its markers before any data, while earlier
batches decide about that data, and the rest. Spans of one segment and of the segments
before it are concatenated and checked in the same way, so a history is checked segment by
segment on many machines and then joined in order, without reading a batch again. All
operations are on whole columns.

The rules are those of ``tidelog_core.log.producers.producer_state``: a producer's epoch never
decreases, a new epoch starts at sequence 0, and within an epoch every batch continues the
sequence of the one before it; sequences wrap to 0 after 2**31 - 1. The first batch of a
producer may have any sequence, and so may the first after ``producer.id.expiration.ms`` of
silence, since its state had expired. Compaction removes batches: if it is allowed,
sequences may skip forward, but never go back.
Source: KIP-98, KIP-360, KIP-890.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tidelog_core.records.header import SEQUENCE_MASK

EXPIRATION_MS = 86_400_000  # Kafka's default of producer.id.expiration.ms
# Sequences wrap around: less than half of the range ahead is forward, the rest is back.
_HALF = (SEQUENCE_MASK + 1) // 2
NO_SEQUENCE = -1
INHERITED = -2

SPAN = np.dtype(
    [
        ("producer_id", "<i8"),
        ("first_epoch", "<i2"),
        ("first_sequence", "<i4"),  # -1: it starts with a marker
        ("first_offset", "<i8"),
        ("first_ms", "<i8"),
        ("last_epoch", "<i2"),
        # -1: none in the last epoch; -2: only markers, so the previous span's last sequence
        # applies if its epoch is the same.
        ("last_sequence", "<i4"),
        ("last_offset", "<i8"),  # base offset of the last batch
        ("last_ms", "<i8"),
    ]
)
Spans = NDArray[np.void]


@dataclass(frozen=True, slots=True)
class SequenceRules:
    """The allowed irregularities."""

    may_skip: bool = False  # compaction may have removed batches
    expiration_ms: int = EXPIRATION_MS


@dataclass(frozen=True, slots=True)
class BrokenSequence:
    """A batch that does not continue its producer's sequence."""

    offset: int  # of the batch
    problem: str


def no_spans() -> Spans:
    """Return an empty set of spans."""
    return np.empty(0, SPAN)


def follow(
    spans: Spans, rules: SequenceRules, *, problem_max: int
) -> tuple[Spans, list[BrokenSequence], int]:
    """Check spans that are in log order.

    Returns the reduced spans, the first ``problem_max`` problems by offset, and the total
    number of problems.
    """
    if not len(spans):
        return spans, [], 0
    spans = spans[np.argsort(spans["producer_id"], kind="stable")]
    places = np.arange(len(spans))
    begins = np.ones(len(spans), np.bool_)
    begins[1:] = spans["producer_id"][1:] != spans["producer_id"][:-1]
    first = np.maximum.accumulate(np.where(begins, places, 0))  # of the same producer
    data = _last_data(spans, places, first)
    problems, count = _problems(spans, rules, begins, first, data, problem_max=problem_max)
    return _reduced(spans, begins, data), problems, count


def _last_data(
    spans: Spans, places: NDArray[np.int64], first: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return for each row the producer's last row with data, at or before it; or -1."""
    found = np.maximum.accumulate(np.where(spans["last_sequence"] == INHERITED, -1, places))
    return np.where(found >= first, found, -1)


def _problems(
    spans: Spans,
    rules: SequenceRules,
    begins: NDArray[np.bool_],
    first: NDArray[np.int64],
    data: NDArray[np.int64],
    *,
    problem_max: int,
) -> tuple[list[BrokenSequence], int]:
    rows = np.flatnonzero(~begins)
    before = rows - 1
    silence_ms = spans["first_ms"][rows] - spans["last_ms"][before]
    is_known = silence_ms < rules.expiration_ms
    epoch, epoch_before = spans["first_epoch"][rows], spans["last_epoch"][before]
    goes_back = is_known & (epoch < epoch_before)

    data_before = data[before]
    same_epoch = (data_before >= 0) & (spans["last_epoch"][data_before] == epoch)
    last = np.where(same_epoch, spans["last_sequence"][data_before], NO_SEQUENCE).astype(np.int64)
    expected = (last + 1) & SEQUENCE_MASK
    # If an epoch started with a marker, the batches before the marker are unknown.
    is_new = (data_before >= 0) | (spans["first_epoch"][first[rows]] < epoch)
    ahead = (spans["first_sequence"][rows] - expected) & SEQUENCE_MASK
    is_off = (ahead >= _HALF) if rules.may_skip else (ahead != 0)
    has_sequence = spans["first_sequence"][rows] != NO_SEQUENCE
    breaks = is_known & ~goes_back & has_sequence & is_new & is_off

    found = np.flatnonzero(goes_back | breaks)
    found = found[np.argsort(spans["first_offset"][rows[found]], kind="stable")]
    reported = []
    for at in found[:problem_max].tolist():
        row = spans[rows[at]]
        who = f"producer {row['producer_id']}"
        if goes_back[at]:
            text = f"{who} goes back from epoch {epoch_before[at]} to {epoch[at]}"
        else:
            what = "repeats" if ahead[at] >= _HALF else "skips"
            text = (
                f"{who} {what} sequences in epoch {epoch[at]}: {row['first_sequence']} came"
                f" instead of {expected[at]}"
            )
        before_it = f", after the batch at {spans['last_offset'][before[at]]}"
        reported.append(BrokenSequence(int(row["first_offset"]), text + before_it))
    return reported, len(found)


def _reduced(spans: Spans, begins: NDArray[np.bool_], data: NDArray[np.int64]) -> Spans:
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(spans)) - 1  # inclusive
    # Start of a producer's data, if any: its first row with data at or before it.
    has_data = data >= 0
    turns = np.flatnonzero(has_data & (begins | ~np.roll(has_data, 1)))
    owner = np.searchsorted(ends, turns)
    turn_of = ends + 1
    turn_of[owner] = turns
    epochs = spans["first_epoch"][np.minimum(turn_of, ends)]
    # Only markers in the data's own epoch leave the expected sequence open.
    is_open = (spans["first_epoch"][starts] == epochs) & (
        spans["last_epoch"][np.maximum(turn_of - 1, starts)] == epochs
    )
    has_head = (turn_of > starts) & (is_open | (turn_of > ends))
    heads = _joined(spans, starts[has_head], turn_of[has_head] - 1)
    has_rest = turn_of <= ends
    rest = _joined(spans, np.where(has_head, turn_of, starts)[has_rest], ends[has_rest])
    tail = data[ends[has_rest]]
    is_same = spans["last_epoch"][tail] == rest["last_epoch"]
    rest["last_sequence"] = np.where(is_same, spans["last_sequence"][tail], NO_SEQUENCE)
    # Heads go first: the following sort by producer keeps their order.
    return np.concatenate((heads, rest))


def _joined(spans: Spans, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Spans:
    """Merge each run of rows into one span; ``ends`` are inclusive."""
    joined = spans[starts]
    for name in ("last_epoch", "last_sequence", "last_offset", "last_ms"):
        joined[name] = spans[name][ends]
    return joined
