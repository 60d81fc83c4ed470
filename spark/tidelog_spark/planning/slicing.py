"""Cuts objects into the ranges of bytes that tasks read. Batches are never divided."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from tidelog_core.model import INT64_MAX

from tidelog_spark.reading.splits import Slice
from tidelog_spark.stores.partition_log import LogTail, SegmentIndex, slice_index


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """The batches of which rows are selected by time, and the times; -1: there is none."""

    from_offset: int = -1  # in the batch
    from_timestamp_ms: int | None = None
    until_offset: int = -1
    until_timestamp_ms: int | None = None

    def is_in(self, start_offset: int, end_offset: int) -> bool:
        """Return whether one of the batches is in the range."""
        offsets = (self.from_offset, self.until_offset)
        return any(start_offset <= offset < end_offset for offset in offsets)


def cut_slices(
    key: str, index: SegmentIndex, offsets: tuple[int, int], times: TimeLimits, size_bytes: int
) -> list[Slice]:
    """Return slices of about the size for ``[start, end)``; batches selected by time singly."""
    start, end = offsets
    first = int(np.searchsorted(index.last_offsets, start))
    last = int(np.searchsorted(index.base_offsets, end))
    from_batch = _batch_of(index, times.from_offset, offsets)
    until_batch = _batch_of(index, times.until_offset, offsets)
    slices = []
    for begin, stop in _cuts(index, first, last, {from_batch, until_batch}, size_bytes):
        position = int(index.positions[begin])
        slices.append(
            Slice(
                key,
                position,
                int(index.positions[stop - 1] + index.sizes[stop - 1]) - position,
                max(int(index.base_offsets[begin]), start),
                min(int(index.last_offsets[stop - 1]) + 1, end),
                times.from_timestamp_ms if begin == from_batch else None,
                times.until_timestamp_ms if begin == until_batch else None,
            )
        )
    return slices


def tail_slices(
    tail: LogTail, start_offset: int, end_offset: int, times: TimeLimits
) -> list[Slice]:
    """Return the tail's slices in ``[start_offset, end_offset)`` above the tier.

    They are small, so they are read whole, with their CRC, unless rows are selected by time.
    """
    found: list[Slice] = []
    for one in tail.between(start_offset, end_offset):
        start = max(one.base_offset, start_offset, tail.view.start_offset)
        end = min(one.end_offset, end_offset)
        key = tail.key_of(one)
        if not times.is_in(start, end):
            base_offset = one.base_offset if one.is_reference else None
            found.append(
                Slice(
                    key,
                    one.position,
                    one.size_bytes,
                    start,
                    end,
                    crc32c=one.crc32c,
                    base_offset=base_offset,
                )
            )
            continue
        index = slice_index(one)
        parts = cut_slices(key, index, (start, end), times, INT64_MAX)
        found += [_placed(part, index) for part in parts] if one.is_reference else parts
    return found


def _placed(part: Slice, index: SegmentIndex) -> Slice:
    """Return the part with the offset of its first batch."""
    batch = int(np.searchsorted(index.positions, part.position))
    return replace(part, base_offset=int(index.base_offsets[batch]))


def _batch_of(index: SegmentIndex, offset: int, offsets: tuple[int, int]) -> int:
    """Return the batch that contains the offset, -1 for an offset outside the range."""
    if not offsets[0] <= offset < offsets[1]:
        return -1
    return int(np.searchsorted(index.last_offsets, offset))


def _cuts(
    index: SegmentIndex, first: int, last: int, alone: Collection[int], size_bytes: int
) -> list[tuple[int, int]]:
    """Return ranges ``[begin, end)`` of batches of about the size; those in ``alone`` singly.

    Batches are never divided. Ranges have about the same size, so the last is not tiny.
    """
    edges = {first, last}
    edges |= {edge for batch in alone if first <= batch < last for edge in (batch, batch + 1)}
    ordered = sorted(edges)
    runs: list[tuple[int, int]] = []
    for begin, end in pairwise(ordered):
        start = int(index.positions[begin])
        total = int(index.positions[end - 1] + index.sizes[end - 1]) - start
        count = min(-(-total // size_bytes), end - begin)
        ideal = start + np.arange(1, count) * total // count
        inner = begin + np.searchsorted(index.positions[begin:end], ideal)
        runs += pairwise([begin, *dict.fromkeys(inner.tolist()), end])
    return [(begin, end) for begin, end in runs if begin < end]
