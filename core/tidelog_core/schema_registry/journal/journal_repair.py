"""Writes items into the registry's journal again, as the metadata store has them.

That is for items that are older than the journal, and for those of an entry that the bucket has
lost. Each is written as it is, by a change like any other. So it is safe beside other changes, and
to repeat it does no harm. A lost entry is declared void last: the journal says the same without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog_core.batched import batched
from tidelog_core.metadata.schema_records import (
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_IDENTITY_COLLECTION_PREFIX,
    SCHEMA_SETTINGS_COLLECTION,
    SCHEMA_SUBJECT_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaJournal,
    SchemaSubject,
    schema_text_key,
)
from tidelog_core.metadata.store import ANY_VERSION, Item, ItemKey, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import retried
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.committer import Committer
from tidelog_core.schema_registry.journal.journal_objects import is_text, same_body, void_object
from tidelog_core.schema_registry.journal.journal_reading import FoundJournal
from tidelog_core.schema_registry.reading import record_in, record_of
from tidelog_core.schemas.subject_names import SubjectName
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.tier.persisting import persist
from tidelog_core.turns import Turn

WRITTEN_AT_ONCE = 8  # items: of the longest schemas DynamoDB takes no more in one commit
ATTEMPTS_MAX = 20  # each conflict means that another writer succeeded
PAUSE_SECONDS_MAX = 0.05
LISTED_AT_ONCE = 200  # items that are in memory


async def collections_of(store: MetadataStore) -> list[str]:
    """Return the collections that have the registry's items."""
    found = [SCHEMA_CONTEXT_COLLECTION, SCHEMA_SETTINGS_COLLECTION, SCHEMA_SUBJECT_COLLECTION]
    for context in [one.id.key for one in await store.list(SCHEMA_CONTEXT_COLLECTION)]:
        found.append(f"{SCHEMA_TEXT_COLLECTION_PREFIX}{context}")
        found.append(f"{SCHEMA_IDENTITY_COLLECTION_PREFIX}{context}")
    return found


async def has_items(store: MetadataStore) -> bool:
    """Return whether the registry has anything."""
    one = KeyRange(limit=1)
    return any([await store.list(name, keys=one) for name in await collections_of(store)])


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a metadata store differs from a journal."""

    differing: Sequence[ItemKey]  # the journal has them otherwise, or one of the two has not
    lost_texts: Sequence[ItemKey]  # that versions have, and the metadata store has not
    malformed: Sequence[ItemKey] = ()  # in the metadata store; they are not compared


async def compare(store: MetadataStore, journal: FoundJournal) -> Comparison:
    """Compare all items. A text that only the store has lost does not count as differing.

    Of a malformed item the journal has what counts, so that stays there.
    """
    state, orphaned = journal.state, set(journal.orphaned_texts)
    differing: list[ItemKey] = []
    malformed: list[ItemKey] = []
    seen, used = set[ItemKey](), set[ItemKey]()
    turn = Turn()
    for collection in await collections_of(store):
        after: str | None = ""
        while after is not None:
            items = await _listed(store, collection, after, LISTED_AT_ONCE)
            for item in items:
                await turn.step()
                seen.add(item.id)
                record = record_of(item)
                if record is None:
                    malformed.append(item.id)
                    record = record_in(state.items, item.id)
                elif is_text(item.id):
                    if item.id not in state.texts or item.id in orphaned:
                        differing.append(item.id)
                elif not same_body(item.body, state.items.get(item.id)):
                    differing.append(item.id)
                if isinstance(record, SchemaSubject):
                    used |= _texts_of(record)
            after = items[-1].id.key if items else None
    removed = [key for key in (*state.items, *state.texts) if key not in seen and key not in used]
    return Comparison([*differing, *removed], sorted(used - seen), malformed)


async def _listed(store: MetadataStore, collection: str, after: str, count: int) -> list[Item]:
    keys = KeyRange(start=after, limit=count + 1)
    items = await store.list(collection, keys=keys)
    return [one for one in items if one.id.key != after][:count]


class JournalRepair:
    """Writes items into a journal again. For the tasks of one event loop."""

    def __init__(
        self, committer: Committer, store: MetadataStore, objects: ObjectStore, cluster_id: str
    ) -> None:
        self._committer = committer
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id

    async def write_all(self) -> None:
        """Write every item of the registry."""
        for collection in await collections_of(self._store):
            after: str | None = ""
            while after is not None:
                after = await retried(partial(self._write_some, collection, after))

    async def repair(self, journal: FoundJournal) -> SchemaJournal:
        """Write the content of lost entries into the journal again. Return a position after it.

        A text that the metadata store has lost too stays lost. Raises the stores' errors.
        """
        wanted = await (self._differing(journal) if journal.lost else self._orphaned(journal))
        for keys in batched(wanted, WRITTEN_AT_ONCE):
            await retried(
                partial(self._write, keys),
                attempts_max=ATTEMPTS_MAX,
                pause_seconds_max=PAUSE_SECONDS_MAX,
            )
        position = await self._committer.begin()
        assert position is not None
        for number in journal.lost:
            key = schema_key(self._cluster_id, number, SchemaObject.VOID)
            await persist(self._objects, key, void_object(number, position.store_id))
        return position

    async def _orphaned(self, found: FoundJournal) -> Sequence[ItemKey]:
        """Return the texts that the metadata store has, and whose entry the bucket has not."""
        texts = found.orphaned_texts
        here: list[ItemKey] = []
        for some in batched(texts, WRITTEN_AT_ONCE):
            here += await self._store.get_many(some)
        return here

    async def _differing(self, found: FoundJournal) -> Sequence[ItemKey]:
        """Return the items that the journal has otherwise than the metadata store, or has not."""
        return (await compare(self._store, found)).differing

    async def _write_some(self, collection: str, after: str) -> str | None:
        """Return the key of the last item that was written, ``None`` at the end."""
        begun = await self._committer.begin()
        some = await _listed(self._store, collection, after, WRITTEN_AT_ONCE)
        if not some:
            return None
        await self._commit(begun, some)
        return some[-1].id.key

    async def _write(self, keys: Sequence[ItemKey]) -> None:
        """Write the items as they are now; those that are not there are removed."""
        begun = await self._committer.begin()
        items = await self._store.get_many(keys)
        # None can come up before the commit: each change moves the position, which it expects.
        gone = [Write(one, None, ANY_VERSION, False) for one in keys if one not in items]
        await self._commit(begun, items.values(), gone)

    async def _commit(
        self, begun: SchemaJournal | None, items: Iterable[Item], gone: Sequence[Write] = ()
    ) -> None:
        writes = [
            Write(one.id, one.body, one.version, False)
            for one in items
            if record_of(one) is not None
        ]
        if writes or gone:
            await self._committer.commit(begun, [*writes, *gone])


def _texts_of(subject: SchemaSubject) -> set[ItemKey]:
    context = SubjectName.parse(subject.subject).context
    return {schema_text_key(context, one.schema_id) for one in subject.versions}
