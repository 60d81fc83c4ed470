"""The segments that retention reads of a partition's tier, and the log start they lead to.

The schedule reads the items of all segments. An event (one per copied segment) reads them
from the first on, up to the first one to keep: all segments that are too old, or marked for
deletion because they were, are before it. Segments marked elsewhere, after a rewrite, are
left to the schedule and the leader.

Only the sum of all segments shows whether a partition has too many bytes. For that an event
reads all segments of a small partition, and leaves a large one to the schedule and the leader.

A segment that is replaced between two pages may be read in both forms, and its bytes be
counted twice. So a reading that met a swap decides nothing.
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
# Segments that an event reads at least if the partition has a limit of bytes: 30 units, which
# cost less than the PUTs of the event's segment.
EVENT_SIZES_MAX = 200
# An event stops after this many segments, even if the next ones are too old as well: it commits
# its results, and the next event or the schedule continues.
EVENT_COUNT_MAX = 1_000


async def read_due(
    store: MetadataStore, partition: Partition, limits: Limits, *, now_ms: int, is_event: bool
) -> tuple[list[SegmentMeta], int]:
    """Return segments that may need work, in any state, and the new log start.

    An event's log start is never past the schedule's. Raises ``TierRewritten`` if segments were
    replaced during the reading, ``CorruptItem`` and the store's errors.
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
    """Like ``read_due`` for an event: read up to a segment to keep, or ``EVENT_COUNT_MAX``.

    Earlier pages are not evaluated again: the log start is at least the one that they led to.
    """
    metas: list[SegmentMeta] = []
    tiered, added_count = TieredSegments(), 0
    reached = partition  # with the log start from the pages read so far
    by_time = limits.without_size()
    pages = read_pages(
        store, partition.topic_id, partition.partition, first_count=EVENT_PAGE_SEGMENTS
    )
    async for page in pages:
        metas += page
        may_have_all_sizes = limits.retention_bytes != UNLIMITED and len(metas) < EVENT_SIZES_MAX
        if not page or may_have_all_sizes:
            continue
        # The next page may have more segments with the last base offset of this one.
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
