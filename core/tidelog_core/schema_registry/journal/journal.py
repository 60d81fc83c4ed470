"""Writes every change of the registry to the bucket before it is made, so that none is lost.

Theory of operation. The journal's entries are numbered without gaps, and an entry is put only if
its number is free: that puts all changes of all processes in one order. The item ``SchemaJournal``
says which entry the metadata store has. A change takes these steps:

    begin    the journal's position is read, then what the change is decided from
    put      the writes go to the bucket as the entry behind that position
    commit   the writes are done, and the position moves, in one commit
    answer   the client gets its answer

Nothing shows in the metadata store before the bucket has it. A process that ends between two steps
leaves:

- *before the put*: nothing.
- *after the put*: an entry without an answer. Nobody can put another one with its number, so the
  next writer makes its commit first. A restoration makes it too. Both are allowed: the client does
  not know how its request ended.
- *after the commit*: a change whose client sends it again, which is safe.

A put that finds its number taken means that another writer was faster. An entry that was decided at
a position stays valid until that position moves, since every change moves it. Only a process of a
version without the journal can make it invalid: it is then declared void, in the bucket first. The
items of a commit by another process may show one after the other, the position last. So an entry is
void only if its commit is refused several times while the position stays.

A put whose number is free means that no writer was faster, unless the bucket has lost the entry of
that number. So a writer whose commit is refused by a later position looks at its items before it
answers.

A metadata store may also be set back. Its items may be a moment ahead of the position then, or
behind it. So the first change of a process looks at the newest entries (``journal_replay``), and if
some of those are lost, at the ids that they may have given out (``journal_gaps``).

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
from uuid import uuid4

from tidelog_core.errors import (
    CommitTooLarge,
    CorruptObject,
    ItemTooLarge,
    ObjectExists,
    ObjectNotFound,
    OutcomeUnknown,
    SchemasMovedOn,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.records import put, restoration_key
from tidelog_core.metadata.schema_records import SchemaJournal
from tidelog_core.metadata.store import ABSENT, Check, Item, MetadataStore, Write
from tidelog_core.metadata.update import LOST, retried
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.committer import JOURNAL, JOURNAL_NAME
from tidelog_core.schema_registry.journal.journal_checkpoints import (
    KEPT,
    JournalCheckpoints,
    JournalHealth,
)
from tidelog_core.schema_registry.journal.journal_gaps import LostChanges
from tidelog_core.schema_registry.journal.journal_objects import (
    JournalEntry,
    is_text,
    same_body,
    void_object,
)
from tidelog_core.schema_registry.journal.journal_reading import read_journal
from tidelog_core.schema_registry.journal.journal_repair import (
    WRITTEN_AT_ONCE,
    JournalRepair,
    has_items,
)
from tidelog_core.schema_registry.journal.journal_replay import JournalReplay
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
CATCH_UP_MAX = 2 * KEPT  # entries of others that one change may have to commit first
COMMIT_ATTEMPTS_MAX = 20
REFUSALS_UNTIL_VOID = 3  # of an entry, while the position stays
REFUSAL_PAUSE_SECONDS = 0.1  # Another process's commit shows whole in a few milliseconds.


class RegistryJournal:
    """The journal of a cluster's registry. For the tasks of one event loop."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id
        self._is_open = False
        self._repair = JournalRepair(self, store, objects, cluster_id)
        self._replay = JournalReplay(store, objects, cluster_id)
        self._losses = LostChanges(store, objects, cluster_id)
        self._checkpoints = JournalCheckpoints(objects, cluster_id, self._repair)

    @property
    def health(self) -> JournalHealth:
        """What this process has found wrong with the journal."""
        return self._checkpoints.health

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
            raise VersionConflict([JOURNAL_NAME]) from None
        is_ours = await self._do(entry, begun, checks)
        if not is_ours and await self._is_taken(entry):
            await self._give_up(entry)
            raise VersionConflict([JOURNAL_NAME])
        if number % CHECKPOINT_EVERY == 0:
            self._checkpoints.request(number)

    async def adopt(self) -> None:
        """Put items into the journal that were there before it: each is written as it is."""
        item = await self._store.get(JOURNAL)
        if item is None:
            is_done = not await has_items(self._store)
        else:
            is_done = SchemaJournal.from_item(item).is_whole
        if is_done:
            return
        await self._repair.write_all()

        async def finish() -> None:
            begun = await self.begin()
            await self._store.commit([put(replace(begun, is_whole=True), is_logged=False)])

        await retried(finish)

    async def inspect(self) -> None:
        """Open the journal, and have a checkpoint written if objects are damaged or missing.

        That writes again what they had. Raises ``SchemasMovedOn``, and the stores' errors.
        """
        begun = await self.begin()
        found = await read_journal(self._objects, self._cluster_id, up_to=begun.sequence)
        if found.problems or found.orphaned_texts:
            self._checkpoints.request(begun.sequence)

    async def warm_up(self) -> None:
        """Ask the bucket for something, so that the first change finds it reachable."""
        async for _ in self._objects.list(schemas_prefix(self._cluster_id)):
            return

    async def settled(self) -> None:
        """Return once no checkpoint is under way."""
        await self._checkpoints.settled()

    async def close(self) -> None:
        """End the checkpoint that is under way; the next one does the rest."""
        await self._checkpoints.close()

    # -- the position ----------------------------------------------------------------------

    async def _position(self) -> SchemaJournal:
        item = await self._store.get(JOURNAL)
        if item is None:
            raise SchemasMovedOn("the metadata store has lost the journal's position")
        return SchemaJournal.from_item(item)

    async def _open(self) -> None:
        """Make the position if there is none, and commit entries that others have only put."""
        if await self._store.get(JOURNAL) is None:
            await self._create()
        has_lost = await retried(self._replay.on_opening, pause_seconds_max=REFUSAL_PAUSE_SECONDS)
        position = await self._catch_up()
        await self._require_bucket(position)
        after = schema_key(self._cluster_id, position.sequence, SchemaObject.VOID)
        async for one in self._objects.list(schemas_prefix(self._cluster_id), start_after=after):
            found = parse_schema_key(one.key)
            if found is None or found.sequence <= position.sequence:
                continue
            # A checkpoint says that the entry of its own number was done.
            is_done = found.kind is SchemaObject.CHECKPOINT
            last = found.sequence if is_done else found.sequence - 1
            if last > (await self._position()).sequence:
                raise SchemasMovedOn(
                    f"the metadata store has {position.sequence} entries of its journal, and the"
                    f" bucket those up to {found.sequence} or more"
                )
            break
        if has_lost:
            await retried(self._raise_counters, pause_seconds_max=REFUSAL_PAUSE_SECONDS)

    async def _raise_counters(self) -> None:
        """Have no id given again that an entry may have given which the bucket has lost."""
        while writes := await self._losses.raised(position := await self._position()):
            await self.commit(position, writes[:WRITTEN_AT_ONCE])

    async def _create(self) -> None:
        """Make the position, with the id that the bucket's first entry has.

        Of processes that do it at once, those with another bucket find that its entry has another
        id than the position.
        """
        if await self._store.get(restoration_key()) is not None:
            raise StoreUnavailable("a restoration is under way: try again once it has ended")
        async for one in self._objects.list(schemas_prefix(self._cluster_id)):
            found = parse_schema_key(one.key)
            if found is not None and found.sequence:
                if await self._store.get(JOURNAL) is None:
                    raise SchemasMovedOn(f"{one.key} is of another metadata store")
                return
        manifest = ClusterManifest(cluster_id=self._cluster_id)
        await persist(self._objects, cluster_manifest_key(self._cluster_id), manifest.to_bytes())
        store_id = uuid4()
        key = schema_key(self._cluster_id, 0)
        try:
            await self._objects.put(key, JournalEntry(0, store_id, ()).to_bytes())
        except ObjectExists:
            store_id = JournalEntry.parse(await self._objects.get(key), key=key).store_id
        is_whole = not await has_items(self._store)
        new = SchemaJournal(store_id=store_id, sequence=0, void_count=0, is_whole=is_whole)
        # A restoration would take a position for its own, and leave the schemas out.
        checks = [Check(restoration_key(), ABSENT)]
        with suppress(VersionConflict, OutcomeUnknown):  # Another process has made it.
            await self._store.commit([put(new, is_logged=False)], checks=checks)

    async def _require_bucket(self, position: SchemaJournal) -> None:
        """Raise ``SchemasMovedOn`` if this is not the bucket of the processes before."""
        key = schema_key(self._cluster_id, position.sequence)
        data = await self._read(position.sequence)
        if data is None:
            if await self._is_void(position.sequence):
                return
            raise SchemasMovedOn(
                f"{key} is not in the bucket: have all nodes the same object store? If it is lost,"
                f" see `tidelog schema accept-loss`"
            )
        try:
            entry = JournalEntry.parse(data, key=key)
        except CorruptObject:
            return  # The next checkpoint names it.
        if entry.store_id != position.store_id:
            raise SchemasMovedOn(
                f"{key} is of another metadata store: have all nodes the same object store?"
            )

    async def _catch_up(self) -> SchemaJournal:
        """Commit the entries of other processes, and return the position behind them."""
        for _ in range(CATCH_UP_MAX):
            position = await self._position()
            number = position.sequence + 1
            is_void, data = await asyncio.gather(self._is_void(number), self._read(number))
            if is_void:
                with suppress(*LOST):
                    await self._pass_over(number, position, is_whole=False)
                continue
            if data is None:
                return position
            key = schema_key(self._cluster_id, number)
            entry = JournalEntry.parse(data, key=key)
            if entry.store_id != position.store_id:
                raise SchemasMovedOn(f"{key} is of another metadata store")
            try:
                await self._do(entry, position)
            except (VersionConflict, CommitTooLarge, ItemTooLarge):
                continue
        return await self._position()

    async def _read(self, number: int) -> bytes | None:
        try:
            return await self._objects.get(schema_key(self._cluster_id, number))
        except ObjectNotFound:
            return None

    async def _is_void(self, number: int) -> bool:
        try:
            await self._objects.head(schema_key(self._cluster_id, number, SchemaObject.VOID))
        except ObjectNotFound:
            return False
        return True

    # -- an entry --------------------------------------------------------------------------

    async def _do(
        self, entry: JournalEntry, position: SchemaJournal, checks: Sequence[Check] = ()
    ) -> bool:
        """Commit an entry that is in the bucket; return false if it seems to be done already.

        Raises ``VersionConflict`` if it is void.
        """
        refusals = 0
        for _ in range(COMMIT_ATTEMPTS_MAX):
            moved = put(replace(position, sequence=entry.sequence), is_logged=False)
            is_refused = False
            try:
                await self._store.commit([*entry.writes, moved], checks=checks)
                return True
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
                is_same = now.void_count == position.void_count
                if is_known and (is_same or not await self._is_void(entry.sequence)):
                    return False  # Another process has done it, or our own commit was made.
                raise VersionConflict([JOURNAL_NAME])
            refusals = refusals + 1 if is_refused and now.version == position.version else 0
            if refusals == REFUSALS_UNTIL_VOID:
                if await self._is_replayed(entry, now):
                    return True
                # A process without the journal has written.
                await self._void(entry, now, is_whole=False)
                raise VersionConflict([JOURNAL_NAME])
            if refusals:
                await asyncio.sleep(REFUSAL_PAUSE_SECONDS)
            position = now
        raise VersionConflict([JOURNAL_NAME])

    async def _is_taken(self, entry: JournalEntry) -> bool:
        """Whether another entry had the number, and the bucket had lost it before our put."""
        for _ in range(REFUSALS_UNTIL_VOID):
            items = await self._store.get_many([one.id for one in entry.writes])
            if not any(_is_undone(one, items.get(one.id)) for one in entry.writes):
                return False
            await asyncio.sleep(REFUSAL_PAUSE_SECONDS)  # The commit may not show whole yet.
        return True

    async def _give_up(self, entry: JournalEntry) -> None:
        """Declare our entry void. The next start writes the content of the lost one again."""

        async def note() -> None:
            position = await self._position()
            await self._store.commit([put(replace(position, is_whole=False), is_logged=False)])

        await retried(note, pause_seconds_max=REFUSAL_PAUSE_SECONDS)
        key = schema_key(self._cluster_id, entry.sequence, SchemaObject.VOID)
        await persist(self._objects, key, void_object(entry.sequence, entry.store_id))
        logger.warning(
            "entry of the schema journal was lost, restart a node that serves the registry",
            extra={"key": schema_key(self._cluster_id, entry.sequence)},
        )

    async def _is_replayed(self, entry: JournalEntry, position: SchemaJournal) -> bool:
        """Whether the items were ahead of the position, and the entry is done now."""
        try:
            return await self._replay.refused(entry, position)
        except LOST:
            raise VersionConflict([JOURNAL_NAME]) from None

    async def _void(self, entry: JournalEntry, position: SchemaJournal, *, is_whole: bool) -> None:
        """Pass over an entry whose writes cannot be done."""
        key = schema_key(self._cluster_id, entry.sequence, SchemaObject.VOID)
        await persist(self._objects, key, void_object(entry.sequence, entry.store_id))
        await self._pass_over(entry.sequence, position, is_whole=is_whole)
        logger.warning("entry of the schema journal is void", extra={"key": key})

    async def _pass_over(self, number: int, position: SchemaJournal, *, is_whole: bool) -> None:
        after = replace(
            position,
            sequence=number,
            void_count=position.void_count + 1,
            is_whole=position.is_whole and is_whole,
        )
        await self._store.commit([put(after, is_logged=False)])


def _is_undone(write: Write, item: Item | None) -> bool:
    """Return whether the item shows that a write was not done. A later one may hide that."""
    if write.body is None:
        return item is not None and item.version == write.expected_version
    if item is None:
        return write.expected_version == ABSENT
    is_ours = same_body(item.body, write.body)
    if item.version <= write.expected_version:
        return item.version == write.expected_version
    return not is_ours and (is_text(write.id) or item.version == write.expected_version + 1)
