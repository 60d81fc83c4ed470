"""Restores the schema registry from its journal in the bucket.

A restoration puts an entry of its own behind the last one, which names the new metadata store. A
node of the old cluster that still runs finds the number taken by another store's entry, and
answers no registration any more: all that it answered before has been restored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from tidelog_core.errors import CorruptItem, ObjectExists, VersionConflict
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import put
from tidelog_core.metadata.schema_records import (
    LATER_CONTEXTS,
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_SUBJECT_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaContext,
    SchemaJournal,
    SchemaSubject,
    schema_context_key,
    schema_journal_key,
)
from tidelog_core.metadata.store import (
    ANY_VERSION,
    Body,
    Item,
    ItemKey,
    MetadataStore,
    Write,
)
from tidelog_core.objects.store import ObjectStore
from tidelog_core.restoration.selection import Remark
from tidelog_core.schema_registry.journal.journal_gaps import import_scopes, jumped
from tidelog_core.schema_registry.journal.journal_objects import JournalEntry
from tidelog_core.schema_registry.journal.journal_reading import (
    FoundJournal,
    list_journal,
    read_journal,
    read_texts,
)
from tidelog_core.schema_registry.reading import record_in
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName
from tidelog_core.tier.keys import schema_key

SEAL_ATTEMPTS_MAX = 1_000  # each means that a node of the old cluster has put one more entry
COMMIT_BYTES_MAX = 2_000_000
COMMIT_ITEMS_MAX = 80
_READ_VERSION = 1


@dataclass(frozen=True, slots=True)
class RestoredSchemas:
    """The restored schemas of a registry."""

    subject_count: int = 0
    schema_count: int = 0
    problems: tuple[Remark, ...] = ()


async def restore_schemas(
    objects: ObjectStore, cluster_id: str, store: MetadataStore | None
) -> RestoredSchemas:
    """Write the registry of the bucket into the store; ``None``: only read it.

    Durable on return. A registry that the store has already is left as it is.
    """
    listing = await list_journal(objects, cluster_id)
    if not any(listing.numbers.values()):
        return RestoredSchemas()
    if store is None or await store.get(schema_journal_key()) is not None:
        return await _write(objects, cluster_id, await read_journal(objects, cluster_id), None)
    position = await _seal(objects, cluster_id)
    restored = await _write(objects, cluster_id, await read_journal(objects, cluster_id), store)
    await store.commit([put(position, is_logged=False)])  # Last: it says that all is there.
    return restored


async def _seal(objects: ObjectStore, cluster_id: str) -> SchemaJournal:
    """Put the entry that ends the old journal, and return the position behind it."""
    position = SchemaJournal(store_id=uuid4(), sequence=0, void_count=0, is_whole=True)
    first = (await list_journal(objects, cluster_id)).last + 1
    for number in range(first, first + SEAL_ATTEMPTS_MAX):
        entry = JournalEntry(number, position.store_id, ())
        try:
            await objects.put(schema_key(cluster_id, number), entry.to_bytes())
            return replace(position, sequence=number)
        except ObjectExists:
            continue
    raise VersionConflict([(SCHEMA_CONTEXT_COLLECTION, "nodes of the old cluster still register")])


async def _write(
    objects: ObjectStore, cluster_id: str, found: FoundJournal, store: MetadataStore | None
) -> RestoredSchemas:
    schemas = 0
    async for texts in read_texts(objects, cluster_id, found, found.state.texts):
        schemas += len(texts)
        await _commit(store, list(texts.items()))
    items = dict(found.state.items)
    if found.lost:
        _jump(items, found)
    await _commit(store, list(items.items()))
    names = [key for key in items if key.collection == SCHEMA_SUBJECT_COLLECTION]
    subjects = sum(_has_versions(record_in(items, key)) for key in names)
    problems = tuple(Remark(key, text) for key, text in found.problems)
    return RestoredSchemas(subjects, schemas, problems)


async def _commit(store: MetadataStore | None, items: Sequence[tuple[ItemKey, Body]]) -> None:
    if store is None:
        return
    some: list[Write] = []
    size = 0
    for key, body in items:
        more = len(json.dumps(body, default=list))
        if some and (size + more > COMMIT_BYTES_MAX or len(some) >= COMMIT_ITEMS_MAX):
            await store.commit(some)
            some, size = [], 0
        some.append(Write(key, body, ANY_VERSION, is_logged=False))
        size += more
    if some:
        await store.commit(some)


def _jump(items: dict[ItemKey, Body], found: FoundJournal) -> None:
    """Have every context go on far above its last known id: a lost entry may have had more.

    A lost entry may also have been the one that has the context.
    """
    greatest = _greatest_ids(found)
    scopes = import_scopes(items)
    for name, last_id in greatest.items():
        context = SchemaContext(context=name, last_id=last_id)
        items.setdefault(schema_context_key(name), context.to_body())
    for key, body in list(items.items()):
        if key.collection != SCHEMA_CONTEXT_COLLECTION:
            continue
        try:
            context = SchemaContext.from_item(Item(key, _READ_VERSION, body))
        except CorruptItem as error:
            found.problems.append((f"{key.collection}/{key.key}", str(error)))
            continue
        known = greatest.get(context.context, 0)
        items[key] = jumped(context, known, scopes).to_body()


def _greatest_ids(found: FoundJournal) -> dict[str, int]:
    """Return the contexts that are known without their own items, with the greatest known id."""
    greatest = {DEFAULT_CONTEXT: 0, LATER_CONTEXTS: 0}
    for key in found.state.items:
        if key.collection == SCHEMA_SUBJECT_COLLECTION:
            greatest.setdefault(SubjectName.parse(key.key).context, 0)
    for key in found.state.texts:
        name = key.collection.removeprefix(SCHEMA_TEXT_COLLECTION_PREFIX)
        if key.key.isascii() and key.key.isdigit():
            greatest[name] = max(greatest.get(name, 0), int(key.key))
    return greatest


def _has_versions(record: Record | None) -> bool:
    return isinstance(record, SchemaSubject) and bool(record.versions)
