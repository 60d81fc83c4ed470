"""Which segments become one."""

from __future__ import annotations

from uuid import UUID, uuid4

from tidelog_core.log.offset_index import RELATIVE_OFFSET_MAX
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.rewriting.groups import SegmentGroup, group_segments
from tidelog_core.rewriting.swap import OLD_SEGMENTS_MAX

AMPLE = 1 << 40


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


def ranges(groups: tuple[SegmentGroup, ...]) -> list[tuple[int, int]]:
    return [(group.base_offset, group.end_offset) for group in groups]


def test_neighbours_are_one_as_far_as_they_fit() -> None:
    segments = [segment(n, n + 10) for n in range(0, 50, 10)]
    assert ranges(group_segments(segments, size_bytes_max=200)) == [(0, 20), (20, 40), (40, 50)]
    assert ranges(group_segments(segments, size_bytes_max=AMPLE)) == [(0, 50)]
    assert ranges(group_segments(segments[:2], size_bytes_max=1)) == [(0, 10), (10, 20)]
    assert group_segments([], size_bytes_max=AMPLE) == ()


def test_offsets_that_are_lost_are_not_covered_up() -> None:
    segments = [segment(0, 10), segment(20, 30)]
    assert ranges(group_segments(segments, size_bytes_max=AMPLE)) == [(0, 10), (20, 30)]


def test_a_group_fits_one_commit_and_one_offset_index() -> None:
    many = [segment(n, n + 1) for n in range(OLD_SEGMENTS_MAX + 1)]
    assert [len(g.segments) for g in group_segments(many, size_bytes_max=AMPLE)] == [
        OLD_SEGMENTS_MAX,
        1,
    ]
    far = [segment(0, RELATIVE_OFFSET_MAX), segment(RELATIVE_OFFSET_MAX, RELATIVE_OFFSET_MAX + 5)]
    assert len(group_segments(far, size_bytes_max=AMPLE)) == 2


def test_what_overlaps_stays_together_with_the_epochs_of_what_is_read() -> None:
    old = segment(0, 40, epoch=1)
    new = segment(20, 60, epoch=3, epochs=((1, 20), (3, 50)))
    last = segment(60, 70, epoch=4)
    groups = group_segments([old, new, last], size_bytes_max=1)
    assert ranges(groups) == [(0, 60), (60, 70)]
    assert groups[0].leader_epochs == ((1, 0), (3, 50))
    (merged,) = group_segments([old, new, last], size_bytes_max=AMPLE)
    assert merged.leader_epochs == ((1, 0), (3, 50), (4, 60))


def test_what_a_later_leader_has_cut_off_is_in_no_group() -> None:
    """Not every offset of the two is read: what they hold is not put into one segment."""
    cut = segment(0, 40, epoch=1)
    truth = segment(10, 20, epoch=3, epochs=((1, 10), (3, 15)))
    assert ranges(group_segments([cut, truth, segment(40, 50)], size_bytes_max=1)) == [(40, 50)]
