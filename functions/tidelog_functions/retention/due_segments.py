"""The part of a partition's tier that retention has to read, and what it decides by it.

The schedule reads the items of all segments. An event, of which there is one for each segment
that is copied, reads them from the first one on, up to the first that is to be kept: all that
is too old, or marked for deletion because it was, is before that. What is marked elsewhere, since
it was rewritten, is left to the schedule and the leader.

Whether a partition has too many bytes only the sum of all tells. An event reads all of a small
partition for that; the bytes of a large one are left to the schedule and the leader.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter

from tidelog_core.config import UNLIMITED
from tidelog_core.metadata.records import Partition, SegmentMeta
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.retention.selection import Limits, log_start_after_tier_retention
from tidelog_core.tier.contents import PAGE_COUNT, read_pages
from tidelog_core.tier.tiered_segments import TieredSegments

EVENT_PAGE_COUNT = 32  # segments that an event reads first: four read units of DynamoDB
# Segments of a partition with a limit of bytes that an event reads at least, if there are so
# many: 30 units, which cost less than the PUTs of the segment that the event tells of.
EVENT_SIZES_MAX = 200


async def read_due(
    store: MetadataStore, partition: Partition, limits: Limits, *, now_ms: int, is_event: bool
) -> tuple[list[SegmentMeta], int]:
    """Return the segments that were read, in any state, and the offset where the log is to start.

    An event's is never past the schedule's. Raises ``CorruptItem`` and what the store raises.
    """
    metas: list[SegmentMeta] = []
    tiered, added_count = TieredSegments(), 0

    def log_start(known_limits: Limits) -> int:
        begin = partition.log_start_offset
        return log_start_after_tier_retention(
            tiered, known_limits, log_start_offset=begin, now_ms=now_ms
        )

    async for page in read_pages(
        store,
        partition.topic_id,
        partition.partition,
        first_count=EVENT_PAGE_COUNT if is_event else PAGE_COUNT,
    ):
        metas += page
        may_have_all_sizes = limits.retention_bytes != UNLIMITED and len(metas) < EVENT_SIZES_MAX
        if not is_event or not page or may_have_all_sizes:
            continue
        # The next page may have more segments that begin where the last one of this does.
        complete_count = bisect_left(metas, page[-1].base_offset, key=_base_offset)
        tiered.extend(metas[added_count:complete_count])
        added_count = complete_count
        start = log_start(limits.without_size())
        if tiered.end_offset > start:
            return metas, start
    tiered.extend(metas[added_count:])
    return metas, log_start(limits)


_base_offset = attrgetter("base_offset")
