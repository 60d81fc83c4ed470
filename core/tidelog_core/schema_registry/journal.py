"""Has every change of the registry in the bucket before it is made, so that no loss takes one back.

Theory of operation. The journal's entries are numbered without gaps, and an entry is put only if
its number is free: that puts all changes of all processes in one order. The item ``SchemaJournal``
says which entry the metadata store has. A change takes these steps:

    begin    the journal's position is read, then what the change is decided from
    put      the writes go to the bucket as the entry behind that position
    commit   the writes are done, and the position moves, in one commit
    answer   the client hears of it

Nothing shows in the metadata store before the bucket has it. What a process leaves that ends
between two steps:

- *before the put*: nothing.
- *after the put*: an entry that nobody was told of. Nobody can put another one with its number, so
  the next writer makes its commit first. A restoration takes it too. Either is allowed: the client
  was told nothing.
- *after the commit*: a change whose client sends it again, which is safe.

A put that found its number taken tells that another writer was faster. An entry that was decided at
a position stays valid until that position moves, since every change moves it. Only a process of a
version without the journal can make it invalid: it is then declared void, in the bucket first. The
items of a commit by another process may show one after the other, the position last. So an entry is
void only if its commit is refused several times while the position stays.

Every 128th entry is followed by a checkpoint. Entries that are 1,024 older are removed then, if
they have no text that counts: as long as a position is no older than that, a successful put means
that its number had not been used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Protocol
from uuid import uuid4

from tidelog_core.errors import (
    CommitTooLarge,
    ItemTooLarge,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SchemasMovedOn,
    StoreUnavailable,
    TidelogError,
    VersionConflict,
)
from tidelog_core.metadata.records import put, restoration_key
from tidelog_core.metadata.schema_records import (
    SCHEMA_CONTEXT_COLLECTION,
    SCHEMA_IDENTITY_COLLECTION_PREFIX,
    SCHEMA_SETTINGS_COLLECTION,
    SCHEMA_SUBJECT_COLLECTION,
    SCHEMA_TEXT_COLLECTION_PREFIX,
    SchemaContext,
    SchemaJournal,
    schema_journal_key,
)
from tidelog_core.metadata.store import ABSENT, Check, Item, KeyRange, MetadataStore, Write
from tidelog_core.metadata.update import retried
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal_objects import JournalEntry, void_object
from tidelog_core.schema_registry.journal_reading import FoundJournal, read_journal
from tidelog_core.tier.keys import (
    SchemaObject,
    cluster_manifest_key,
    parse_schema_key,
    schema_key,
    schemas_prefix,
)
from tidelog_core.tier.manifest import ClusterManifest
from tidelog_core.tier.persisting import persist

logger = logging.getLogger(__name__)

CHECKPOINT_EVERY = 128  # entries
KEPT = 1_024  # entries before a checkpoint that are not removed
CATCH_UP_MAX = 2 * KEPT  # entries of others that one change may have to commit first
COMMIT_ATTEMPTS_MAX = 20
REFUSALS_UNTIL_VOID = 3  # of an entry, while the position stays
REFUSAL_PAUSE_SECONDS = 0.1  # Another process's commit shows whole in a few milliseconds.
ADOPTED_AT_ONCE = 8  # items: of the longest schemas DynamoDB takes no more in one commit
_JOURNAL = schema_journal_key()
_KEY_NAME = (_JOURNAL.collection, _JOURNAL.key)


class ChangeLog(Protocol):
    """How the registry's changes are committed."""

    async def begin(self) -> SchemaJournal | None:
        """Return the position that a change is decided at. Call it before all other reads."""

    async def commit(
        self, begun: SchemaJournal | None, writes: Sequence[Write], checks: Sequence[Check] = ()
    ) -> None:
        """Do all the writes or none. Durable on return. Raises ``VersionConflict``."""


