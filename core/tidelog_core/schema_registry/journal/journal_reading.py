"""Reads the registry's journal from the bucket, with no metadata store and no registry running."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field

from tidelog_core.batched import batched
from tidelog_core.errors import CorruptObject, ObjectNotFound
from tidelog_core.metadata.store import Body, ItemKey
from tidelog_core.objects.store import ObjectStore
from tidelog_core.schema_registry.journal.journal_objects import (
    JournalEntry,
    JournalState,
    texts_in,
)
from tidelog_core.tier.keys import SchemaObject, parse_schema_key, schema_key, schemas_prefix
from tidelog_core.turns import Turn, in_turns

READS_AT_ONCE = 16
ATTEMPTS_MAX = 5  # a registry that runs removes entries behind its checkpoints
_NO_LIMIT = 2**63


@dataclass(slots=True)
class JournalListing:
    """The numbers of the journal's objects, ascending."""

    numbers: dict[SchemaObject, list[int]] = field(
        default_factory=lambda: {kind: [] for kind in SchemaObject}
    )

    @property
    def last(self) -> int:
        """The greatest number, 0 if there is no object."""
        return max((some[-1] for some in self.numbers.values() if some), default=0)


@dataclass(slots=True)
class FoundJournal:
    """The registry as the bucket has it."""

    listing: JournalListing
    state: JournalState
    problems: list[tuple[str, str]] = field(default_factory=list)  # key, and what is wrong with it
    checkpoint: int = 0  # the number of the one that the state was read from; 0: none
    lost: list[int] = field(default_factory=list)  # the entries whose writes the state lacks

    @property
    def orphaned_texts(self) -> list[ItemKey]:
        """The texts whose entry is not in the bucket."""
        here = set(self.listing.numbers[SchemaObject.ENTRY])
        return [key for key, home in self.state.texts.items() if home not in here]


async def list_journal(objects: ObjectStore, cluster_id: str) -> JournalListing:
    """Return the journal's objects."""
    found, turn = JournalListing(), Turn()
    async for one in objects.list(schemas_prefix(cluster_id)):
        await turn.step()
        key = parse_schema_key(one.key)
        if key is not None:
            found.numbers[key.kind].append(key.sequence)
    return found


async def read_journal(
    objects: ObjectStore, cluster_id: str, *, up_to: int = _NO_LIMIT
) -> FoundJournal:
    """Return the registry's state after its last entry, or after the one numbered ``up_to``.

    Damaged and missing objects are named; the others count. Raises the store's errors.
    """
    for attempt in range(ATTEMPTS_MAX):
        listing = await list_journal(objects, cluster_id)
        reading = _Reading(objects, cluster_id, listing, up_to)
        found = await reading.read()
        if not reading.has_vanished or attempt == ATTEMPTS_MAX - 1:
            return found
    raise AssertionError("the last attempt returns")


class _Reading:
    def __init__(
        self, objects: ObjectStore, cluster_id: str, listing: JournalListing, up_to: int
    ) -> None:
        self._objects = objects
        self._cluster_id = cluster_id
        self._listing = listing
        self._up_to = listing.last if up_to == _NO_LIMIT else up_to
        self._problems: list[tuple[str, str]] = []
        self._lost: list[int] = []
        self.has_vanished = False  # an object that was listed

    async def read(self) -> FoundJournal:
        state = await self._checkpoint()
        checkpoint = state.sequence
        numbers = self._listing.numbers
        voids = set(numbers[SchemaObject.VOID])
        entries = {one for one in numbers[SchemaObject.ENTRY] if state.sequence < one}
        for sequences in batched(range(state.sequence + 1, self._up_to + 1), READS_AT_ONCE):
            some = [one for one in sequences if one not in voids]
            here = [one for one in some if one in entries]
            for missing in sorted(set(some) - set(here)):
                self._note(missing, "it is not there")
            for entry in await asyncio.gather(*map(self._entry, here)):
                if entry is not None:
                    state.apply(entry)
        return FoundJournal(self._listing, state, self._problems, checkpoint, self._lost)

    async def _checkpoint(self) -> JournalState:
        found = self._listing.numbers[SchemaObject.CHECKPOINT]
        for number in reversed([one for one in found if one <= self._up_to]):
            key = schema_key(self._cluster_id, number, SchemaObject.CHECKPOINT)
            try:
                data = await self._objects.get(key)
                return await in_turns(JournalState.parsing(data, key=key), Turn())
            except CorruptObject as error:
                self._problems.append((key, error.problem))
            except ObjectNotFound:
                self.has_vanished = True
        return JournalState()

    async def _entry(self, number: int) -> JournalEntry | None:
        key = schema_key(self._cluster_id, number)
        try:
            return JournalEntry.parse(await self._objects.get(key), key=key)
        except CorruptObject as error:
            self._note(number, error.problem)
        except ObjectNotFound:
            self.has_vanished = True
            self._note(number, "it is not there")
        return None

    def _note(self, number: int, problem: str) -> None:
        self._problems.append((schema_key(self._cluster_id, number), problem))
        self._lost.append(number)


async def read_texts(
    objects: ObjectStore, cluster_id: str, journal: FoundJournal, keys: Collection[ItemKey]
) -> AsyncIterator[dict[ItemKey, Body]]:
    """Yield the texts of schemas, some at a time. What is damaged is added to the problems."""
    homes: dict[int, list[ItemKey]] = defaultdict(list)
    for key in keys:
        homes[journal.state.texts[key]].append(key)

    async def read(number: int) -> dict[ItemKey, Body]:
        name = schema_key(cluster_id, number)
        try:
            texts = texts_in(JournalEntry.parse(await objects.get(name), key=name), homes[number])
        except CorruptObject as error:
            journal.problems.append((name, error.problem))
            return {}
        except ObjectNotFound:
            journal.problems.append((name, "it is not there, and had the text of a schema"))
            return {}
        if len(texts) < len(homes[number]):
            journal.problems.append((name, "it lacks the text of a schema"))
        return texts

    numbers: Sequence[int] = sorted(homes)
    for some in batched(numbers, READS_AT_ONCE):
        found = await asyncio.gather(*map(read, some))
        yield {key: body for texts in found for key, body in texts.items()}
