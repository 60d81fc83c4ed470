"""Reads a partition's tiered segments from the metadata store, page by page.

The items of a hundred thousand segments are 300 MB of objects. Only the packed segments of each
page are kept, and between two pages the event loop and the store serve others.

Pages are read one after the other, so a segment that is rewritten between two of them may be
missing from both, in its old form and in its new one. The same may happen within one page: a
DynamoDB query is only read-committed beside a transaction. Every swap is committed with the
partition's rewrite claim, so a reading counts if the claim's version is the same before the first
page and after the last one. Otherwise the pages are read again. If each of ``READS_MAX``
readings meets a swap, ``read_tier`` raises: a log that is started inside the tier would assign
offsets that the tier already has. ``read_changing_tier`` returns the last reading, marked as
possibly incomplete: enough for a reader that retries when it finds nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.errors import TierRewritten
from tidelog_core.metadata.records import (
    SegmentMeta,
    SegmentState,
    segment_collection,
    segment_key_from,
)
from tidelog_core.metadata.rewrite_claims import rewrite_claim_key
from tidelog_core.metadata.store import ABSENT, Item, KeyRange, MetadataStore
from tidelog_core.tier.lifecycle import read_segments
from tidelog_core.tier.tiered_segments import TieredSegments

PAGE_ITEMS_MAX = 250  # items read together; they block the event loop for some milliseconds
OVERLAPPING_COUNT_MAX = 8  # segments below an offset that are read first
READS_MAX = 3  # of all pages


@dataclass(frozen=True, slots=True)
class TierContents:
    """A partition's segments as they were read."""

    finished: TieredSegments
    unfinished: tuple[SegmentMeta, ...]  # copies and deletions under way, by base offset
    is_whole: bool  # False: segments that were being swapped may be missing, in either form

    def __bool__(self) -> bool:
        """Whether there is any segment."""
        return bool(self.finished) or bool(self.unfinished)


async def read_tier(store: MetadataStore, topic_id: UUID, partition: int) -> TierContents:
    """Return the partition's segments as they were between two swaps.

    Raises ``TierRewritten``, ``CorruptItem`` and the errors of the store.
    """
    contents = await read_changing_tier(store, topic_id, partition)
    if not contents.is_whole:
        raise TierRewritten(f"the tier of {topic_id}:{partition} changed in {READS_MAX} readings")
    return contents


async def read_changing_tier(store: MetadataStore, topic_id: UUID, partition: int) -> TierContents:
    """Return the partition's segments, as last read if swaps disturbed every reading.

    An incomplete reading must not be used for decisions. Raises ``CorruptItem`` and the errors
    of the store.
    """
    claim = await claim_version(store, topic_id, partition)
    for _ in range(READS_MAX):
        finished, unfinished = TieredSegments(), list[SegmentMeta]()
        async for page in read_pages(store, topic_id, partition):
            finished.extend(page)
            unfinished += [one for one in page if one.state is not SegmentState.COPY_FINISHED]
        before, claim = claim, await claim_version(store, topic_id, partition)
        if before == claim:
            break
    return TierContents(finished, tuple(unfinished), is_whole=before == claim)


async def read_tiered_end(store: MetadataStore, topic_id: UUID, partition: int, offset: int) -> int:
    """Return the offset up to which every record from ``offset`` on is in the tier.

    Reads the segments copied since ``offset`` was the tier's end, and a few before: the first
    copy of another leader may begin below it. If that leaves a gap, all segments are read.
    """
    start = segment_key_from(offset)
    keys = KeyRange(end=start, limit=OVERLAPPING_COUNT_MAX, is_descending=True)
    before = await read_segments(store, topic_id, partition, keys=keys)
    since = await read_segments(store, topic_id, partition, keys=KeyRange(start))
    tiered = TieredSegments([*before, *since])
    end = tiered.tiered_end(offset)
    if tiered.last is not None and tiered.last.base_offset > end:
        return (await read_tier(store, topic_id, partition)).finished.tiered_end(offset)
    return end


async def read_pages(
    store: MetadataStore, topic_id: UUID, partition: int, *, first_count: int = PAGE_ITEMS_MAX
) -> AsyncIterator[list[SegmentMeta]]:
    """Yield the partition's segments in any state by base offset, a page at a time.

    Pages as of ``read_item_pages``. Raises ``CorruptItem`` and the errors of the store.
    """
    collection = segment_collection(topic_id, partition)
    async for items in read_item_pages(store, collection, first_count=first_count):
        yield [SegmentMeta.from_item(item) for item in items]


async def read_item_pages(
    store: MetadataStore, collection: str, *, first_count: int = PAGE_ITEMS_MAX
) -> AsyncIterator[list[Item]]:
    """Yield the collection's items in key order, a page at a time.

    The first page has ``first_count`` items, each later one twice as many as the one before, up
    to ``PAGE_ITEMS_MAX``; the last one has fewer, maybe none. The caller may
    delete the yielded items. Raises the errors of the store.
    """
    start, count = "", first_count
    while True:
        items = await store.list(collection, keys=KeyRange(start, limit=count))
        yield items
        if len(items) < count:
            return
        count = min(2 * count, PAGE_ITEMS_MAX)
        start = items[-1].id.key + "\0"  # the next key there can be


async def claim_version(store: MetadataStore, topic_id: UUID, partition: int) -> int:
    """Return the version of the partition's rewrite claim, which every swap increases."""
    claim = await store.get(rewrite_claim_key(topic_id, partition))
    return ABSENT if claim is None else claim.version
