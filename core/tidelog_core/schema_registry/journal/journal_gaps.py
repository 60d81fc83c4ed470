"""Has no id given twice where the bucket has lost an entry that the metadata store may lack too.

A lost entry is written again from the metadata store (``journal_repair``). But a store that was
set back may have the position behind that entry, and not what the entry wrote. Then nothing says
which id it gave out. What is left proves this much:

- *a later entry writes the counter of a context*: the counter is right after it
- *items are older than an entry that is there*: the store was set back, and gets what the entry has
- *items are newer than all entries that are there*: the lost entries wrote them, so they show

If fewer changes show than entries are lost, counters that no later entry has written go on far
above all that is known. An id that is not used costs nothing; one that is used twice costs records.

A malformed item shows nothing, and is left as it is, so only changes that need it are refused. A
malformed counter is written again, far above all that is known: once the lost entry is void,
nothing would tell that a repaired counter may be too low.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidelog_core.batched import batched
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import check, put
from tidelog_core.metadata.schema_records import (
    LATER_CONTEXTS,
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_SETTINGS_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaContext,
    SchemaIdentity,
    SchemaJournal,
    SchemaSubject,
    SchemaText,
)
from tidelog_core.metadata.store import (
    ABSENT,
    UNREADABLE_VERSION,
    Body,
    Item,
    ItemKey,
    KeyRange,
    MetadataStore,
    Write,
)
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_objects import is_text, same_body
from tidelog_core.schema_registry.journal.journal_reading import FoundJournal, read_journal
from tidelog_core.schema_registry.journal.journal_repair import WRITTEN_AT_ONCE, compare
from tidelog_core.schema_registry.journal.journal_replay import JournalReplay
from tidelog_core.schema_registry.reading import record_in, record_of
from tidelog_core.schema_registry.scopes import ALL_CONTEXTS
from tidelog_core.schemas.model import GIVEN_MAX, ID_MAX, Mode
from tidelog_core.schemas.subject_names import DEFAULT_CONTEXT, SubjectName

logger = logging.getLogger(__name__)

ID_JUMP = 1_000  # of a counter, if an object of the journal is lost; more than entries may be lost

# The last write of each item in the entries that are there, and the number of its entry.
Known = Mapping[ItemKey, tuple[int, Write]]


def jumped(context: SchemaContext, known: int, scopes: Collection[str]) -> SchemaContext:
    """Return a counter above all ids that lost entries may have given out.

    ``known`` is the greatest id that is known, ``scopes`` are those of the mode IMPORT.
    """
    last_id = min(max(context.last_id, known) + ID_JUMP, ID_MAX)
    may_import = any(
        context.context == LATER_CONTEXTS
        or one == ALL_CONTEXTS
        or SubjectName.parse(one).context == context.context
        for one in scopes
    )
    return replace(context, last_id=max(last_id, GIVEN_MAX) if may_import else last_id)


def import_scopes(bodies: Mapping[ItemKey, Body]) -> set[str]:
    """Return the scopes whose settings have the mode IMPORT: their clients give ids."""
    return {
        key.key
        for key, body in bodies.items()
        if key.collection == SCHEMA_SETTINGS_COLLECTION and body.get("mode") == Mode.IMPORT.value
    }


@dataclass(slots=True)
class _Shown:
    """What the metadata store shows of lost entries."""

    ids: set[tuple[str, int]] = field(default_factory=set)  # with their contexts
    other_count: int = 0  # changes that gave no id, at least

    def greatest(self, context: str) -> int:
        """Return the greatest id of a context, 0 if none shows."""
        return max((number for name, number in self.ids if name == context), default=0)


class LostChanges:
    """Finds the changes of lost entries near the position. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._replay = JournalReplay(store, objects, cluster_id)

    async def raised(self, position: SchemaJournal) -> list[Write]:
        """Return writes of counters that lost entries may have moved; empty if none is lost.

        Items that are older than entries which are there are written first. Raises
        ``VersionConflict`` if the position is another one by now, and the stores' errors.
        """
        nearby = await self._replay.around_losses(position)
        if nearby is None:
            return []
        found = await read_journal(self._objects, self._cluster_id, up_to=position.sequence)
        lost = [one for one in nearby.lost if one > found.checkpoint]
        if not lost:
            return []  # The checkpoint has what they wrote.
        known = {write.id: (one.sequence, write) for one in nearby.entries for write in one.writes}
        if await self._is_brought_forward(position, known, found):
            logger.warning(
                "metadata store was set back, and entries of the schema journal are lost",
                extra={"sequences": lost[:10], "hint": "`tidelog verify` names what differs"},
            )
        shown = await self._shown(found, known)
        writes = await self._raised(found, known, shown, lost)
        if writes:
            logger.warning(
                "lost entries of the schema journal may have given out ids, some are passed over",
                extra={"sequences": lost[:10], "contexts": [one.id.key for one in writes]},
            )
        return writes

    async def _is_brought_forward(
        self, position: SchemaJournal, known: Known, found: FoundJournal
    ) -> bool:
        """If the store was set back, write its items as the entries that are there have them.

        Return whether it was.
        """
        items = await self._store.get_many(list(known))
        older = [
            replace(write, expected_version=_version(items.get(key)))
            for key, (_, write) in known.items()
            if not _is(items.get(key), write)
            and UNREADABLE_VERSION < _version(items.get(key)) <= write.expected_version
        ]
        counters = {one.context: one.last_id for one, _ in await self._contexts(found)}
        is_back = any(one.expected_version != ABSENT for one in older) or any(
            counters.get(name, 0) < last_id for name, last_id in _counters(found).items()
        )
        if not is_back:
            return False  # What is not there may have been deleted by a lost entry.
        for some in batched(older, WRITTEN_AT_ONCE):
            await self._store.commit(some, checks=[check(position)])
        return True

    async def _shown(self, found: FoundJournal, known: Known) -> _Shown:
        """Return the items that are newer in the store than in the entries."""
        compared = await compare(self._store, found)
        items = await self._store.get_many(compared.differing)
        shown = _Shown()
        counters = _counters(found)
        has_other = False
        for key in compared.differing:
            item = items.get(key)
            last = known.get(key)
            if item is None:
                has_other = has_other or _was_deleted(record_in(found.state.items, key))
            elif last is None or item.version > last[1].expected_version + 1:
                new = {one for one in _ids_in(item) if one[1] > counters.get(one[0], 0)}
                shown.ids |= new
                is_settings = key.collection == SCHEMA_SETTINGS_COLLECTION
                shown.other_count += is_settings  # Each change of settings is one entry.
                has_other = has_other or not (new or is_settings or _is_counter(key))
        shown.other_count += has_other  # They may all be of one entry.
        for key in compared.lost_texts:
            shown.ids |= {one for one in _id_of_text(key) if one[1] > counters.get(one[0], 0)}
        return shown

    async def _raised(
        self, found: FoundJournal, known: Known, shown: _Shown, lost: Sequence[int]
    ) -> list[Write]:
        """Return the counters that change; one that an entry behind all lost ones has is right."""
        is_all_shown = len(shown.ids) + shown.other_count >= len(lost)
        scopes = await self._import_scopes(found)
        writes = []
        for context, is_malformed in await self._contexts(found):
            greatest = shown.greatest(context.context)
            sequence, _ = known.get(context.item_id, (0, None))
            if sequence > lost[-1] or (is_all_shown and not is_malformed):
                after = replace(context, last_id=max(context.last_id, greatest))
            else:
                after = jumped(context, greatest, scopes)
            if is_malformed or after.last_id != context.last_id:
                writes.append(put(after, is_logged=False))
        return writes

    async def _import_scopes(self, found: FoundJournal) -> set[str]:
        """Return the scopes of the mode IMPORT; malformed settings may have it."""
        settings = await self._store.list(SCHEMA_SETTINGS_COLLECTION)
        scopes = import_scopes({one.id: one.body for one in settings})
        scopes |= import_scopes(found.state.items)
        return scopes | {one.id.key for one in settings if record_of(one) is None}

    async def _contexts(self, found: FoundJournal) -> list[tuple[SchemaContext, bool]]:
        """Return the counters, and whether they are malformed: then they begin at the known ids.

        Also those of the default context, and of contexts that are not there yet.
        """
        items = await self._store.list(SCHEMA_CONTEXT_COLLECTION)
        counters = _counters(found)
        contexts: list[tuple[SchemaContext, bool]] = []
        for item in items:
            record = record_of(item)
            if isinstance(record, SchemaContext):
                contexts.append((record, False))
            elif item.version != UNREADABLE_VERSION:  # Nobody can write that one.
                last_id = max(counters.get(item.id.key, 0), await self._greatest_text(item.id.key))
                context = SchemaContext(context=item.id.key, last_id=last_id, version=item.version)
                contexts.append((context, True))
        stored = {one.id.key for one in items}
        missing = [one for one in (DEFAULT_CONTEXT, LATER_CONTEXTS) if one not in stored]
        return [*contexts, *((SchemaContext(context=one, last_id=0), False) for one in missing)]

    async def _greatest_text(self, context: str) -> int:
        """Return the greatest id in a context whose text is in the metadata store."""
        keys = KeyRange(limit=1, is_descending=True)
        collection = f"{SCHEMA_TEXT_COLLECTION_PREFIX}{context}"
        last = await self._store.list(collection, keys=keys)
        return max((number for one in last for _, number in _id_of_text(one.id)), default=0)


