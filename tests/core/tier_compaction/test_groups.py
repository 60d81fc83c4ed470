"""Which segments become one."""

from __future__ import annotations

from uuid import UUID, uuid4

from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.tier_compaction.groups import SegmentGroup, group_segments
from tidelog_core.tier_compaction.swap import OLD_SEGMENTS_MAX


def segment(
    base: int,
    end: int,
    *,
    epoch: int = 0,
    epochs: tuple[tuple[int, int], ...] | None = None,
    size: int = 100,
) -> SegmentMeta:
    return SegmentMeta(
        topic_id=UUID(int=1),
        partition=0,
        base_offset=base,
        end_offset=end,
        leader_epoch=epoch,
        segment_id=uuid4(),
        state=SegmentState.COPY_FINISHED,
        size_bytes=size,
        index_size_bytes=1,
        max_timestamp_ms=0,
        leader_epochs=((epoch, base),) if epochs is None else epochs,
        chained_hash="",
        created_ms=0,
    )


def ranges(segments: list[SegmentMeta]) -> list[tuple[int, int]]:
    return [(group.base_offset, group.end_offset) for group in group_segments(segments)]


def joined(segments: list[SegmentMeta]) -> list[SegmentGroup]:
    """Return the groups that are left where all that may be joined is."""
    groups: list[SegmentGroup] = []
    for group in group_segments(segments):
        if groups and groups[-1].may_join(group):
            groups[-1] = groups[-1].joined(group)
        else:
            groups.append(group)
    return groups


def test_offsets_that_are_lost_are_not_covered_up() -> None:
    segments = [segment(0, 10), segment(20, 30), segment(30, 40)]
    assert ranges(segments) == [(0, 10), (20, 30), (30, 40)]
    assert [(one.base_offset, one.end_offset) for one in joined(segments)] == [(0, 10), (20, 40)]
    assert joined([]) == []


def test_a_group_fits_one_commit() -> None:
    many = [segment(n, n + 1) for n in range(OLD_SEGMENTS_MAX + 1)]
    assert [len(group.segments) for group in joined(many)] == [OLD_SEGMENTS_MAX, 1]


def test_what_overlaps_stays_together_with_the_epochs_of_what_is_read() -> None:
    old = segment(0, 40, epoch=1)
    new = segment(20, 60, epoch=3, epochs=((1, 20), (3, 50)))
    last = segment(60, 70, epoch=4)
    groups = list(group_segments([old, new, last]))
    assert ranges([old, new, last]) == [(0, 60), (60, 70)]
    assert groups[0].leader_epochs == ((1, 0), (3, 50))
    (merged,) = joined([old, new, last])
    assert merged.leader_epochs == ((1, 0), (3, 50), (4, 60))


def test_what_a_later_leader_has_cut_off_is_in_no_group() -> None:
    """Not every offset of the two is read: what they hold is not put into one segment."""
    cut = segment(0, 40, epoch=1)
    truth = segment(10, 20, epoch=3, epochs=((1, 10), (3, 15)))
    assert ranges([cut, truth, segment(40, 50)]) == [(40, 50)]