class StoreLog:
    """The changes of a registry without a bucket, which are in its metadata store alone."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def begin(self) -> SchemaJournal | None:
        """Return ``None``."""
        return None

    async def commit(
        self, begun: SchemaJournal | None, writes: Sequence[Write], checks: Sequence[Check] = ()
    ) -> None:
        """Commit. Raises ``SchemasMovedOn`` if other processes keep a journal."""
        assert begun is None
        try:
            await self._store.commit(writes, checks=[*checks, Check(_JOURNAL, ABSENT)])
        except VersionConflict as error:
            if _KEY_NAME in error.keys:
                problem = "its journal is in a bucket that this process has not"
                raise SchemasMovedOn(problem) from error
            raise


class RegistryJournal:
    """The journal of a cluster's registry. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._is_open = False

    async def begin(self) -> SchemaJournal:
        """Return the position. Raises ``SchemasMovedOn``, and the stores' errors."""
        if not self._is_open:
            await self._open()
            self._is_open = True
        return await self._position()

    async def commit(
        self, begun: SchemaJournal | None, writes: Sequence[Write], checks: Sequence[Check] = ()
    ) -> None:
        """Put the entry, and commit it. Raises ``VersionConflict`` if another one was faster."""
        assert begun is not None
        number = begun.sequence + 1
        entry = JournalEntry(number, begun.store_id, tuple(writes))
        try:
            await self._objects.put(schema_key(self._cluster_id, number), entry.to_bytes())
        except ObjectExists:
            await self._catch_up()
            raise VersionConflict([_KEY_NAME]) from None
        await self._do(entry, begun, checks)
        if number % CHECKPOINT_EVERY == 0:
            await self._checkpoint(number)

    async def adopt(self) -> None:
        """Put items into the journal that were there before it: each is written as it is."""
        item = await self._store.get(_JOURNAL)
        is_done = not await self._has_items() if item is None else _is_whole(item)
        if is_done:
            return
        for collection in await self._collections():
            after: str | None = ""
            while after is not None:
                after = await retried(partial(self._adopt_some, collection, after))

        async def finish() -> None:
            begun = await self.begin()
            await self._store.commit([put(replace(begun, is_whole=True), is_logged=False)])

        await retried(finish)

    # -- the position ----------------------------------------------------------------------

    async def _position(self) -> SchemaJournal:
        item = await self._store.get(_JOURNAL)
        if item is None:
            raise SchemasMovedOn("the metadata store has lost the journal's position")
        return SchemaJournal.from_item(item)

    async def _open(self) -> None:
        """Make the position if there is none, and commit what others have only put."""
        if await self._store.get(_JOURNAL) is None:
            await self._create()
        position = await self._catch_up()
        await self._require_bucket(position)
        after = schema_key(self._cluster_id, position.sequence, SchemaObject.VOID)
        async for one in self._objects.list(schemas_prefix(self._cluster_id), start_after=after):
            found = parse_schema_key(one.key)
            if found is None or found.sequence <= position.sequence:
                continue
            if found.sequence > (await self._position()).sequence + 1:
                raise SchemasMovedOn(
                    f"the metadata store has {position.sequence} entries of its journal, and the"
                    f" bucket those up to {found.sequence} or more"
                )
            return

    async def _create(self) -> None:
        if await self._store.get(restoration_key()) is not None:
            raise StoreUnavailable("a restoration is under way: try again once it has ended")
        manifest = ClusterManifest(cluster_id=self._cluster_id)
        await persist(self._objects, cluster_manifest_key(self._cluster_id), manifest.to_bytes())
        is_whole = not await self._has_items()
        new = SchemaJournal(store_id=uuid4(), sequence=0, void_count=0, is_whole=is_whole)
        first = JournalEntry(0, new.store_id, ())
        with suppress(ObjectExists):
            await self._objects.put(schema_key(self._cluster_id, 0), first.to_bytes())
        # A restoration would take a position for its own, and leave the schemas out.
        checks = [Check(restoration_key(), ABSENT)]
        with suppress(VersionConflict, OutcomeUnknown):  # Another process has made it.
            await self._store.commit([put(new, is_logged=False)], checks=checks)

    async def _require_bucket(self, position: SchemaJournal) -> None:
        """Raise ``SchemasMovedOn`` if this is not the bucket of the processes before."""
        key = schema_key(self._cluster_id, position.sequence)
        try:
            await self._objects.head(key)
        except ObjectNotFound:
            raise SchemasMovedOn(
                f"{key} is not in the bucket: have all nodes the same object store?"
            ) from None

    async def _catch_up(self) -> SchemaJournal:
        """Commit the entries of other processes, and return the position behind them."""
        for _ in range(CATCH_UP_MAX):
            position = await self._position()
            key = schema_key(self._cluster_id, position.sequence + 1)
            try:
                entry = JournalEntry.parse(await self._objects.get(key), key=key)
            except ObjectNotFound:
                return position
            if entry.store_id != position.store_id:
                raise SchemasMovedOn(f"{key} is of another metadata store")
            try:
                await self._do(entry, position)
            except (VersionConflict, CommitTooLarge, ItemTooLarge):
                continue
        return await self._position()

    # -- an entry --------------------------------------------------------------------------

    async def _do(
        self, entry: JournalEntry, position: SchemaJournal, checks: Sequence[Check] = ()
    ) -> None:
        """Commit an entry that is in the bucket. Raises ``VersionConflict`` if it is void."""
        refusals = 0
        for _ in range(COMMIT_ATTEMPTS_MAX):
            moved = put(replace(position, sequence=entry.sequence), is_logged=False)
            is_refused = False
            try:
                await self._store.commit([*entry.writes, moved], checks=checks)
                return
            except (CommitTooLarge, ItemTooLarge):
                await self._void(entry, position, is_whole=position.is_whole)
                raise
            except VersionConflict:
                is_refused = True
            except OutcomeUnknown:
                pass
            now = await self._position()
            if now.sequence >= entry.sequence:
                is_known = now.sequence - entry.sequence < KEPT
                if is_known and now.void_count == position.void_count:
                    return  # Another process has committed it, or our own commit was made.
                raise VersionConflict([_KEY_NAME])
            refusals = refusals + 1 if is_refused and now.version == position.version else 0
            if refusals == REFUSALS_UNTIL_VOID:
                # A process without the journal has written.
                await self._void(entry, position, is_whole=False)
                raise VersionConflict([_KEY_NAME])
            if refusals:
                await asyncio.sleep(REFUSAL_PAUSE_SECONDS)
            position = now
        raise VersionConflict([_KEY_NAME])

    async def _void(self, entry: JournalEntry, position: SchemaJournal, *, is_whole: bool) -> None:
        """Pass over an entry whose writes cannot be done."""
        key = schema_key(self._cluster_id, entry.sequence, SchemaObject.VOID)
        await persist(self._objects, key, void_object(entry))
        after = replace(
            position,
            sequence=entry.sequence,
            void_count=position.void_count + 1,
            is_whole=is_whole,
        )
        await self._store.commit([put(after, is_logged=False)])
        logger.warning("entry of the schema journal is void", extra={"key": key})

    # -- what was there before the journal -------------------------------------------------

    async def _has_items(self) -> bool:
        one = KeyRange(limit=1)
        return any([await self._store.list(name, keys=one) for name in await self._collections()])

    async def _collections(self) -> list[str]:
        found = [SCHEMA_CONTEXT_COLLECTION, SCHEMA_SETTINGS_COLLECTION, SCHEMA_SUBJECT_COLLECTION]
        for item in await self._store.list(SCHEMA_CONTEXT_COLLECTION):
            context = SchemaContext.from_item(item).context
            found.append(f"{SCHEMA_TEXT_COLLECTION_PREFIX}{context}")
            found.append(f"{SCHEMA_IDENTITY_COLLECTION_PREFIX}{context}")
        return found

    async def _adopt_some(self, collection: str, after: str) -> str | None:
        """Return the key of the last item that was put into the journal, ``None`` at the end."""
        begun = await self.begin()
        keys = KeyRange(start=after, limit=ADOPTED_AT_ONCE + 1)
        items = await self._store.list(collection, keys=keys)
        some = [one for one in items if one.id.key != after][:ADOPTED_AT_ONCE]
        if not some:
            return None
        readable = [one for one in some if one.problem is None]
        if readable:
            writes = [Write(one.id, one.body, one.version, False) for one in readable]
            await self.commit(begun, writes)
        return some[-1].id.key

    # -- checkpoints -----------------------------------------------------------------------

    async def _checkpoint(self, number: int) -> None:
        """Write a checkpoint, and remove what nobody needs with it. If it fails, a later one is."""
        try:
            found = await read_journal(self._objects, self._cluster_id, up_to=number)
            if found.problems:
                key, problem = found.problems[0]
                extra = {"key": key, "reason": problem}
                logger.warning("schema journal is damaged, no checkpoint", extra=extra)
                return
            data = await asyncio.to_thread(found.state.to_bytes)
            key = schema_key(self._cluster_id, number, SchemaObject.CHECKPOINT)
            await self._objects.replace(key, data)
            await self._objects.delete(self._obsolete(found, number))
        except TidelogError as error:
            extra = {"reason": str(error)}
            logger.warning("checkpoint of the schema journal failed", extra=extra)

    def _obsolete(self, found: FoundJournal, number: int) -> list[str]:
        homes = set(found.state.texts.values())
        numbers = found.listing.numbers
        gone = {
            SchemaObject.CHECKPOINT: [
                one for one in numbers[SchemaObject.CHECKPOINT] if one < number
            ],
            SchemaObject.VOID: [one for one in numbers[SchemaObject.VOID] if one <= number - KEPT],
            SchemaObject.ENTRY: [
                one
                for one in numbers[SchemaObject.ENTRY]
                if one <= number - KEPT and one not in homes
            ],
        }
        return [
            schema_key(self._cluster_id, one, kind) for kind, some in gone.items() for one in some
        ]


def _is_whole(item: Item) -> bool:
    return SchemaJournal.from_item(item).is_whole
