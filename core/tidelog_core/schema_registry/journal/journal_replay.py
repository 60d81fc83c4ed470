"""Replays the registry's journal on a metadata store that was set back.

A recovery to a point in time may cut through a transaction: some items are a moment ahead of the
journal's position, or behind it. The journal is the truth. Its newest entries say what each item
they write was after each of them, so an item that is in one of these states is explained, and
gets the last of them. A commit has the condition that the position is the one that was read. So
of several processes one does it, and to repeat it changes nothing.

An item in another state was written by somebody who keeps no journal. It is left as it is. Two
cases look like that in a store that was set back, and their entries are done all the same:

- *an entry that another one follows*: it was committed, as only a later position lets it follow
- *an item as the journal has it, with another version*: a replay writes once what several entries
  wrote, and later entries expect the versions of all those writes
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.records import check, put
from tidelog_core.metadata.schema_records import SchemaJournal, schema_journal_key
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey, MetadataStore, Write
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_objects import (
    JournalEntry,
    JournalState,
    is_text,
    same_body,
)
from tidelog_core.schema_registry.journal.journal_reading import read_journal
from tidelog_core.schema_registry.journal.journal_repair import WRITTEN_AT_ONCE
from tidelog_core.tier.keys import SchemaObject, parse_schema_key, schema_key, schemas_prefix

logger = logging.getLogger(__name__)

RECENT = 64  # entries on each side of the position: seconds of a registry that is busy
READS_AT_ONCE = 16


@dataclass(slots=True)
class _History:
    """The states of one item, after each recent entry that writes it."""

    version_before: int  # that the first of these entries expects
    states: list[tuple[int, Body | None]] = field(default_factory=list)  # sequence, body

    def has_at(self, sequence: int, item: Item | None) -> bool:
        """Return whether the item is in the state after the entry of this number."""
        known = [body for number, body in self.states if number <= sequence]
        return _is(item, known[-1]) if known else _version(item) == self.version_before

    def has_since(self, sequence: int, item: Item | None) -> bool:
        """Return whether the item is in the state after that entry, or after a later one."""
        later = (body for number, body in self.states if number > sequence)
        return self.has_at(sequence, item) or any(_is(item, body) for body in later)

    def explains(self, item: Item | None) -> bool:
        """Return whether the item is in any of the states, or in the one before them."""
        is_before = _version(item) == self.version_before
        return is_before or any(_is(item, body) for _, body in self.states)


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What makes the items those of the journal."""

    writes: tuple[Write, ...] = ()
    unexplained: tuple[ItemKey, ...] = ()  # written by somebody without a journal
    is_needed: bool = False


def plan_replay(
    entries: Sequence[JournalEntry],
    items: Mapping[ItemKey, Item],
    sequence: int,
    *,
    may_be_behind: bool,
) -> ReplayPlan:
    """Return the writes that give the items their state after the last of the entries.

    ``sequence`` is the position that the metadata store has, ``items`` what it has of the items in
    the entries. Not ``may_be_behind``: a state from before the position is unexplained.
    """
    histories: dict[ItemKey, _History] = {}
    for entry in entries:
        for write in entry.writes:
            known = histories.setdefault(write.id, _History(write.expected_version))
            known.states.append((entry.sequence, write.body))
    writes, unexplained = [], []
    is_needed = False
    for key, history in histories.items():
        item = items.get(key)
        is_needed = is_needed or not history.has_at(sequence, item)
        is_explained = (
            history.explains(item) if may_be_behind else history.has_since(sequence, item)
        )
        if not is_explained or (item is not None and item.problem is not None):
            unexplained.append(key)
        last = history.states[-1][1]
        if not _is(item, last):
            writes.append(Write(key, last, _version(item), is_logged=False))
    return ReplayPlan(tuple(writes), tuple(unexplained), is_needed)


def _is(item: Item | None, body: Body | None) -> bool:
    return same_body(None if item is None else item.body, body)


