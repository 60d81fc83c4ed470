"""The registry's items as the bucket has them, for readers without a metadata store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tidelog_core.metadata.schema_records import (
    SCHEMA_IDENTITY_COLLECTION_PREFIX,
    SCHEMA_SUBJECT_COLLECTION,
    schema_identity_key,
)
from tidelog_core.metadata.store import Body, Item, ItemKey
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_objects import JournalState, is_text
from tidelog_core.schema_registry.journal.journal_reading import (
    FoundJournal,
    JournalListing,
    read_journal,
    read_texts,
)

_VERSION = 1  # Items in the bucket have none.


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """The subjects of a registry, and where the texts are. It can be sent to other processes."""

    cluster_id: str
    subjects: Mapping[ItemKey, Body]
    texts: Mapping[ItemKey, int]  # the entry that has each
    ids: Mapping[ItemKey, int] = field(default_factory=dict)  # of schemas, by their identities

    def id_of(self, context: str, guid: str) -> int | None:
        """Return the id of the schema with a guid, ``None`` if there is none."""
        return self.ids.get(schema_identity_key(context, guid))

    def read_from(self, objects: ObjectStore) -> BucketItems:
        """Return the items, whose texts are read when they are asked for."""
        return BucketItems(objects, self)


async def read_index(objects: ObjectStore, cluster_id: str) -> tuple[BucketIndex, list[str]]:
    """Return the index of the bucket's registry, and its problems. Raises the store's errors."""
    found = await read_journal(objects, cluster_id)
    subjects = {
        key: body
        for key, body in found.state.items.items()
        if key.collection == SCHEMA_SUBJECT_COLLECTION
    }
    ids = {}
    for key, body in found.state.items.items():
        number = body.get("schema_id")
        if key.collection.startswith(SCHEMA_IDENTITY_COLLECTION_PREFIX) and type(number) is int:
            ids[key] = number
    problems = [f"{key}: {problem}" for key, problem in found.problems]
    return BucketIndex(cluster_id, subjects, found.state.texts, ids), problems


class BucketItems:
    """Subjects and texts, an ``ItemSource``. For any task."""

    def __init__(self, objects: ObjectStore, index: BucketIndex) -> None:
        self._objects = objects
        self._index = index

    async def get(self, id: ItemKey) -> Item | None:
        """Return the item, or ``None`` if the bucket has none."""
        return (await self.get_many([id])).get(id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        """Return the items that the bucket has; a text that cannot be read is not there."""
        bodies = {key: self._index.subjects[key] for key in ids if key in self._index.subjects}
        texts = [key for key in ids if is_text(key) and key in self._index.texts]
        state = JournalState(texts={key: self._index.texts[key] for key in texts})
        found = FoundJournal(JournalListing(), state)
        async for some in read_texts(self._objects, self._index.cluster_id, found, texts):
            bodies |= some
        return {key: Item(key, _VERSION, body) for key, body in bodies.items()}

    async def list(self, collection: str, *, prefix: str = "") -> list[Item]:
        """Return the subjects whose name starts with ``prefix``, in order."""
        keys = [
            key
            for key in sorted(self._index.subjects)
            if key.collection == collection and key.key.startswith(prefix)
        ]
        return [Item(key, _VERSION, self._index.subjects[key]) for key in keys]
