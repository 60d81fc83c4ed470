"""Finds a segment or a log start in the bucket that a partition's item should know, and does not.

Only committed records are tiered, and the objects of a chain are deleted once the metadata store
says that the tier has their records. So a log that was found in chains and tier ends at or above
every segment. If a whole segment begins where the log ends, or above, the metadata store was set
back behind it: the records are only there.

A log start is published in the bucket once the item has it. If the bucket has a greater one, the
item was set back behind it. The records below were deleted, and their objects may be, so an heir
would miss them, or give their offsets to others.
"""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.index_file import IndexFile
from tidelog_core.tier.keys import (
    INDEX_SUFFIX,
    LOG_START_PREFIX,
    LOG_SUFFIX,
    parse_log_start_key,
    parse_segment_key,
)


async def segment_from(
    store: ObjectStore, prefix: str, offset: int, *, known_ids: Collection[UUID] = ()
) -> str | None:
    """Return the key of the first whole segment at or above the offset, ``None`` if there is none.

    ``prefix`` is that of the partition's keys. Skips leftovers of uploads and deletions, damaged
    segments, and those whose ids are in ``known_ids``. Costs one listing if it finds nothing.
    Raises ``StoreUnavailable``.
    """
    after = f"{prefix}{offset - 1:020d}~" if offset else prefix
    index_key = ""  # of the last stem; the log's key follows it
    async for meta in store.list(prefix, start_after=after):
        parsed = parse_segment_key(meta.key)
        if parsed is None or parsed.base_offset < offset or parsed.segment_id in known_ids:
            continue
        if parsed.is_index:
            index_key = meta.key
            continue
        is_pair = meta.key.removesuffix(LOG_SUFFIX) == index_key.removesuffix(INDEX_SUFFIX)
        if is_pair and await _log_size_bytes(store, index_key) == meta.size_bytes:
            return meta.key
    return None


async def published_log_start(store: ObjectStore, prefix: str) -> int:
    """Return the greatest log start that the bucket has of a partition, 0 for none. One listing.

    ``prefix`` is that of the partition's keys. Raises ``StoreUnavailable``.
    """
    offset = 0
    async for meta in store.list(f"{prefix}{LOG_START_PREFIX}"):
        parsed = parse_log_start_key(meta.key)
        offset = max(offset, 0 if parsed is None else parsed.offset)
    return offset


async def _log_size_bytes(store: ObjectStore, index_key: str) -> int | None:
    """Return the size that the index says of its segment, ``None`` if it cannot be read."""
    try:
        return IndexFile.parse(await store.get(index_key), key=index_key).log_size_bytes
    except (ObjectNotFound, CorruptObject):
        return None
