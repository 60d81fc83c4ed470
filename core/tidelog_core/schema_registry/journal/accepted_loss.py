"""Accepts that the bucket has lost the newest entry of the registry's journal.

Without that entry a process cannot tell whether its bucket is the right one, and changes nothing.
So a person decides. The entry is declared void, and the next node that serves the registry writes
all items into the journal again, as the metadata store has them.
"""

from __future__ import annotations

from dataclasses import replace

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptObject, ObjectNotFound, SchemasMovedOn, VersionConflict
from tidelog_core.metadata.records import check, put
from tidelog_core.metadata.schema_records import SchemaJournal
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.committer import JOURNAL, JOURNAL_NAME
from tidelog_core.schema_registry.journal.journal_gaps import LostChanges
from tidelog_core.schema_registry.journal.journal_objects import JournalEntry, void_object
from tidelog_core.schema_registry.journal.journal_repair import WRITTEN_AT_ONCE
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.tier.persisting import persist


async def newest_loss(store: MetadataStore, objects: ObjectStore, cluster_id: str) -> str | None:
    """Return the key of the newest entry if it is lost, ``None`` if it is there or void."""
    position = await _position(store)
    key = schema_key(cluster_id, position.sequence)
    try:
        await objects.head(schema_key(cluster_id, position.sequence, SchemaObject.VOID))
        return None
    except ObjectNotFound:
        pass
    try:
        entry = JournalEntry.parse(await objects.get(key), key=key)
    except (ObjectNotFound, CorruptObject):
        return key
    if entry.store_id != position.store_id:
        raise SchemasMovedOn(f"{key} is of another metadata store")
    return None


async def accept_loss(
    store: MetadataStore, objects: ObjectStore, cluster_id: str, key: str
) -> None:
    """Declare the newest entry void. Durable on return; to repeat it is safe.

    ``key`` is the one that ``newest_loss`` has named. Call it only if no node serves the registry.
    Raises ``VersionConflict`` if one does: the newest entry may be another one by now.
    """
    position = await _position(store)
    if key != schema_key(cluster_id, position.sequence):
        raise VersionConflict([JOURNAL_NAME])
    # Before all else: once the entry is void, nothing shows that it may have given out an id.
    raised = await LostChanges(store, objects, cluster_id).raised(position)
    for some in batched(raised, WRITTEN_AT_ONCE):
        await store.commit(some, checks=[check(position)])
    # First: with the void entry alone nobody would know that its items are not in the journal.
    await store.commit([put(replace(position, is_whole=False), is_logged=False)])
    key = schema_key(cluster_id, position.sequence, SchemaObject.VOID)
    await persist(objects, key, void_object(position.sequence, position.store_id))


async def _position(store: MetadataStore) -> SchemaJournal:
    item = await store.get(JOURNAL)
    if item is None:
        raise SchemasMovedOn("the metadata store has no journal of schemas")
    return SchemaJournal.from_item(item)
