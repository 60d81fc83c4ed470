"""Reads a group's committed offsets from the store, with the page of each offset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupOffsets,
    OffsetsByTopic,
    offset_collection,
    offset_item_id,
    offset_page,
)
from tidelog_core.metadata.store import ABSENT, COMMIT_WRITES_MAX, Item, MetadataStore
from tidelog_core.model import TopicPartition
from tidelog_core.turns import Turn

PAGES_READ_SINGLY_MAX = 4  # from here on one listing is cheaper
# One write is kept for the group's record.
PAGES_PER_COMMIT = COMMIT_WRITES_MAX - 1


@dataclass(frozen=True, slots=True, order=True)
class PageKey:
    """A page of a topic's offsets. The topic's id separates topics of one name."""

    topic: str
    topic_id: UUID
    page: int


def by_page(
    offsets: OffsetsByTopic,
) -> dict[PageKey, dict[int, CommittedOffset]]:
    """Return the offsets of topics' partitions by the page that holds them."""
    pages: dict[PageKey, dict[int, CommittedOffset]] = {}
    for (topic, topic_id), partitions in offsets.items():
        for partition, offset in partitions.items():
            key = PageKey(topic, topic_id, offset_page(partition))
            pages.setdefault(key, {})[partition] = offset
    return pages


async def read_page(store: MetadataStore, group_id: str, key: PageKey) -> GroupOffsets:
    """Return the page as stored, or an empty one; empty also for a topic of another id."""
    item = await store.get(offset_item_id(group_id, key.topic, key.page))
    return page_for(group_id, key, None if item is None else GroupOffsets.from_item(item))


def page_for(group_id: str, key: PageKey, page: GroupOffsets | None) -> GroupOffsets:
    """Return the page if it is of this topic, else an empty one to replace it."""
    if page is not None and page.topic_id == key.topic_id:
        return page
    return GroupOffsets(
        group_id=group_id,
        topic=key.topic,
        topic_id=key.topic_id,
        page=key.page,
        partitions={},
        version=ABSENT if page is None else page.version,
    )


async def read_pages(
    store: MetadataStore, group_id: str, topics: Iterable[str] | None = None
) -> list[GroupOffsets]:
    """Return every page of the group, or those of some topics."""
    if topics is None:
        items = await store.list(offset_collection(group_id))
    else:
        listed = [store.list(offset_collection(group_id), prefix=f"{t}/") for t in set(topics)]
        items = [item for some in await asyncio.gather(*listed) for item in some]
    return await _pages_of(items)


async def read_offsets(
    store: MetadataStore,
    group_id: str,
    partitions: Mapping[str, Collection[int]] | None,
    *,
    is_topic: Callable[[str, UUID], bool],
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of the partitions by topic, or of all with ``None``.

    ``is_topic`` returns whether the topic of that name has that id now: offsets of an
    earlier topic of the name are left out.
    """
    if partitions is None:
        pages = await read_pages(store, group_id)
    else:
        pages = await _read_pages_of(store, group_id, partitions)
        partitions = {topic: frozenset(indexes) for topic, indexes in partitions.items()}
    found: dict[TopicPartition, CommittedOffset] = {}
    turn = Turn()
    for page in pages:
        await turn.step()
        if is_topic(page.topic, page.topic_id):
            found.update(
                (TopicPartition(page.topic, partition), offset)
                for partition, offset in page.partitions.items()
                if partitions is None or partition in partitions[page.topic]
            )
    return found


async def _read_pages_of(
    store: MetadataStore, group_id: str, partitions: Mapping[str, Collection[int]]
) -> list[GroupOffsets]:
    """Return the pages that hold the partitions, by topic, as far as they are there."""
    wanted = {(t, offset_page(p)) for t, indexes in partitions.items() for p in indexes}
    if len(wanted) > PAGES_READ_SINGLY_MAX:
        pages = await read_pages(store, group_id)
        return [page for page in pages if (page.topic, page.page) in wanted]
    ids = [offset_item_id(group_id, topic, page) for topic, page in wanted]
    items = await asyncio.gather(*(store.get(item_id) for item_id in ids))
    return await _pages_of(item for item in items if item is not None)


async def _pages_of(items: Iterable[Item]) -> list[GroupOffsets]:
    """Return the pages, read in turns with everyone else's work."""
    pages, turn = [], Turn()
    for item in items:
        await turn.step()
        pages.append(GroupOffsets.from_item(item))
    return pages
