"""Checks the schema registry's journal in the bucket: every object that a restoration needs."""

from __future__ import annotations

from tidelog_core.metadata.schema_records import (
    SCHEMA_CONTEXT_COLLECTION,
    SchemaJournal,
    schema_journal_key,
)
from tidelog_core.metadata.store import Item, ItemKey, KeyRange, MetadataStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_reading import read_journal, read_texts
from tidelog_core.schema_registry.journal.journal_repair import compare
from tidelog_core.tier.keys import schema_key, schemas_prefix
from tidelog_core.verification.segment_check import Problem

NOT_WHOLE = (
    "it lacks schemas of the metadata store that older programs have registered: start a node that"
    " serves the registry, which copies them"
)
LOST_TEXT = "the metadata store has lost this schema: register its text again, it keeps its id"
DIFFERS = (
    "the metadata store and the journal in the bucket say different things of this item: see"
    " «If the metadata store was set back» in docs/schema-registry.md"
)
MALFORMED = (
    "the metadata store cannot read this item, calls that need it are refused: see «If an item is"
    " malformed» in docs/schema-registry.md"
)
NAMED_MAX = 100  # items


async def check_schemas(
    objects: ObjectStore, cluster_id: str, store: MetadataStore | None = None
) -> list[Problem]:
    """Return the journal's problems; with a metadata store also the entries it lacks."""
    problems = await _problems(objects, cluster_id, store)
    if problems:  # A registry that runs may have removed what was listed: read it again.
        again = await _problems(objects, cluster_id, store)
        problems = {key: text for key, text in again.items() if key in problems}
    return [Problem(None, key, text) for key, text in problems.items()]


async def _problems(
    objects: ObjectStore, cluster_id: str, store: MetadataStore | None
) -> dict[str, str]:
    item = None if store is None else await store.get(schema_journal_key())
    has_all = store is None or not await store.list(
        SCHEMA_CONTEXT_COLLECTION, keys=KeyRange(limit=1)
    )
    found = await read_journal(objects, cluster_id)
    problems: dict[str, str] = {}
    if store is not None and item is not None:
        problems = await _differences(objects, cluster_id, store, item)
    async for _ in read_texts(objects, cluster_id, found, found.state.texts):
        pass
    problems |= dict(found.problems)
    if item is not None:
        position = SchemaJournal.from_item(item)
        has_all, sequence = position.is_whole, position.sequence
        if sequence > found.listing.last:
            text = "it is not there, and the metadata store has its changes"
            problems.setdefault(schema_key(cluster_id, sequence), text)
    if not has_all:
        problems[schemas_prefix(cluster_id)] = NOT_WHOLE
    return problems


async def _differences(
    objects: ObjectStore, cluster_id: str, store: MetadataStore, item: Item
) -> dict[str, str]:
    """Return the differences between the metadata store and the journal up to its position."""
    position = SchemaJournal.from_item(item)
    found = await read_journal(objects, cluster_id, up_to=position.sequence)
    compared = await compare(store, found)
    problems = {_name(one): LOST_TEXT for one in compared.lost_texts[:NAMED_MAX]}
    problems |= {_name(one): MALFORMED for one in compared.malformed[:NAMED_MAX]}
    if not found.lost and position.is_whole:
        named = set(found.orphaned_texts)  # by the entry that they miss
        differing = [one for one in compared.differing if one not in named]
        problems |= {_name(one): DIFFERS for one in differing[:NAMED_MAX]}
    return problems


def _name(key: ItemKey) -> str:
    return f"{key.collection}/{key.key}"
