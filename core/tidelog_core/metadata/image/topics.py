"""Topics and partitions of the next image: a topic appears only with all of its partitions.

Partitions that an image does not have yet are read after their topic's item, which counts them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import operator
from collections.abc import Mapping, Sequence
from uuid import UUID

from tidelog_core.batched import batched
from tidelog_core.metadata import records
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.readings import Readings
from tidelog_core.metadata.records import (
    PARTITION_COLLECTION_PREFIX,
    Partition,
    Topic,
    parse_id,
    parse_number,
)
from tidelog_core.metadata.store import Item, ItemKey, MetadataStore
from tidelog_core.turns import Turn

COLLECTIONS_AT_ONCE_MAX = 16
LIST_FROM_KEYS = 24  # with so many wanted items of a collection, listing it costs less
PARTITIONS_PER_STEP = 50  # read from their items before other tasks may run
LOST_PARTITIONS_MAX = 1000  # of one topic; if more are missing its count is taken for wrong


async def replace_partitions(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[ItemKey, Item | None],
    readings: Readings,
) -> ClusterImage:
    """Return the image with the changed partitions of topics that it shows."""
    if not changed:
        return image
    by_topic: dict[UUID, list[Partition]] = {}
    for key, item in changed.items():
        topic_id = parse_id(key.collection.removeprefix(PARTITION_COLLECTION_PREFIX))
        number = parse_number(key.key)
        if topic_id is None or number is None:
            continue
        known = by_topic.get(topic_id)
        if known is None:
            known = list(image.partitions_by_topic.get(topic_id, ()))
            by_topic[topic_id] = known
        if number >= len(known):
            continue
        if item is None and not await _is_still(store, image.topic_by_id(topic_id)):
            continue  # The topic is gone; the next refresh removes it.
        known[number] = readings.partition(key, item, topic_id, known[number])
    partitions = {
        topic_id: tuple(known)
        for topic_id, known in by_topic.items()
        # The very records as before are no change.
        if any(map(operator.is_not, known, image.partitions_by_topic.get(topic_id, ())))
    }
    return dataclasses.replace(
        image, partitions_by_topic={**image.partitions_by_topic, **partitions}
    )


async def replace_topics(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[str, Topic | None],
    before: ClusterImage,
    readings: Readings,
) -> ClusterImage:
    """Return the image with the changed topics, each with all of its partitions or not at all."""
    if not changed:
        return image
    listed = await _list_new_partitions(store, image, changed, before, readings)
    topics, names = dict(image.topics), dict(image.topic_names)
    partitions = dict(image.partitions_by_topic)
    for name, read in changed.items():
        replaced = topics.pop(name, None)
        if replaced is not None:
            del names[replaced.topic_id]
            del partitions[replaced.topic_id]
        topic = read
        if read is not None and read.item_id in readings.unreadable:
            topic = before.topics.get(name)
            if topic is not None and topic.topic_id in image.deleted_topics:
                continue  # The unreadable item is another topic of this name.
        if topic is None:
            continue
        found = listed.get(topic.topic_id, image.partitions_by_topic.get(topic.topic_id, ()))
        if len(found) == topic.partition_count:
            topics[name] = topic
            names[topic.topic_id] = name
            partitions[topic.topic_id] = found
    return dataclasses.replace(
        image,
        topics=dict(sorted(topics.items())),
        topic_names=names,
        partitions_by_topic=partitions,
    )


async def _list_new_partitions(
    store: MetadataStore,
    image: ClusterImage,
    changed: Mapping[str, Topic | None],
    before: ClusterImage,
    readings: Readings,
) -> dict[UUID, tuple[Partition, ...]]:
    """Return the partitions of the topics that the image has too few or too many of.

    Leaves out a topic that was deleted or replaced since: its item changed after the
    version that is being built, so the next refresh reads it again.
    """
    to_list = [
        topic
        for topic in changed.values()
        if topic is not None
        and len(image.partitions_by_topic.get(topic.topic_id, ())) != topic.partition_count
    ]
    items_by_topic = await _list_partitions(store, to_list)
    listed: dict[UUID, tuple[Partition, ...]] = {}
    turn = Turn()
    for topic in to_list:
        items, count = items_by_topic[topic.topic_id], topic.partition_count
        by_number = {parse_number(item.id.key): item for item in items}
        if any(number not in by_number for number in range(min(count, len(items) + 1))):
            if not await _is_still(store, topic):
                continue
            if count - len(items) > LOST_PARTITIONS_MAX:
                readings.unreadable[topic.item_id] = (
                    f"{count} partitions, of which {len(items)} are there"
                )
                # So many items cannot be lost: the count is wrong.
                last = before.topics.get(topic.name)
                count = 0 if last is None else last.partition_count
        known = before.partitions_by_topic.get(topic.topic_id, ())
        partitions = []
        for number in range(count):
            if number % PARTITIONS_PER_STEP == 0:
                await turn.step()
            partitions.append(
                readings.partition(
                    records.partition_key(topic.topic_id, number),
                    by_number.get(number),
                    topic.topic_id,
                    known[number] if number < len(known) else None,
                )
            )
        listed[topic.topic_id] = tuple(partitions)
    return listed


async def _list_partitions(store: MetadataStore, topics: Sequence[Topic]) -> dict[UUID, list[Item]]:
    """Return the partition items of each topic, at least those that the topic counts."""
    found: dict[UUID, list[Item]] = {topic.topic_id: [] for topic in topics}
    wide = [topic.topic_id for topic in topics if topic.partition_count >= LIST_FROM_KEYS]
    for some in batched(wide, COLLECTIONS_AT_ONCE_MAX):
        lists = await asyncio.gather(*(store.list(records.partition_collection(i)) for i in some))
        found.update(zip(some, lists, strict=True))
    narrow = {
        records.partition_key(topic.topic_id, number): topic.topic_id
        for topic in topics
        if topic.partition_count < LIST_FROM_KEYS
        for number in range(topic.partition_count)
    }
    if narrow:
        for key, item in (await store.get_many(narrow)).items():
            found[narrow[key]].append(item)
    return found


async def _is_still(store: MetadataStore, topic: Topic | None) -> bool:
    """Return whether the topic's item has not changed since it was read."""
    if topic is None:
        return False
    item = await store.get(topic.item_id)
    return item is not None and item.version == topic.version