def _counters(found: FoundJournal) -> dict[str, int]:
    """Return the last id of each context, as the entries that are there have it."""
    counters = {}
    for key, body in found.state.items.items():
        if _is_counter(key):
            last_id = body.get("last_id")
            counters[key.key] = last_id if isinstance(last_id, int) else 0
    return counters


def _is_counter(key: ItemKey) -> bool:
    return key.collection == SCHEMA_CONTEXT_COLLECTION


def _is(item: Item | None, write: Write) -> bool:
    if item is not None and write.body is not None and is_text(write.id):
        return True  # Under one id there is never another text.
    return same_body(None if item is None else item.body, write.body)


def _version(item: Item | None) -> int:
    return ABSENT if item is None else item.version


def _was_deleted(record: Record | None) -> bool:
    """Whether a subject that is gone can have been deleted: all of its versions were, softly."""
    return isinstance(record, SchemaSubject) and not record.live


def _ids_in(item: Item) -> set[tuple[str, int]]:
    """Return the ids that an item names, with their contexts."""
    record = record_of(item)
    if isinstance(record, SchemaText):
        return set(_id_of_text(item.id))
    if isinstance(record, SchemaIdentity):
        return {(record.context, one.schema_id) for one in record.uses}
    if isinstance(record, SchemaSubject):
        context = SubjectName.parse(record.subject).context
        own = {(context, one.schema_id) for one in record.versions}
        return own | {(one.context, one.schema_id) for one in record.referrers}
    return set()


def _id_of_text(key: ItemKey) -> Sequence[tuple[str, int]]:
    context = key.collection.removeprefix(SCHEMA_TEXT_COLLECTION_PREFIX)
    return [(context, int(key.key))] if key.key.isascii() and key.key.isdigit() else []
