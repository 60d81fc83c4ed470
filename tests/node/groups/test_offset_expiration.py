"""When offsets end, and from when on that has to be looked at."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from tidelog_core.metadata.coordination.groups import CommittedOffset, GroupOffsets
from tidelog_node.groups.classic.classic_group import ClassicGroup
from tidelog_node.groups.offset_expiration import earliest_end_ms, expired_partitions

TOPIC_ID = UUID(int=1)
RETENTION_MS, CLOCK_OFFSET_MS = 20, 1000
TIMES = st.integers(1000, 1060)


@given(
    times=st.lists(st.tuples(TIMES, st.none() | TIMES), min_size=1, max_size=4),
    empty_since_ms=TIMES,
    had_members=st.booleans(),
)
def test_nothing_ends_before_the_earliest_end(
    times: list[tuple[int, int | None]], empty_since_ms: int, had_members: bool
) -> None:
    group = ClassicGroup("g", now_ms=empty_since_ms - CLOCK_OFFSET_MS)
    group.protocol_type = "consumer" if had_members else None
    offsets = {
        number: CommittedOffset(1, -1, "", committed_ms, expires_ms)
        for number, (committed_ms, expires_ms) in enumerate(times)
    }
    page = GroupOffsets(group_id="g", topic="t", topic_id=TOPIC_ID, page=0, partitions=offsets)
    end_ms = earliest_end_ms(
        group, page, clock_offset_ms=CLOCK_OFFSET_MS, retention_ms=RETENTION_MS
    )

    def ended(now_ms: int) -> frozenset[int]:
        return expired_partitions(
            group,
            page,
            topic_id=TOPIC_ID,
            now_ms=now_ms,
            clock_offset_ms=CLOCK_OFFSET_MS,
            retention_ms=RETENTION_MS,
        )

    assert not any(ended(now_ms) for now_ms in range(1000, int(end_ms)))
    assert ended(1060 + RETENTION_MS) == offsets.keys()
