"""Finds missing offsets and producers in a segment's batch headers.

Records are not decoded. Headers are read by the compiled scan that reads use, some rows
at a time, and all other work is done on whole columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tidelog.arrow.native import kernels
from tidelog.arrow.native.kernels import Bytes, Longs
from tidelog_core.records.batch import Buffer
from tidelog_core.records.header import CONTROL_BIT, SEQUENCE_MASK

from tidelog_spark.jobs.audit.producers import (
    INHERITED,
    NO_SEQUENCE,
    SPAN,
    BrokenSequence,
    SequenceRules,
    Spans,
    follow,
    no_spans,
)

ROWS_PER_SCAN = 64 * 1024
_PRODUCER_EPOCH_POSITION = 51
_BASE_SEQUENCE_POSITION = 53


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets ``[start_offset, end_offset)`` in no batch, or missing within a batch."""

    start_offset: int
    end_offset: int
    is_within_batch: bool  # then the range is the batch's, and ``missing`` of its records are gone
    missing_count: int


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """The findings in one segment."""

    batch_count: int
    record_count: int
    gaps: tuple[Gap, ...]  # the first ones
    gap_count: int
    spans: tuple[Spans, ...]  # of every stretch, reduced
    broken: tuple[BrokenSequence, ...]  # the first ones
    broken_count: int


def scan_segment(
    log: Buffer,
    *,
    base_offset: int,
    end_offset: int,
    stretches: Sequence[tuple[int, int]],
    rules: SequenceRules,
    problem_max: int,
) -> SegmentScan:
    """Scan the headers of a whole segment. Its bytes must have been verified.

    ``stretches`` are the offsets ``[start, end)`` that this segment is read for; producers
    are checked within each.
    """
    data = np.frombuffer(log, dtype=np.uint8)
    pieces = list(_scan(data))
    table = np.concatenate(pieces) if pieces else np.empty((0, kernels.COLUMN_COUNT), np.int64)
    gaps, gap_count = _gaps(table, base_offset, end_offset, problem_max)
    spans, broken, broken_count = [], [], 0
    rows = _spans(data, table)
    for start, end in stretches:
        within = (rows["last_offset"] >= start) & (rows["first_offset"] < end)
        joined, problems, count = follow(rows[within], rules, problem_max=problem_max)
        spans.append(joined)
        broken += problems
        broken_count += count
    return SegmentScan(
        batch_count=len(table),
        record_count=int(table[:, kernels.RECORD_COUNT].sum()),
        gaps=tuple(gaps),
        gap_count=gap_count,
        spans=tuple(spans),
        broken=tuple(broken[:problem_max]),
        broken_count=broken_count,
    )


def _scan(data: Bytes) -> Iterator[Longs]:
    """Yield tables of batches, some rows each; positions are relative to ``data``."""
    position = 0
    table = np.empty((ROWS_PER_SCAN, kernels.COLUMN_COUNT), np.int64)
    while position < len(data):
        count, consumed, problem = kernels.scan_batches(data[position:], table)
        assert not problem, "the segment was verified"
        assert count, "the segment was verified"
        found = table[:count].copy()
        found[:, kernels.POSITION] += position
        yield found
        position += consumed


def _gaps(
    table: Longs, base_offset: int, end_offset: int, problem_max: int
) -> tuple[list[Gap], int]:
    bases, lasts = table[:, kernels.BASE_OFFSET], table[:, kernels.LAST_OFFSET]
    ends = np.concatenate(([base_offset], lasts + 1))
    begins = np.concatenate((bases, [end_offset]))
    between = np.flatnonzero(begins > ends)
    missing = lasts + 1 - bases - table[:, kernels.RECORD_COUNT]
    within = np.flatnonzero(missing)
    gaps = [
        Gap(int(ends[at]), int(begins[at]), False, int(begins[at] - ends[at]))
        for at in between[:problem_max]
    ]
    gaps += [
        Gap(int(bases[at]), int(lasts[at]) + 1, True, int(missing[at]))
        for at in within[:problem_max]
    ]
    gaps.sort(key=lambda gap: gap.start_offset)
    return gaps[:problem_max], len(between) + len(within)


def _spans(data: Bytes, table: Longs) -> Spans:
    """Return a span for every batch of a producer."""
    is_control = table[:, kernels.ATTRIBUTES] & CONTROL_BIT != 0
    # A marker whose transaction was compacted away is an empty batch, without information.
    counts = (table[:, kernels.PRODUCER_ID] >= 0) & (
        ~is_control | (table[:, kernels.RECORD_COUNT] > 0)
    )
    table, is_control = table[counts], is_control[counts]
    if not len(table):
        return no_spans()
    positions = table[:, kernels.POSITION]
    epochs = _big_endian(data, positions + _PRODUCER_EPOCH_POSITION, ">i2")
    sequences = _big_endian(data, positions + _BASE_SEQUENCE_POSITION, ">i4")
    deltas = table[:, kernels.LAST_OFFSET] - table[:, kernels.BASE_OFFSET]
    last_sequences = (sequences.astype(np.int64) + deltas) & SEQUENCE_MASK
    spans = np.empty(len(table), SPAN)
    spans["producer_id"] = table[:, kernels.PRODUCER_ID]
    spans["first_epoch"] = spans["last_epoch"] = epochs
    spans["first_sequence"] = np.where(is_control, NO_SEQUENCE, sequences)
    spans["last_sequence"] = np.where(is_control, INHERITED, last_sequences)
    spans["first_offset"] = spans["last_offset"] = table[:, kernels.BASE_OFFSET]
    spans["first_ms"] = spans["last_ms"] = table[:, kernels.MAX_TIMESTAMP]
    return spans


def _big_endian(data: Bytes, positions: Longs, dtype: str) -> NDArray[np.integer]:
    """Return the numbers at the positions."""
    size = np.dtype(dtype).itemsize
    found: NDArray[np.integer] = data[positions[:, None] + np.arange(size)].view(dtype)
    return found.reshape(len(positions))
