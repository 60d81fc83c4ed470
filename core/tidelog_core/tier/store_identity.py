"""Recognizes the cluster's object store before a node writes to it.

A path may lead elsewhere from one day to the next: to an empty folder once a file system is not
mounted, or to another bucket after a change of a setting. Records acknowledged there would be
missing once the path is right again. So the store has an object with an id, which is created once,
and the metadata store has an item with the same id.

    <cluster id>/object-store.json  ->  item ``object-store``

The first node of a cluster writes the object and then the item; before the item nothing else is
written. If the item is missing, because the metadata was restored from the bucket, the object in
the store counts. If both are missing, the cluster is new, or of a program that noted no store: then
a store without the cluster's manifest is refused if the cluster has records in its store. A copy of
all objects is the same store.

What may interleave: two nodes without an item. With one store, they find the same object, as it is
created once. With two stores, the item decides, as it is created once too, and the node of the
other store is refused. A node that is killed in between leaves an object that counts later. In a
store that ignores ``If-None-Match`` the second of two first nodes may replace the object after the
item was written. Then both are refused until the store is accepted (``accept_store``).

A store that is accepted gets the manifests of the cluster and of all topics: nodes that run take
theirs to be there, and nothing can be restored without them. What may interleave with that:

- *A node has taken the store, and writes a newer manifest.* It stays, because manifests are only
  created here. A node that writes one later replaces what is there.
- *Settings change, or a topic is created.* The metadata are read after the item was written. Later
  changes are written by the leader, which compares the versions of topics' items.
- *A topic is deleted.* Its manifest may be created after its objects were deleted. The scrub
  deletes it.
- *The command is killed, or the store fails.* The next call creates what is missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol
from uuid import uuid4

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptObject, ObjectExists, ObjectNotFound, WrongObjectStore
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import (
    KnownObjectStore,
    known_object_store_key,
    put,
    segment_collection,
)
from tidelog_core.metadata.store import ABSENT, Item, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import update
from tidelog_core.model import RESERVED_TOPICS
from tidelog_core.objects.location import parse_object_location
from tidelog_core.objects.store import ObjectStore
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    store_identity_key,
    topic_manifest_key,
)
from tidelog_core.tier.manifest import ClusterManifest, StoreIdentityObject, TopicManifest

CALLS_AT_ONCE_MAX = 16  # of a store
FIRST = KeyRange(limit=1)


class ReadAndPut(Protocol):
    """The part of an object store with which it is recognized."""

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ``ObjectNotFound``."""

    async def put(self, key: str, data: bytes) -> None:
        """Store ``data``. Raises ``ObjectExists``."""


class Accepted(NamedTuple):
    """The ids of the cluster's store before and after it was accepted."""

    before: str | None  # None: the cluster had no known store
    now: str


class StoreIdentity:
    """A process's knowledge of its cluster's object store. For the tasks of one event loop."""

    def __init__(self, metadata: MetadataStore, image: Callable[[], ClusterImage]) -> None:
        """``image`` returns the newest image."""
        self._metadata = metadata
        self._image = image
        self._known: str | None = None  # the id in the metadata store; None: not read, or none yet

    @classmethod
    def at(
        cls, objects_url: str, metadata: MetadataStore, image: Callable[[], ClusterImage]
    ) -> StoreIdentity | None:
        """Return how the store at a location is recognized, ``None`` for one that is always new."""
        if parse_object_location(objects_url).scheme == "memory":
            return None
        return cls(metadata, image)

    async def is_known(self) -> bool:
        """Return whether the cluster has an object store. Raises the metadata store's errors."""
        return (self._known or await self._read_known()) is not None

    async def check(self, objects: ReadAndPut) -> None:
        """Make sure that this is the cluster's store; a store becomes it if the cluster has none.

        Durable on return. Raises ``WrongObjectStore``, and the errors of both stores.
        """
        cluster_id = self._image().cluster_id
        known = self._known or await self._read_known()
        if known is None:
            await self._require_first(objects, cluster_id)
            known = self._known = await _get_or_create_item(
                self._metadata, await _get_or_create_id(objects, cluster_id)
            )
        found = await _read_id(objects, cluster_id)
        if found == known:
            return
        if found is not None and found == await self._read_known():
            return  # It has been accepted since.
        what = "there is none" if found is None else f"its id is {found}"
        raise WrongObjectStore(
            f"this is not the object store of cluster {cluster_id}: that one has the id"
            f" {known} in {store_identity_key(cluster_id)}, here {what}"
        )

    async def _read_known(self) -> str | None:
        item = await self._metadata.get(known_object_store_key())
        self._known = None if item is None else KnownObjectStore.from_item(item).store_id
        return self._known

    async def _require_first(self, objects: ReadAndPut, cluster_id: str) -> None:
        """Raise ``WrongObjectStore`` if the cluster has records in a store that is not this one.

        Its metadata may be of a program that noted no store. Such a program wrote the cluster's
        manifest before it acknowledged or copied anything.
        """
        key = cluster_manifest_key(cluster_id)
        try:
            await objects.get(key)
        except ObjectNotFound:
            if await _has_records(self._metadata, self._image()):
                raise WrongObjectStore(
                    f"this is not the object store of cluster {cluster_id}: the cluster has"
                    f" records there, and this one has no object {key}"
                ) from None


