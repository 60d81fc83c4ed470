"""Builds images: the first one from all items, the next ones from the items that changed.

The items of changed keys are read first, one by one or with their whole collection, whichever
costs less. Then they are merged in portions, one image a portion.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence, Sized

from tidelog_core.batched import batched
from tidelog_core.metadata import records
from tidelog_core.metadata.client_metrics import CLIENT_METRICS_COLLECTION
from tidelog_core.metadata.coordination.group_configs import GROUP_CONFIG_COLLECTION
from tidelog_core.metadata.image.cluster_image import NO_VERSION, ClusterImage
from tidelog_core.metadata.image.merge import merge, shows
from tidelog_core.metadata.image.topics import COLLECTIONS_AT_ONCE_MAX, LIST_FROM_KEYS
from tidelog_core.metadata.records import PARTITION_COLLECTION_PREFIX, Partition, parse_id
from tidelog_core.metadata.security.acls import ACL_COLLECTION
from tidelog_core.metadata.security.client_quotas import QUOTA_COLLECTION
from tidelog_core.metadata.security.delegation_tokens import DELEGATION_TOKEN_COLLECTION
from tidelog_core.metadata.security.roles import ROLE_COLLECTION
from tidelog_core.metadata.security.scram_users import SCRAM_CREDENTIAL_COLLECTION
from tidelog_core.metadata.store import ClusterVersion, Item, ItemKey, MetadataStore
from tidelog_core.turns import Turn

# With ``LIST_FROM_KEYS`` changed items, and this part of their collection, listing costs less.
LIST_FROM_SHARE = 1 / 4
# Changed topics, with their partitions, that one image brings: some milliseconds of everyone's
# work. A topic is never divided.
CHANGES_PER_IMAGE_MAX = 150


async def load_image(store: MetadataStore, before: ClusterImage) -> ClusterImage:
    """Return the whole image. The version is read first, so concurrent changes are read again.

    ``before`` has the last readable values of items that are unreadable now.
    """
    version = (await store.changes_since(NO_VERSION)).version
    image = ClusterImage(version=version, shown_security=before.shown_security)
    collections = (
        records.CLUSTER_COLLECTION,
        records.BROKER_COLLECTION,
        records.NODE_CONFIG_COLLECTION,
        GROUP_CONFIG_COLLECTION,
        CLIENT_METRICS_COLLECTION,
        *sorted(image.shown_security),
        records.DELETED_TOPIC_COLLECTION,
        records.TOPIC_COLLECTION,
    )
    turn = Turn()
    for collection in collections:
        items: dict[ItemKey, Item | None] = {}
        for item in await store.list(collection):
            await turn.step()
            items[item.id] = item
        image = await merge(store, image, items, before)
        while items:  # To free a hundred thousand of them at once takes 50 ms.
            items.popitem()
            await turn.step()
    return image


async def updated_images(
    store: MetadataStore,
    image: ClusterImage,
    version: ClusterVersion,
    keys: Iterable[ItemKey],
) -> AsyncIterator[ClusterImage]:
    """Yield the images with the items of the changed keys read again, at least one.

    Each adds to the changes of the one before. Only the last one has the version.
    """
    changed = await _read(store, [key for key in keys if shows(image, key.collection)], image)
    portions = _portions(changed, image)
    for portion in portions[:-1]:
        image = await merge(store, image, portion, image)
        yield image
        await asyncio.sleep(0)
    yield await merge(store, dataclasses.replace(image, version=version), portions[-1], image)


def _portions(
    changed: Mapping[ItemKey, Item | None], image: ClusterImage
) -> list[dict[ItemKey, Item | None]]:
    """Split the changes into one portion an image; the changes of a topic stay together.

    Brokers, settings and tombstones come first, because later items may name them.
    """
    by_topic: defaultdict[str, dict[ItemKey, Item | None]] = defaultdict(dict)
    portions: list[dict[ItemKey, Item | None]] = [{}]
    for key, item in changed.items():
        if len(portions[-1]) == CHANGES_PER_IMAGE_MAX:
            portions.append({})
        if key.collection == records.TOPIC_COLLECTION:
            by_topic[key.key][key] = item
        elif key.collection.startswith(PARTITION_COLLECTION_PREFIX):
            topic_id = parse_id(key.collection.removeprefix(PARTITION_COLLECTION_PREFIX))
            name = None if topic_id is None else image.topic_names.get(topic_id)
            by_topic["" if name is None else name][key] = item
        else:
            portions[-1][key] = item
    size = len(portions[-1])
    for name, changes in by_topic.items():
        weight = _weight(changes, image.partitions(name))
        if size and size + weight > CHANGES_PER_IMAGE_MAX:
            portions.append({})
            size = 0
        portions[-1].update(changes)
        size += weight
    return portions


def _weight(changes: Mapping[ItemKey, Item | None], known: Sequence[Partition]) -> int:
    """Return about how many items of a topic its changes make the image compare."""
    counts = [len(changes)]
    for key, item in changes.items():
        if key.collection == records.TOPIC_COLLECTION:
            count = None if item is None else item.body.get("partition_count")
            counts += [len(known), count if isinstance(count, int) else 0]
    return max(counts)


async def _read(
    store: MetadataStore, keys: Iterable[ItemKey], image: ClusterImage
) -> dict[ItemKey, Item | None]:
    """Return the items of the keys, ``None`` for those that do not exist."""
    by_collection: defaultdict[str, list[ItemKey]] = defaultdict(list)
    for key in keys:
        by_collection[key.collection].append(key)
    found: dict[ItemKey, Item | None] = {
        key: None for some in by_collection.values() for key in some
    }
    to_list, to_get = [], []
    for collection, some in by_collection.items():
        known_count = _known_count(image, collection)
        if len(some) >= max(LIST_FROM_KEYS, known_count * LIST_FROM_SHARE):
            to_list.append(collection)
        else:
            to_get += some
    if to_get:
        found.update(await store.get_many(to_get))
    for collections in batched(to_list, COLLECTIONS_AT_ONCE_MAX):
        for items in await asyncio.gather(*map(store.list, collections)):
            found.update((item.id, item) for item in items if item.id in found)
    return found


def _known_count(image: ClusterImage, collection: str) -> int:
    """Return about how many items a listing would bring; 0 where few can be."""
    known: Mapping[str, Sized] = {
        records.TOPIC_COLLECTION: image.topics,
        records.DELETED_TOPIC_COLLECTION: image.deleted_topics,
        GROUP_CONFIG_COLLECTION: image.group_configs,
        CLIENT_METRICS_COLLECTION: image.client_metrics,
        SCRAM_CREDENTIAL_COLLECTION: image.scram_users.records,
        DELEGATION_TOKEN_COLLECTION: image.delegation_tokens.records,
        ACL_COLLECTION: image.acls.records,
        ROLE_COLLECTION: image.roles.records,
        QUOTA_COLLECTION: image.quotas.records,
    }
    if collection in known:
        return len(known[collection])
    topic_id = parse_id(collection.removeprefix(PARTITION_COLLECTION_PREFIX))
    return 0 if topic_id is None else len(image.partitions_by_topic.get(topic_id, ()))
