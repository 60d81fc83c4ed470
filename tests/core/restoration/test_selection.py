"""Which segments count, where the bucket alone says so."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.records import SegmentMeta, SegmentState
from tidelog_core.restoration.selection import (
    BrokenSegment,
    CompleteSegment,
    Selection,
    select_segments,
)
from tidelog_core.tier.integrity import NO_HASH

TOPIC_ID = UUID(int=1)


def segment(
    base: int,
    end: int,
    after: CompleteSegment | None = None,
    *,
    epoch: int = 1,
    epochs: tuple[tuple[int, int], ...] | None = None,
    previous_hash: bytes | None = None,
    rewrite_epoch: int = 0,
    replaced: tuple[CompleteSegment, ...] = (),
) -> CompleteSegment:
    """Return a segment that continues the chain of another."""
    segment_id = uuid4()
    meta = SegmentMeta(
        topic_id=TOPIC_ID,
        partition=0,
        base_offset=base,
        end_offset=end,
        leader_epoch=epoch,
        segment_id=segment_id,
        state=SegmentState.COPY_FINISHED,
        size_bytes=100,
        index_size_bytes=10,
        max_timestamp_ms=0,
        leader_epochs=((1, base),) if epochs is None else epochs,
        chained_hash=(segment_id.bytes * 2).hex(),
        created_ms=0,
        rewrite_epoch=rewrite_epoch,
    )
    if previous_hash is None:
        previous_hash = NO_HASH if after is None else after.chained_hash
    name = f"{base}-{end}-{rewrite_epoch or epoch}"
    continued = tuple((one.chained_hash, one.meta.base_offset) for one in replaced)
    return CompleteSegment(meta, f"{name}.log", f"{name}.index", previous_hash, continued=continued)


def rewritten(*run: CompleteSegment, epoch: int) -> CompleteSegment:
    """Return the segment that replaces a run of them."""
    return segment(
        run[0].meta.base_offset,
        run[-1].meta.end_offset,
        previous_hash=run[0].previous_hash,
        rewrite_epoch=epoch,
        replaced=run,
    )


def chain(*ranges: tuple[int, int]) -> list[CompleteSegment]:
    found: list[CompleteSegment] = []
    for base, end in ranges:
        found.append(segment(base, end, found[-1] if found else None))
    return found


def broken(base: int, end: int | None, *, is_unfinished: bool = False) -> BrokenSegment:
    return BrokenSegment("wrong", "it is wrong", base, end, 7, is_unfinished=is_unfinished)


def ranges(selection: Selection) -> list[tuple[int, int]]:
    return [(s.meta.base_offset, s.meta.end_offset) for s in selection.segments]


def remarks(selection: Selection) -> tuple[list[str], list[str]]:
    return [r.object for r in selection.left_out], [r.object for r in selection.problems]


def test_a_whole_chain_is_the_log() -> None:
    selection = select_segments(chain((0, 10), (10, 20), (20, 30))[::-1])
    assert ranges(selection) == [(0, 10), (10, 20), (20, 30)]
    assert (selection.log_start_offset, selection.leader_epoch_max) == (0, 1)
    assert remarks(selection) == ([], [])


def test_a_log_whose_beginning_is_deleted_starts_later() -> None:
    selection = select_segments(chain((0, 10), (10, 20), (20, 30))[1:])
    assert selection.log_start_offset == 10
    assert remarks(selection) == ([], [])


def test_overlapping_segments_all_count_and_the_chain_may_pass_one_by() -> None:
    """A new leader had rolled elsewhere: [50, 250) follows [0, 100) in the chain."""
    first, second = chain((0, 100), (100, 200))
    wide = segment(50, 250, first, epoch=2)
    last = segment(250, 300, second, epoch=2)
    selection = select_segments([first, second, wide, last])
    assert ranges(selection) == [(0, 100), (50, 250), (100, 200), (250, 300)]
    assert remarks(selection) == ([], [])


def test_a_copy_that_was_made_again_counts_once() -> None:
    first = segment(0, 10)
    crashed, again = segment(10, 20, first), segment(10, 20, first, epoch=2)
    last = segment(20, 30, again, epoch=2)
    selection = select_segments([first, crashed, again, last])
    assert ranges(selection) == [(0, 10), (10, 20), (20, 30)]
    assert again in selection.segments
    assert remarks(selection) == (["10-20-1.index"], [])
    # At the end of the log nothing tells which was the one, and it does not matter.
    assert ranges(select_segments([first, crashed, again])) == [(0, 10), (10, 20)]


def test_what_an_unclean_election_has_undone_is_left_out() -> None:
    first = segment(0, 10)
    undone = segment(10, 40, first)
    truth = segment(10, 30, first, epoch=3, epochs=((1, 10), (3, 15)))
    selection = select_segments([first, undone, truth])
    assert ranges(selection) == [(0, 10), (10, 30)]
    assert remarks(selection) == (["10-40-1.index"], [])
    assert selection.leader_epoch_max == 3


def test_a_new_chain_tells_that_what_is_before_was_deleted() -> None:
    old = chain((0, 10), (10, 20))
    new = segment(20, 30)
    selection = select_segments([*old, new])
    assert ranges(selection) == [(20, 30)]
    assert selection.log_start_offset == 20
    assert remarks(selection) == (["0-10-1.index", "10-20-1.index"], [])


def test_what_is_before_a_gap_is_left_out_and_reported() -> None:
    first, _, third = chain((0, 10), (10, 20), (20, 30))
    selection = select_segments([first, third])
    assert ranges(selection) == [(20, 30)]
    assert selection.log_start_offset == 20
    assert remarks(selection) == (["0-10-1.index"], ["20-30-1.log"])


def test_a_broken_chain_is_reported_and_the_segment_kept() -> None:
    first = segment(0, 10)
    forged = segment(10, 20, previous_hash=b"x" * 32)
    selection = select_segments([first, forged])
    assert ranges(selection) == [(0, 10), (10, 20)]
    assert remarks(selection) == ([], ["10-20-1.index"])


def test_a_broken_segment_is_a_problem_unless_others_have_its_records() -> None:
    whole = chain((10, 20), (20, 30))
    for one, is_problem in (
        (broken(30, 40), True),
        (broken(12, 18), False),
        (broken(0, 10), False),  # below the log start: its deletion was under way
        (broken(15, None), True),
    ):
        selection = select_segments(whole, [one])
        assert ranges(selection) == [(10, 20), (20, 30)]
        assert bool(selection.problems) is is_problem
        assert bool(selection.left_out) is not is_problem
        assert selection.leader_epoch_max == 7


def test_a_copy_that_was_not_finished_is_no_problem() -> None:
    selection = select_segments(chain((0, 10)), [broken(10, None, is_unfinished=True)])
    assert remarks(selection) == (["wrong"], [])


def test_offsets_of_what_cannot_be_read_are_not_given_away_where_nothing_else_is_left() -> None:
    selection = select_segments([], [broken(10, None), broken(20, 30)])
    assert selection.segments == ()
    assert selection.log_start_offset == 30
    assert len(selection.problems) == 2
    assert select_segments([]).log_start_offset == 0


def test_the_log_starts_where_the_bucket_tells_if_that_is_later() -> None:
    whole = chain((0, 10), (10, 20), (20, 30))
    for told, kept, start in (
        (0, 3, 0),
        (1, 3, 1),
        (10, 2, 10),
        (15, 2, 15),
        (29, 1, 29),
        (30, 0, 30),
        (99, 0, 99),
    ):
        selection = select_segments(whole, published_start=told)
        assert (
            ranges(selection)
            == [(s.meta.base_offset, s.meta.end_offset) for s in whole][3 - kept :]
        )
        assert selection.log_start_offset == selection.deleted_end == start
        assert [len(found) for found in remarks(selection)] == [3 - kept, 0]


def test_what_is_missing_behind_the_published_log_start_is_reported() -> None:
    """Nothing is deleted before the log start is told: so it was lost."""
    _, second, third = chain((0, 10), (10, 20), (20, 30))
    assert remarks(select_segments([second, third], published_start=10)) == ([], [])
    selection = select_segments([second, third], published_start=5)
    assert ranges(selection) == [(10, 20), (20, 30)]
    assert (selection.log_start_offset, selection.deleted_end) == (10, 5)
    assert [(p.object, p.text) for p in selection.problems] == [
        ("10-20-1.log", "offsets [5, 10) are missing before it")
    ]
    # It was the first when it was copied: what lay before had been deleted untiered.
    assert remarks(select_segments([segment(10, 20)], published_start=5)) == ([], [])


def test_holes_and_damage_below_the_published_log_start_do_not_matter() -> None:
    first, _, third = chain((0, 10), (10, 20), (20, 30))
    selection = select_segments([first, third], [broken(10, 20)], published_start=20)
    assert ranges(selection) == [(20, 30)]
    assert remarks(selection) == (["0-10-1.index", "wrong"], [])
    selection = select_segments([first], [broken(10, 20)], published_start=20)
    assert (selection.segments, selection.log_start_offset) == ((), 20)
    assert remarks(selection) == (["0-10-1.index", "wrong"], [])


def test_a_log_start_for_want_of_what_is_before_is_not_taken_for_a_deletion() -> None:
    first, _, third = chain((0, 10), (10, 20), (20, 30))
    selection = select_segments([first, third], published_start=3)
    assert (selection.log_start_offset, selection.deleted_end) == (20, 3)
    selection = select_segments([], [broken(10, None)], published_start=3)
    assert (selection.log_start_offset, selection.deleted_end) == (10, 3)


def test_producers_of_deleted_segments_are_known_too() -> None:
    first, second = chain((0, 10), (10, 20))
    known = [dataclasses.replace(first, producer_id_max=70), second]
    assert select_segments(known, published_start=15).producer_id_max == 70
    assert select_segments([]).producer_id_max == -1


@dataclasses.dataclass
class Life:
    """A partition's segments as its leader sees them, and as they lie in the bucket."""

    metadata_start: int = 0
    told: list[int] = dataclasses.field(default_factory=list)
    finished: list[CompleteSegment] = dataclasses.field(default_factory=list)
    deleting: list[CompleteSegment] = dataclasses.field(default_factory=list)
    without_log: set[str] = dataclasses.field(default_factory=set)
    in_bucket: list[CompleteSegment] = dataclasses.field(default_factory=list)
    end_offset: int = 0

    def copy(self, size: int) -> None:
        before = self.finished[-1] if self.finished else None
        new = segment(self.end_offset, self.end_offset + size, before)
        self.end_offset += size
        self.finished.append(new)
        self.in_bucket.append(new)

    def retain(self, offset: int, steps: int) -> None:
        """Do so many of the steps of a deletion up to there, and then crash."""
        self.metadata_start = max(self.metadata_start, min(offset, self.end_offset))
        expired = [s for s in self.finished if s.meta.end_offset <= self.metadata_start]
        if steps > 0 and self.metadata_start:
            self.told.append(self.metadata_start)
        if steps > 1:
            self.finished = [s for s in self.finished if s not in expired]
            self.deleting += expired
        for gone in self.deleting[: max(0, steps - 2)]:
            if gone.log_key in self.without_log or steps % 2:
                self.in_bucket = [s for s in self.in_bucket if s is not gone]
                self.deleting = [s for s in self.deleting if s is not gone]
            else:
                self.without_log.add(gone.log_key)

    def restored(self) -> Selection:
        whole = [s for s in self.in_bucket if s.log_key not in self.without_log]
        broken = [
            BrokenSegment(s.log_key, "gone", s.meta.base_offset, s.meta.end_offset, 1)
            for s in self.in_bucket
            if s.log_key in self.without_log
        ]
        return select_segments(whole, broken, published_start=max(self.told, default=0))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("copy"), st.integers(1, 10)),
            st.tuples(st.just("retain"), st.integers(0, 60), st.integers(0, 7)),
        ),
        max_size=30,
    )
)
def test_whenever_the_metadata_is_lost_nothing_comes_back_and_nothing_is_missing(
    history: list[Any],
) -> None:
    life = Life()
    for what, *arguments in history:
        getattr(life, what)(*arguments)
        selection = life.restored()
        assert selection.problems == ()
        # What is being deleted stays deleted, and no more than that is missing.
        going = max((s.meta.end_offset for s in life.deleting), default=0)
        assert going <= selection.log_start_offset <= life.metadata_start
        readable = [s for s in life.finished if s.meta.end_offset > selection.log_start_offset]
        assert list(selection.segments) == readable
        if life.told and life.told[-1] == life.metadata_start:
            assert selection.log_start_offset == life.metadata_start