async def accept_store(objects: ObjectStore, metadata: MetadataStore, cluster_id: str) -> Accepted:
    """Make this store the cluster's, whatever it was before. Durable on return, and idempotent.

    A node that has checked another store goes on writing that. Raises the errors of both stores.
    """
    try:
        store_id = await _get_or_create_id(objects, cluster_id)
    except CorruptObject:
        store_id = str(uuid4())
        content = StoreIdentityObject(store_id=store_id)
        await objects.replace(store_identity_key(cluster_id), content.to_bytes())

    def replace_known_id(item: Item | None) -> tuple[str | None, Write | None]:
        known = None if item is None else KnownObjectStore.from_item(item)
        if known is not None and known.store_id == store_id:
            return store_id, None
        version = ABSENT if known is None else known.version
        write = put(KnownObjectStore(store_id=store_id, version=version), is_logged=False)
        return None if known is None else known.store_id, write

    before = await update(metadata, known_object_store_key(), replace_known_id)
    await _create_manifests(objects, metadata, cluster_id)
    return Accepted(before, store_id)


async def _create_manifests(objects: ObjectStore, metadata: MetadataStore, cluster_id: str) -> None:
    """Create the manifests that the store lacks, of the cluster and of all topics."""
    view = ClusterView(metadata)
    await view.refresh()
    image = view.image

    async def create(key: str, manifest: ClusterManifest | TopicManifest) -> None:
        with suppress(ObjectExists):
            await objects.put(key, manifest.to_bytes())

    # First: it says what the others belong to.
    await create(cluster_manifest_key(cluster_id), ClusterManifest(cluster_id=cluster_id))
    topics = [one for one in image.topics.values() if one.name not in RESERVED_TOPICS]
    for some in batched(topics, CALLS_AT_ONCE_MAX):
        creations = [
            create(
                topic_manifest_key(cluster_id, one.name, one.topic_id),
                TopicManifest.of(one, image),
            )
            for one in some
        ]
        for done in await asyncio.gather(*creations, return_exceptions=True):
            if done is not None:
                raise done


async def _has_records(metadata: MetadataStore, image: ClusterImage) -> bool:
    """Return whether any partition has records in a chain or a segment in the tier."""
    partitions = [one for some in image.partitions_by_topic.values() for one in some]
    if any(one.wal for one in partitions):
        return True
    for some in batched(partitions, CALLS_AT_ONCE_MAX):
        names = [segment_collection(one.topic_id, one.partition) for one in some]
        if any(await asyncio.gather(*(metadata.list(name, keys=FIRST) for name in names))):
            return True
    return False


async def _get_or_create_id(objects: ReadAndPut, cluster_id: str) -> str:
    """Return the id in the object store; a store without one gets a new one."""
    found = await _read_id(objects, cluster_id)
    if found is not None:
        return found
    new_id = str(uuid4())
    content = StoreIdentityObject(store_id=new_id)
    try:
        await objects.put(store_identity_key(cluster_id), content.to_bytes())
    except ObjectExists:
        return await _read_id(objects, cluster_id) or new_id
    return new_id


async def _read_id(objects: ReadAndPut, cluster_id: str) -> str | None:
    key = store_identity_key(cluster_id)
    try:
        return StoreIdentityObject.parse(await objects.get(key), key=key).store_id
    except ObjectNotFound:
        return None


async def _get_or_create_item(metadata: MetadataStore, store_id: str) -> str:
    """Return the id in the metadata store; it becomes ``store_id`` if there is none."""

    def create(item: Item | None) -> tuple[str, Write | None]:
        if item is not None:
            return KnownObjectStore.from_item(item).store_id, None
        return store_id, put(KnownObjectStore(store_id=store_id), is_logged=False)

    return await update(metadata, known_object_store_key(), create)
