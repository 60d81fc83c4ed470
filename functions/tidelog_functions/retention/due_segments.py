"""The part of a partition's tier that retention has to read, and what it decides by it.

The schedule reads the items of all segments. An event, of which there is one for each segment
that is copied, reads them from the first one on, up to the first that is to be kept: all that
is too old, or marked for deletion because it was, is before that. What is marked elsewhere, since
it was rewritten, is left to the schedule and the leader.

Only the sum of all segments tells whether a partition has too many bytes. An event reads all of a
small partition for that, and leaves the bytes of a large one to the schedule and the leader.

A segment that is replaced between two pages may be read in both forms, and its bytes counted
twice. So nothing is decided by a reading that met a swap.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from operator import attrgetter

from tidelog_core.config import UNLIMITED
from tidelog_core.errors import TierRewritten
from tidelog_core.metadata.records import Partition, SegmentMeta
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.retention.selection import Limits, log_start_after_tier_retention
from tidelog_core.tier.contents import claim_version, read_pages, read_tier
from tidelog_core.tier.tiered_segments import TieredSegments

EVENT_PAGE_SEGMENTS = 32  # segments that an event reads first: four read units of DynamoDB
# Segments of a partition with a limit of bytes that an event reads at least, if there are so
# many: 30 units, which cost less than the PUTs of the segment that the event tells of.
EVENT_SIZES_MAX = 200
# Segments after which an event ends, though the next ones may be too old as well: it commits what
# it found, and the next event or the schedule goes on.
EVENT_COUNT_MAX = 1_000


async def read_due(
    store: MetadataStore, partition: Partition, limits: Limits, *, now_ms: int, is_event: bool
) -> tuple[list[SegmentMeta], int]:
    """Return segments that may have work to do, in any state, and where the log is to start.

    An event's start is never past the schedule's. Raises ``TierRewritten`` if segments were
    replaced while they were read, ``CorruptItem`` and what the store raises.
    """
    topic_id, number = partition.topic_id, partition.partition
    if not is_event:
        contents = await read_tier(store, topic_id, number)
        start = _log_start(contents.finished, partition, limits, now_ms=now_ms)
        return [*contents.finished.below(start), *contents.unfinished], start
    claim = await claim_version(store, topic_id, number)
    found = await _read_first(store, partition, limits, now_ms=now_ms)
    if await claim_version(store, topic_id, number) != claim:
        raise TierRewritten(f"the tier of {topic_id}:{number} changed while it was read")
    return found


async def _read_first(
    store: MetadataStore, partition: Partition, limits: Limits, *, now_ms: int
) -> tuple[list[SegmentMeta], int]:
    """Do the same for an event: read on up to the first segment to keep, or ``EVENT_COUNT_MAX``.

    What was judged is not judged again: the log starts at least where the pages before said.
    """
    metas: list[SegmentMeta] = []
    tiered, added_count = TieredSegments(), 0
    reached = partition  # with the log start that the pages so far lead to
    by_time = limits.without_size()
    pages = read_pages(
        store, partition.topic_id, partition.partition, first_count=EVENT_PAGE_SEGMENTS
    )
    async for page in pages:
        metas += page
        may_have_all_sizes = limits.retention_bytes != UNLIMITED and len(metas) < EVENT_SIZES_MAX
        if not page or may_have_all_sizes:
            continue
        # The next page may have more segments that begin where the last one of this does.
        complete_count = bisect_left(metas, page[-1].base_offset, key=_base_offset)
        tiered.extend(metas[added_count:complete_count])
        added_count = complete_count
        start = _log_start(tiered, reached, by_time, now_ms=now_ms)
        if tiered.end_offset > start or len(metas) >= EVENT_COUNT_MAX:
            return metas, start
        reached = dataclasses.replace(partition, log_start_offset=start)
    tiered.extend(metas[added_count:])
    return metas, _log_start(tiered, reached, limits, now_ms=now_ms)


def _log_start(tiered: TieredSegments, partition: Partition, limits: Limits, *, now_ms: int) -> int:
    begin = partition.log_start_offset
    return log_start_after_tier_retention(tiered, limits, log_start_offset=begin, now_ms=now_ms)


_base_offset = attrgetter("base_offset")
