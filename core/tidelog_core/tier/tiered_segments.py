"""The finished segments of one partition, found without iterating over all of them.

A partition may have a hundred thousand segments, and a change of one must not cost more because
of the others. A segment is added behind the last one or removed before the first in constant time,
and found by offset or by time in logarithmic time. All other changes (a segment that begins below
the last one's end, a replaced one) cost one pass.

    _packed[_first:]    the segments, in the order of ``planning.place_in_reading``
    _bases[i]           the base offset of a segment
    _ends[i]            the greatest end offset of the segments up to i
    _newest_ms[i]       the greatest timestamp of them
    _held_bytes[i]      their bytes, each stretch of offsets counted once
    _gap_bases          the base offsets of the segments in front of which offsets are missing

Segments overlap if a new leader rolled at other offsets. For the bytes, the one that begins first
counts in full, and the next one counts for the rest of its offsets, in proportion: the position of
the rest is known only to its index. Of those that begin together, the newest leader's is read and
counts: it is the first in the order.

Each takes a quarter of a kilobyte, and becomes a ``SegmentMeta`` on access. Those that are read
often are cached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from uuid import UUID

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.packed_segments import (
    pack_segment,
    unpack_extent,
    unpack_id,
    unpack_place,
    unpack_segment,
)
from tidelog_core.tier.planning import finished_segments

DROPPED_MIN = 64  # segments taken from the front before the lists are cut
UNPACKED_COUNT_MAX = 64  # segments that were looked up and stay unpacked
_NOBODY = UUID(int=0)  # the topic while there is no segment


class TieredSegments:
    """The finished segments of one partition.

    They may change during an iteration. It then yields the segments from when it began, and
    perhaps segments that were added behind the last one since.
    """

    __slots__ = (
        "_bases",
        "_dropped_bytes",
        "_ends",
        "_first",
        "_gap_bases",
        "_held_bytes",
        "_newest_ms",
        "_packed",
        "_partition",
        "_topic_id",
        "_unpacked",
    )

    def __init__(self, metas: Iterable[SegmentMeta] = ()) -> None:
        """Take the partition's segments, in any order; unfinished ones are left out."""
        self._topic_id, self._partition = _NOBODY, 0
        self._unpacked: dict[bytes, SegmentMeta] = {}
        self._set(())
        self.extend(metas)

    def __len__(self) -> int:
        return len(self._packed) - self._first

    def __iter__(self) -> Iterator[SegmentMeta]:
        return self._from(self._first)

    def __contains__(self, segment: SegmentMeta) -> bool:
        """Whether the segment is one of these, in any state."""
        return self._find(segment) is not None

    @property
    def first(self) -> SegmentMeta | None:
        """The segment that begins first, ``None`` if there is none."""
        return self._at(self._first) if len(self) else None

    @property
    def last(self) -> SegmentMeta | None:
        """The segment that begins last, ``None`` if there is none."""
        return self._at(-1) if len(self) else None

    @property
    def end_offset(self) -> int:
        """The greatest end offset of all, 0 if there is no segment."""
        return self._ends[-1] if len(self) else 0

    def add(self, segment: SegmentMeta) -> None:
        """Add a finished segment, unless it is one of these already."""
        self.extend((segment,))

    def extend(self, metas: Iterable[SegmentMeta]) -> None:
        """Add the finished ones of the segments that are not here yet."""
        late: list[bytes] = []
        for segment in finished_segments(metas):
            may_be_here = len(self) > 0 and segment.base_offset <= self._bases[-1]
            if may_be_here and segment in self:
                continue
            self._topic_id, self._partition = segment.topic_id, segment.partition
            packed = pack_segment(segment)
            if may_be_here and unpack_place(packed) < unpack_place(self._packed[-1]):
                late.append(packed)
            else:
                self._append(packed)
        if late:
            self._set(sorted((*self._packed[self._first :], *late), key=unpack_place))

    def remove(self, segment: SegmentMeta) -> None:
        """Take a segment away, if it is one of these."""
        at = self._find(segment)
        if at is None:
            return
        follows = at + 1 == len(self._packed) or self._bases[at + 1] >= self._ends[at]
        if at == self._first and follows:
            self._drop_first()
        else:
            self._set((*self._packed[self._first : at], *self._packed[at + 1 :]))

    def without(self, others: TieredSegments) -> list[SegmentMeta]:
        """Return the segments that are not in ``others``."""
        differing = set(self._packed[self._first :]).difference(others._packed)
        return [segment for segment in map(self._unpack, differing) if segment not in others]

    def locate(self, offset: int) -> SegmentMeta | None:
        """Return the segment to read ``offset`` from, or ``None`` if no segment has it.

        If several have it, the one with the greatest base offset: later ones follow it
        without going back. Of those that begin together, the first in the order.
        """
        found = None
        at = bisect_right(self._bases, offset, self._first) - 1
        while at >= self._first and self._ends[at] > offset:
            if found is not None and self._bases[at] != self._bases[found]:
                break
            if _end_offset(self._packed[at]) > offset:
                found = at
            at -= 1
        return None if found is None else self._at(found)

    def next_after(self, segment: SegmentMeta) -> SegmentMeta | None:
        """Return the segment that continues where ``segment`` ends, or ``None``."""
        return self.locate(segment.end_offset)

    def before(self, base_offset: int) -> SegmentMeta | None:
        """Return the segment that begins last below the offset, or ``None``."""
        at = bisect_left(self._bases, base_offset, self._first) - 1
        if at < self._first:
            return None
        return self._at(bisect_left(self._bases, self._bases[at], self._first))

    def ending_at(self, end_offset: int) -> SegmentMeta | None:
        """Return the shortest segment that ends at the offset, or ``None``."""
        found = None
        at = bisect_left(self._ends, end_offset, self._first)
        while at < len(self._bases) and self._bases[at] < end_offset:
            is_later = found is None or self._bases[at] > self._bases[found]
            if is_later and _end_offset(self._packed[at]) == end_offset:
                found = at
            at += 1
        return None if found is None else self._at(found)

    def tiered_end(self, log_start_offset: int) -> int:
        """Return the offset up to which every record from the log start on is in the tier."""
        if not len(self) or self._bases[self._first] > log_start_offset:
            return log_start_offset
        gap = bisect_right(self._gap_bases, log_start_offset)
        if gap == len(self._gap_bases):
            return max(log_start_offset, self._ends[-1])
        at = bisect_left(self._bases, self._gap_bases[gap], self._first)
        return max(log_start_offset, self._ends[at - 1])

    def below(self, offset: int) -> list[SegmentMeta]:
        """Return the segments wholly below the offset."""
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
        """Return the segment with the greatest timestamp of those that end above the offset."""
        if not len(self):
            return None
        at = bisect_left(self._newest_ms, self._newest_ms[-1], self._first)
        found = self._at(at)
        if found.max_timestamp_ms == self._newest_ms[-1] and found.end_offset > start_offset:
            return found
        return max(
            self.above(start_offset), key=lambda segment: segment.max_timestamp_ms, default=None
        )

    def bytes_above(self, offset: int) -> int:
        """Return the bytes of the segments that reach above the offset, each stretch once."""
        at = bisect_right(self._ends, offset, self._first)
        if at == len(self._packed):
            return 0
        return self._held_bytes[-1] - (self._held_bytes[at - 1] if at else self._dropped_bytes)

    def parts_above(self, offset: int) -> Iterator[tuple[SegmentMeta, int]]:
        """Yield the segments that reach above the offset, and from which offset each counts."""
        packed, ends = self._packed, self._ends
        at = bisect_right(ends, offset, self._first)
        while at < len(packed):
            end = ends[at - 1] if at else 0
            if _end_offset(packed[at]) > end:
                segment = self._unpack(packed[at])
                yield segment, max(segment.base_offset, end)
            at += 1

    def _at(self, at: int) -> SegmentMeta:
        """Return a segment, cached because the caller is likely to need it again."""
        packed = self._packed[at]
        found = self._unpacked.get(packed)
        if found is None:
            if len(self._unpacked) == UNPACKED_COUNT_MAX:
                self._unpacked.clear()
            found = self._unpacked[packed] = self._unpack(packed)
        return found

    def _unpack(self, packed: bytes) -> SegmentMeta:
        return unpack_segment(packed, self._topic_id, self._partition)

    def _find(self, segment: SegmentMeta) -> int | None:
        base_offset = segment.base_offset
        at = bisect_left(self._bases, base_offset, self._first)
        while at < len(self._bases) and self._bases[at] == base_offset:
            if unpack_id(self._packed[at]) == segment.segment_id.bytes:
                return at
            at += 1
        return None

    def _from(self, at: int) -> Iterator[SegmentMeta]:
        # The lists only grow; every other change makes new ones.
        packed = self._packed
        while at < len(packed):
            yield self._unpack(packed[at])
            at += 1

    def _set(self, ordered: Iterable[bytes]) -> None:
        self._packed: list[bytes] = []
        self._first = 0
        self._bases = array("q")
        self._ends = array("q")
        self._newest_ms = array("q")
        self._held_bytes = array("q")
        self._dropped_bytes = 0
        self._gap_bases = array("q")
        for packed in ordered:
            self._append(packed)

    def _append(self, packed: bytes) -> None:
        base_offset, end_offset, size_bytes, max_timestamp_ms = unpack_extent(packed)
        has_some = bool(self._packed)
        end = self._ends[-1] if has_some else 0
        if base_offset > end:
            self._gap_bases.append(base_offset)
        held = self._held_bytes[-1] if has_some else 0
        newest_ms = self._newest_ms[-1] if has_some else max_timestamp_ms
        self._packed.append(packed)
        self._bases.append(base_offset)
        self._ends.append(max(end, end_offset))
        self._newest_ms.append(max(newest_ms, max_timestamp_ms))
        self._held_bytes.append(held + _bytes_from(base_offset, end_offset, size_bytes, end))

    def _drop_first(self) -> None:
        self._first += 1
        if not len(self):
            self._set(())
        if self._first < max(DROPPED_MIN, len(self)):
            return
        first, self._first = self._first, 0
        self._dropped_bytes = self._held_bytes[first - 1]
        self._packed = self._packed[first:]
        self._bases = self._bases[first:]
        self._ends = self._ends[first:]
        self._newest_ms = self._newest_ms[first:]
        self._held_bytes = self._held_bytes[first:]
        stale = bisect_right(self._gap_bases, self._bases[0])
        self._gap_bases = self._gap_bases[stale:]


def bytes_from(segment: SegmentMeta, offset: int) -> int:
    """Return the bytes of the segment's part from the offset on, by its share of the offsets."""
    return _bytes_from(segment.base_offset, segment.end_offset, segment.size_bytes, offset)


def _bytes_from(base_offset: int, end_offset: int, size_bytes: int, offset: int) -> int:
    if offset <= base_offset:
        return size_bytes
    return size_bytes * max(0, end_offset - offset) // (end_offset - base_offset)


def _end_offset(packed: bytes) -> int:
    return unpack_extent(packed)[1]
