"""Checks the schema registry's journal in the bucket: every object that a restoration needs."""

from __future__ import annotations

from tidelog_core.metadata.schema_records import (
    SCHEMA_CONTEXT_COLLECTION,
    SchemaJournal,
    schema_journal_key,
)
from tidelog_core.metadata.store import KeyRange, MetadataStore
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal_reading import read_journal, read_texts
from tidelog_core.tier.keys import schema_key, schemas_prefix
from tidelog_core.verification.segment_check import Problem

NOT_WHOLE = (
    "it lacks schemas of the metadata store that older programs have registered: start a node that"
    " serves the registry, which copies them"
)


async def check_schemas(
    objects: ObjectStore, cluster_id: str, store: MetadataStore | None = None
) -> list[Problem]:
    """Return the problems of the journal; with the metadata store also what it lacks of that."""
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
    async for _ in read_texts(objects, cluster_id, found, found.state.texts):
        pass
    problems = dict(found.problems)
    if item is not None:
        position = SchemaJournal.from_item(item)
        has_all, sequence = position.is_whole, position.sequence
        if sequence > found.listing.last:
            text = "it is not there, and the metadata store has its changes"
            problems.setdefault(schema_key(cluster_id, sequence), text)
    if not has_all:
        problems[schemas_prefix(cluster_id)] = NOT_WHOLE
    return problems