def test_what_was_rewritten_last_counts_with_all_that_it_replaces_still_there() -> None:
    old = chain((0, 10), (10, 20), (20, 30), (30, 40))
    first = rewritten(old[1], old[2], epoch=5)
    second = rewritten(old[0], first, epoch=6)
    third = rewritten(second, epoch=9)
    selection = select_segments([*old, first, second, third])
    assert selection.segments == (third, old[3])
    assert remarks(selection)[1] == []
    assert len(selection.left_out) == 5


def test_rewritten_segments_continue_the_chain_when_what_they_replace_is_gone() -> None:
    old = chain((0, 10), (10, 20), (20, 30), (30, 40))
    new = [rewritten(*old[:2], epoch=3), rewritten(old[2], epoch=3)]
    selection = select_segments([*new, old[3]])
    assert selection.segments == (*new, old[3])
    assert remarks(selection) == ([], [])
    assert remarks(select_segments([new[0], old[3]]))[1] != []  # a hole stays one


def test_a_segment_with_offsets_that_nothing_newer_has_stays() -> None:
    old = segment(0, 10)
    new = rewritten(old, epoch=3)
    wide = segment(5, 30, old, epoch=2)
    assert select_segments([old, new, wide]).segments == (new, wide)


def test_rewrites_side_by_side_replace_an_older_one_that_spans_them() -> None:
    """So it is where a rewrite that lost had put its objects before it was told."""
    old = chain((0, 10), (10, 20))
    lost = rewritten(*old, epoch=3)
    new = [rewritten(old[0], epoch=4), rewritten(old[1], epoch=4)]
    assert select_segments([*old, lost, *new]).segments == tuple(new)
