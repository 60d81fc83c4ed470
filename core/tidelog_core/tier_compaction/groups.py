"""Groups the tiered segments that one new segment can replace. Pure decisions.

One commit replaces a group by one new segment. It is valid independently of the other groups:
the new segment has the group's offsets and the remaining records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidelog_core.metadata.records import SegmentMeta
from tidelog_core.tier.stretches import Stretch, stretches_of
from tidelog_core.tier_compaction.swap import OLD_SEGMENTS_MAX


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """Segments without a gap between them, and the stretches in which they are read."""

    segments: tuple[SegmentMeta, ...]  # by base offset
    stretches: tuple[Stretch, ...]

    @property
    def base_offset(self) -> int:
        """The first offset."""
        return self.segments[0].base_offset

    @property
    def end_offset(self) -> int:
        """The end offset, exclusive."""
        return max(segment.end_offset for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """The bytes of its segments."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def leader_epochs(self) -> tuple[tuple[int, int], ...]:
        """The leader epochs of the offsets that are read, each with its first offset, ascending."""
        found: list[tuple[int, int]] = []
        for stretch in self.stretches:
            for epoch, start in stretch.segment.leader_epochs:
                at = max(start, stretch.start_offset)
                if at >= stretch.end_offset or (found and found[-1][0] >= epoch):
                    continue
                if found and found[-1][1] == at:
                    found.pop()  # An epoch that ended before the stretch begins.
                found.append((epoch, at))
        return tuple(found)

    def may_join(self, following: SegmentGroup) -> bool:
        """Whether both can be replaced by one segment in one commit, if that has room."""
        return (
            self.end_offset == following.base_offset
            and len(self.segments) + len(following.segments) <= OLD_SEGMENTS_MAX
        )

    def joined(self, following: SegmentGroup) -> SegmentGroup:
        """Return both as one."""
        return SegmentGroup(
            self.segments + following.segments, self.stretches + following.stretches
        )


def group_segments(finished: Sequence[SegmentMeta]) -> Iterator[SegmentGroup]:
    """Yield the smallest groups that can be replaced, by offset.

    Those are single segments, and segments that overlap. Overlapping segments with offsets that
    are not read cannot be replaced, and are in no group.
    """
    cluster: list[SegmentMeta] = []
    end_offset = 0
    for segment in sorted(finished, key=lambda meta: (meta.base_offset, meta.end_offset)):
        if cluster and segment.base_offset >= end_offset:
            yield from _group(cluster)
            cluster = []
        end_offset = max(end_offset, segment.end_offset) if cluster else segment.end_offset
        cluster.append(segment)
    yield from _group(cluster)


def _group(cluster: Sequence[SegmentMeta]) -> Iterator[SegmentGroup]:
    stretches = stretches_of(cluster)
    if not stretches:
        return
    group = SegmentGroup(tuple(cluster), stretches)
    edges = [stretch.start_offset for stretch in stretches] + [group.end_offset]
    ends = [group.base_offset] + [stretch.end_offset for stretch in stretches]
    if edges == ends and len(cluster) <= OLD_SEGMENTS_MAX:
        yield group
