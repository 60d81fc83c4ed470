"""The segments of one partition that may be read, found without looking at all of them.

A partition may have a hundred thousand, and what happens to one of them must not cost more
for the others: a segment is added behind the last one or taken away before the first in
constant time, and found by offset or by time in logarithmic time. Whatever else changes
(a segment that begins below the last one's end, one that is replaced) costs one pass.

    _metas[_first:]     ascending by base offset, then by end offset
    _ends[i]            the greatest end offset of the segments up to i
    _newest_ms[i]       the greatest timestamp of them
    _held_bytes[i]      their bytes, each stretch of offsets counted once
    _gap_bases          the base offsets of the segments in front of which offsets are missing

Where segments overlap, because another leader has rolled elsewhere, the one that begins first
counts for the bytes: it goes first, and of the next one only the rest counts, with the part of
its bytes that this is of its offsets: where in it the rest begins only its index knows.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.planning import finished_segments

DROPPED_MIN = 64  # segments taken from the front before the lists are cut


class TieredSegments:
    """The finished segments of one partition.

    They may change while somebody iterates: what is yielded then is what was there when the
    iteration began, and perhaps segments that were added behind the last one since.
    """

    __slots__ = (
        "_dropped_bytes",
        "_ends",
        "_first",
        "_gap_bases",
        "_held_bytes",
        "_metas",
        "_newest_ms",
    )

    def __init__(self, metas: Iterable[SegmentMeta] = ()) -> None:
        """Take the partition's segments, in any order; those that are not finished are left out."""
        self._set(finished_segments(metas))

    def __len__(self) -> int:
        return len(self._metas) - self._first

    def __iter__(self) -> Iterator[SegmentMeta]:
        return self._from(self._first)

    @property
    def first(self) -> SegmentMeta | None:
        """The segment that begins first, if there is any."""
        return self._metas[self._first] if len(self) else None

    @property
    def last(self) -> SegmentMeta | None:
        """The segment that begins last, if there is any."""
        return self._metas[-1] if len(self) else None

    @property
    def end_offset(self) -> int:
        """The greatest end offset of all, 0 where there is no segment."""
        return self._ends[-1] if len(self) else 0

    def add(self, segment: SegmentMeta) -> None:
        """Add a finished segment, unless it is one of these already."""
        if self._find(segment) is not None:
            return
        last = self.last
        if last is None or (last.base_offset, last.end_offset) <= _order(segment):
            self._append(segment)
        else:
            self._set(sorted((*self, segment), key=_order))

    def remove(self, segment: SegmentMeta) -> None:
        """Take a segment away, if it is one of these."""
        at = self._find(segment)
        if at is None:
            return
        follows = at + 1 == len(self._metas) or self._metas[at + 1].base_offset >= self._ends[at]
        if at == self._first and follows:
            self._drop_first()
        else:
            self._set([meta for meta in self if meta.segment_id != segment.segment_id])

    def locate(self, offset: int) -> SegmentMeta | None:
        """Return the segment to read ``offset`` from, or ``None`` where none holds it.

        Where several do, the one with the greatest base offset: later ones follow it
        without going back.
        """
        at = bisect_right(self._metas, offset, self._first, key=_base_offset) - 1
        while at >= self._first and self._ends[at] > offset:
            if self._metas[at].end_offset > offset:
                return self._metas[at]
            at -= 1
        return None

    def next_after(self, segment: SegmentMeta) -> SegmentMeta | None:
        """Return the segment that continues where ``segment`` ends, or ``None``."""
        return self.locate(segment.end_offset)

    def before(self, base_offset: int) -> SegmentMeta | None:
        """Return the last segment that begins below the offset, or ``None``."""
        at = bisect_left(self._metas, base_offset, self._first, key=_base_offset) - 1
        return self._metas[at] if at >= self._first else None

    def tiered_end(self, log_start_offset: int) -> int:
        """Return the offset up to which every record from the log start on is in the tier."""
        first = self.first
        if first is None or first.base_offset > log_start_offset:
            return log_start_offset
        gap = bisect_right(self._gap_bases, log_start_offset)
        if gap == len(self._gap_bases):
            return max(log_start_offset, self._ends[-1])
        at = bisect_left(self._metas, self._gap_bases[gap], self._first, key=_base_offset)
        return max(log_start_offset, self._ends[at - 1])

    def below(self, offset: int) -> list[SegmentMeta]:
        """Return the segments that lie wholly below the offset."""
        found = []
        for segment in self:
            if segment.base_offset >= offset:
                break
            if segment.end_offset <= offset:
                found.append(segment)
        return found

    def above(self, offset: int) -> Iterator[SegmentMeta]:
        """Yield the segments that hold records at or above the offset."""
        for segment in self._from(bisect_right(self._ends, offset, self._first)):
            if segment.end_offset > offset:
                yield segment

    def since(self, timestamp_ms: int, *, start_offset: int) -> Iterator[SegmentMeta]:
        """Yield the segments that may have records at or after both, from the first on."""
        at = max(
            bisect_left(self._newest_ms, timestamp_ms, self._first),
            bisect_right(self._ends, start_offset, self._first),
        )
        for segment in self._from(at):
            if segment.max_timestamp_ms >= timestamp_ms and segment.end_offset > start_offset:
                yield segment

    def newest(self, *, start_offset: int) -> SegmentMeta | None:
        """Return the segment with the greatest timestamp of those that reach above the offset."""
        if not len(self):
            return None
        at = bisect_left(self._newest_ms, self._newest_ms[-1], self._first)
        found = self._metas[at]
        if found.max_timestamp_ms == self._newest_ms[-1] and found.end_offset > start_offset:
            return found
        left = [
            segment for segment in self.above(start_offset) if segment.end_offset > start_offset
        ]
        return max(left, key=lambda segment: segment.max_timestamp_ms, default=None)

    def bytes_above(self, offset: int) -> int:
        """Return the bytes of the segments that reach above the offset, each stretch once."""
        at = bisect_right(self._ends, offset, self._first)
        if at == len(self._metas):
            return 0
        return self._held_bytes[-1] - (self._held_bytes[at - 1] if at else self._dropped_bytes)

    def parts_above(self, offset: int) -> Iterator[tuple[SegmentMeta, int]]:
        """Yield the segments that reach above the offset, and from which offset each counts."""
        metas, ends = self._metas, self._ends
        at = bisect_right(ends, offset, self._first)
        while at < len(metas):
            segment, end = metas[at], ends[at - 1] if at else 0
            if segment.end_offset > end:
                yield segment, max(segment.base_offset, end)
            at += 1

    def _find(self, segment: SegmentMeta) -> int | None:
        order = _order(segment)
        at = bisect_left(self._metas, order, self._first, key=_order)
        while at < len(self._metas) and _order(self._metas[at]) == order:
            if self._metas[at].segment_id == segment.segment_id:
                return at
            at += 1
        return None

    def _from(self, at: int) -> Iterator[SegmentMeta]:
        # The lists only grow; whatever else changes makes new ones.
        metas = self._metas
        while at < len(metas):
            yield metas[at]
            at += 1

    def _set(self, ordered: list[SegmentMeta]) -> None:
        self._metas: list[SegmentMeta] = []
        self._first = 0
        self._ends = array("q")
        self._newest_ms = array("q")
        self._held_bytes = array("q")
        self._dropped_bytes = 0
        self._gap_bases = array("q")
        for segment in ordered:
            self._append(segment)

    def _append(self, segment: SegmentMeta) -> None:
        has_some = bool(self._metas)
        end = self._ends[-1] if has_some else 0
        if segment.base_offset > end:
            self._gap_bases.append(segment.base_offset)
        held = self._held_bytes[-1] if has_some else 0
        newest_ms = self._newest_ms[-1] if has_some else segment.max_timestamp_ms
        self._metas.append(segment)
        self._ends.append(max(end, segment.end_offset))
        self._newest_ms.append(max(newest_ms, segment.max_timestamp_ms))
        self._held_bytes.append(held + bytes_from(segment, end))

    def _drop_first(self) -> None:
        self._first += 1
        if not len(self):
            self._set([])
        if self._first < max(DROPPED_MIN, len(self)):
            return
        first, self._first = self._first, 0
        self._dropped_bytes = self._held_bytes[first - 1]
        self._metas = self._metas[first:]
        self._ends = self._ends[first:]
        self._newest_ms = self._newest_ms[first:]
        self._held_bytes = self._held_bytes[first:]
        stale = bisect_right(self._gap_bases, self._metas[0].base_offset)
        self._gap_bases = self._gap_bases[stale:]


def bytes_from(segment: SegmentMeta, offset: int) -> int:
    """Return the bytes of the segment's part from the offset on, by its share of the offsets."""
    if offset <= segment.base_offset:
        return segment.size_bytes
    whole = segment.end_offset - segment.base_offset
    return segment.size_bytes * max(0, segment.end_offset - offset) // whole


def _order(segment: SegmentMeta) -> tuple[int, int]:
    return segment.base_offset, segment.end_offset


def _base_offset(segment: SegmentMeta) -> int:
    return segment.base_offset