def _is_in(state: JournalState, key: ItemKey, item: Item | None) -> bool:
    if item is not None and item.problem is not None:
        return False
    if is_text(key):  # Under one id there is never another text.
        return (key in state.texts) == (item is not None)
    return _is(item, state.items.get(key))


def _version(item: Item | None) -> int:
    return ABSENT if item is None else item.version


class JournalReplay:
    """Replays the newest entries into the metadata store. For any task."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, cluster_id: str) -> None:
        self._store = store
        self._objects = objects
        self._cluster_id = cluster_id

    async def on_opening(self) -> bool:
        """Write items that are ahead of the position or behind it as the journal has them.

        Return whether entries before the position are lost: ``journal_gaps`` looks at those then.
        If the position moves, another process uses this metadata store, and has looked already.
        Raises ``VersionConflict`` if another process does the same, and the stores' errors.
        """
        position = await self._position()
        if position is None:
            return False
        recent = await self._recent(position)
        plan = await self._plan(recent, position, may_be_behind=True)
        now = await self._position()
        if not plan.is_needed or now is None or now.version != position.version:
            return recent.has_lost
        if plan.unexplained:
            names = [f"{one.collection}/{one.key}" for one in plan.unexplained]
            logger.warning(
                "schema items differ from the journal",
                extra={"items": names[:10], "hint": "`tidelog verify` names what differs"},
            )
            return recent.has_lost
        await self._commit(plan, position, recent)
        logger.warning(
            "metadata store was set back, the schema journal is replayed",
            extra={"item_count": len(plan.writes), "sequence": recent.last},
        )
        return recent.has_lost

    async def around_losses(self, position: SchemaJournal) -> Nearby | None:
        """Return the entries up to the position; ``None`` if none of their numbers is lost."""
        here, voids = await self._numbers(position.sequence)
        first = max(position.sequence - RECENT, 0) + 1
        numbers = [one for one in range(first, position.sequence + 1) if one not in voids]
        entries = await self._entries([one for one in numbers if one in here])
        found: list[JournalEntry] = []
        lost: list[int] = []
        for number in numbers:
            entry = entries.get(number)
            if entry is None:
                lost.append(number)
            elif entry.store_id == position.store_id:
                found.append(entry)
            else:  # A restoration followed: it has dealt with what was lost before it.
                found.clear()
                lost.clear()
        return Nearby(tuple(found), tuple(lost)) if lost else None

    async def refused(self, entry: JournalEntry, position: SchemaJournal) -> bool:
        """Do an entry whose commit was refused though the position stays, if that is safe.

        Return whether its writes are done. Raises ``VersionConflict``, and the stores' errors.
        """
        recent = await self._recent(position)
        if recent.last < entry.sequence:
            return False
        plan = await self._plan(recent, position, may_be_behind=False)
        if plan.unexplained:
            is_followed = recent.newest > entry.sequence
            if not is_followed and not await self._are_known(plan.unexplained, position):
                return False
            names = [f"{one.collection}/{one.key}" for one in plan.unexplained]
            logger.warning(
                "entry of the schema journal is done on items of other versions",
                extra={"items": names[:10], "sequence": entry.sequence},
            )
        await self._commit(plan, position, recent)
        return True

    async def _are_known(self, keys: Sequence[ItemKey], position: SchemaJournal) -> bool:
        """Whether the items are as the whole journal has them at the position."""
        found = await read_journal(self._objects, self._cluster_id, up_to=position.sequence)
        if found.lost:
            return False
        items = await self._store.get_many(keys)
        return all(_is_in(found.state, key, items.get(key)) for key in keys)

    async def _plan(
        self, recent: _Recent, position: SchemaJournal, *, may_be_behind: bool
    ) -> ReplayPlan:
        keys = {write.id for entry in recent.entries for write in entry.writes}
        items = await self._store.get_many(keys)
        return plan_replay(recent.entries, items, position.sequence, may_be_behind=may_be_behind)

    async def _commit(self, plan: ReplayPlan, position: SchemaJournal, recent: _Recent) -> None:
        writes = plan.writes
        while len(writes) > WRITTEN_AT_ONCE:
            # The position stays until all is done: if this ends early, the next opening goes on.
            await self._store.commit(writes[:WRITTEN_AT_ONCE], checks=[check(position)])
            writes = writes[WRITTEN_AT_ONCE:]
        moved = replace(
            position,
            sequence=recent.last,
            void_count=position.void_count + recent.void_count,
            is_whole=position.is_whole and not recent.void_count,
        )
        await self._store.commit([*writes, put(moved, is_logged=False)])

    async def _position(self) -> SchemaJournal | None:
        item = await self._store.get(schema_journal_key())
        return None if item is None else SchemaJournal.from_item(item)

    async def _recent(self, position: SchemaJournal) -> _Recent:
        """Return the entries around the position, all of this metadata store and without a gap."""
        here, voids = await self._numbers(position.sequence)
        last = position.sequence
        while last + 1 in here or last + 1 in voids:
            last += 1
        first = max(position.sequence - RECENT, 0) + 1
        newest = last
        entries = await self._entries(sorted(one for one in here if one <= last))
        found: list[JournalEntry] = []
        has_lost = False
        for number in range(first, last + 1):
            entry, is_void = entries.get(number), number in voids
            if entry is not None and entry.store_id == position.store_id:
                if not is_void:
                    found.append(entry)
            elif number > position.sequence:
                # If it is void, the entries behind it wait until the position has passed it.
                last, newest = number - 1, number if is_void else number - 1
                break
            else:
                found.clear()  # What it has written is not known, or has other versions here.
                # A restoration has dealt with what was lost before it.
                has_lost = entry is None and (has_lost or not is_void)
        void_count = sum(position.sequence < one <= last for one in voids)
        return _Recent(tuple(found), last, newest, void_count, has_lost)

    async def _numbers(self, sequence: int) -> tuple[set[int], set[int]]:
        """Return the numbers of the entries around a position, and of the void ones."""
        here, voids = set[int](), set[int]()
        first = max(sequence - RECENT, 0)
        after = schema_key(self._cluster_id, first, SchemaObject.VOID)
        async for one in self._objects.list(schemas_prefix(self._cluster_id), start_after=after):
            found = parse_schema_key(one.key)
            if found is None:
                continue
            if found.sequence > sequence + RECENT:
                break
            if found.kind is SchemaObject.ENTRY:
                here.add(found.sequence)
            elif found.kind is SchemaObject.VOID:
                voids.add(found.sequence)
        return here, voids

    async def _entries(self, numbers: Sequence[int]) -> dict[int, JournalEntry | None]:
        found: dict[int, JournalEntry | None] = {}
        for some in batched(numbers, READS_AT_ONCE):
            found |= zip(some, await asyncio.gather(*map(self._entry, some)), strict=True)
        return found

    async def _entry(self, number: int) -> JournalEntry | None:
        key = schema_key(self._cluster_id, number)
        try:
            return JournalEntry.parse(await self._objects.get(key), key=key)
        except (CorruptObject, ObjectNotFound):
            return None


@dataclass(frozen=True, slots=True)
class Nearby:
    """The entries before a position, all of one metadata store."""

    entries: tuple[JournalEntry, ...]  # in order, without the void ones
    lost: tuple[int, ...]  # numbers in between that are missing or damaged


@dataclass(frozen=True, slots=True)
class _Recent:
    entries: tuple[JournalEntry, ...]  # in order
    last: int  # the number of the last one that may be done, or is void
    newest: int  # the same, or that of the void object behind it
    void_count: int  # of those behind the position
    has_lost: bool  # whether entries before the position are missing or damaged
