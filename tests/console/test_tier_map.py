from __future__ import annotations

from itertools import pairwise
from uuid import UUID, uuid4

import pytest
from tidelog_console.stores import PartitionTier
from tidelog_console.tier_map import WIDTH, PartitionMap, partition_map
from tidelog_core.metadata.records import Partition, SegmentMeta, SegmentState
from tidelog_core.metadata.rewrite_claims import RewriteClaim

TOPIC = uuid4()
DONE, COPYING, DELETED = (
    SegmentState.COPY_FINISHED,
    SegmentState.COPY_STARTED,
    SegmentState.DELETE_STARTED,
)


def segment(
    base: int,
    end: int,
    state: SegmentState = DONE,
    *,
    rewrite_epoch: int = 0,
    segment_id: UUID | None = None,
) -> SegmentMeta:
    return SegmentMeta(
        topic_id=TOPIC,
        partition=0,
        base_offset=base,
        end_offset=end,
        leader_epoch=0,
        segment_id=segment_id or uuid4(),
        state=state,
        size_bytes=100,
        index_size_bytes=10,
        max_timestamp_ms=0,
        leader_epochs=((0, 0),),
        chained_hash="",
        created_ms=0,
        rewrite_epoch=rewrite_epoch,
    )


def mapped(
    *segments: SegmentMeta,
    local_start: int | None = 0,
    log_end: int | None = 40,
    log_start: int = 0,
    erased: frozenset[UUID] = frozenset(),
    claim: RewriteClaim | None = None,
    bars_max: int = 100,
) -> PartitionMap:
    partition = Partition(
        topic_id=TOPIC,
        partition=0,
        replicas=(1,),
        leader=1,
        leader_epoch=0,
        isr=(1,),
        log_start_offset=log_start,
    )
    return partition_map(
        PartitionTier(partition, segments, 0, True, claim),
        local_start=local_start,
        log_end=log_end,
        erased=erased,
        now_ms=1_000,
        bars_max=bars_max,
    )


def states(found: PartitionMap) -> list[tuple[str, int, int]]:
    return [(one.bar.state, one.bar.base, one.bar.end) for one in found.bars]


def test_segments_are_tiered_both_or_local() -> None:
    found = mapped(segment(0, 10), segment(10, 20), segment(20, 30), local_start=10)
    assert states(found) == [
        ("tiered", 0, 10),
        ("both", 10, 20),
        ("both", 20, 30),
        ("local", 30, 40),
    ]
    assert found.status["backlog"] == 10
    assert found.status["tiered_end"] == 30


def test_a_segment_that_is_copied_is_shown_once() -> None:
    found = mapped(segment(0, 10), segment(10, 20, COPYING))
    assert states(found) == [("both", 0, 10), ("copying", 10, 20), ("local", 20, 40)]
    assert found.status["copying"] == 1


def test_a_rewrite_shows_what_it_replaces() -> None:
    found = mapped(segment(0, 10), segment(0, 10, COPYING, rewrite_epoch=2), local_start=30)
    assert states(found)[0] == ("rewriting", 0, 10)
    done = mapped(
        segment(0, 10, DELETED), segment(0, 10, rewrite_epoch=2), local_start=30, log_end=40
    )
    assert states(done)[0] == ("rewritten", 0, 10)
    assert [(bar.state, bar.base) for bar in done.deleting] == [("deleting", 0)]


def test_a_segment_of_a_receipt_is_shown_as_erased() -> None:
    new = uuid4()
    found = mapped(segment(0, 10, rewrite_epoch=1, segment_id=new), erased=frozenset({new}))
    assert states(found)[0] == ("erased", 0, 10)


def test_nothing_is_drawn_before_the_log_start() -> None:
    found = mapped(segment(0, 10), segment(10, 20), log_start=15)
    assert states(found) == [("both", 10, 20), ("local", 20, 40)]
    assert found.bars[0].x == 0


def test_without_a_leaders_answer_only_the_tier_is_known() -> None:
    found = mapped(segment(0, 10), local_start=None, log_end=None)
    assert states(found) == [("tiered", 0, 10)]
    assert found.status["backlog"] is None


def test_an_empty_partition_has_no_bar() -> None:
    assert mapped(log_end=0).bars == ()


@pytest.mark.parametrize("count", [1, 99, 1_000])
def test_the_bars_fill_the_picture_and_are_bounded(count: int) -> None:
    segments = [segment(at * 10, at * 10 + 10) for at in range(count)]
    found = mapped(*segments, local_start=count * 5, log_end=count * 10 + 5, bars_max=50)
    assert len(found.bars) <= 53
    assert sum(one.bar.segment_count for one in found.bars) == count
    last = found.bars[-1]
    assert last.x + last.width == pytest.approx(WIDTH, abs=0.5)
    for one, after in zip(found.bars, found.bars[1:], strict=False):
        assert one.bar.end == after.bar.base


def test_a_claim_counts_until_it_expires() -> None:
    claim = RewriteClaim(
        topic_id=TOPIC, partition=0, rewrite_epoch=1, holder=uuid4(), expires_ms=2_000
    )
    assert mapped(claim=claim).is_claimed
    over = RewriteClaim(topic_id=TOPIC, partition=0, rewrite_epoch=1, holder=uuid4(), expires_ms=5)
    assert not mapped(claim=over).is_claimed


def test_states_that_alternate_do_not_make_a_page_long() -> None:
    segments = [segment(at * 10, at * 10 + 10, rewrite_epoch=at % 2) for at in range(1_000)]
    found = mapped(*segments, log_end=10_000, bars_max=20)
    drawn = states(found)
    assert len(drawn) <= 40
    assert (drawn[0][1], drawn[-1][2]) == (0, 10_000)
    assert all(one[2] == following[1] for one, following in pairwise(drawn))
