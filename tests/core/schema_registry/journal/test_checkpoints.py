"""Checkpoints of the journal: beside the answers, in short turns, one at a time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from uuid import UUID

import pytest
from tidelog_core.errors import CorruptObject
from tidelog_core.metadata.schema_records import schema_identity_key, schema_subject_key
from tidelog_core.metadata.store import ItemKey
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal import journal as journal_module
from tidelog_core.schema_registry.journal.journal_objects import (
    ROWS_AT_ONCE,
    JournalEntry,
    JournalState,
)
from tidelog_core.schema_registry.journal.journal_reading import list_journal, read_journal
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.turns import Turn, in_turns

from tests.contracts.schema_registry import record
from tests.core.schema_registry.journal.journals import (
    CLUSTER,
    id_of,
    registry_on,
    set_level,
    settled,
)
from tests.support.loop_turns import loop_turns
from tests.support.memory_store import MemoryMetadataStore

STORE_ID = UUID(int=7)


def large(count: int) -> JournalState:
    """Return a registry of so many schemas, each of a subject of its own."""
    state = JournalState(count, STORE_ID)
    for number in range(count):
        name, guid = f"subject-{number}-value", str(UUID(int=number))
        state.items[schema_subject_key(name)] = {
            "subject": name,
            "versions": [[1, number + 1, False]],
            "referrers": [],
        }
        state.items[schema_identity_key(".", guid)] = {
            "context": ".",
            "guid": guid,
            "schema_id": number + 1,
            "uses": [[name, 1, number + 1]],
        }
        state.texts[ItemKey("schema-text:.", f"{number + 1:010d}")] = number + 1
    return state


def test_a_checkpoint_is_json_and_comes_back() -> None:
    for count in (0, 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 100):
        state = large(count)
        data = state.to_bytes()
        fields = json.loads(data)
        assert (len(fields["items"]), len(fields["texts"])) == (2 * count, count)
        assert JournalState.parse(data, key="k") == state
        in_one_line = json.dumps(fields).encode()  # as older programs wrote it
        assert JournalState.parse(in_one_line, key="k") == state


def test_a_checkpoint_that_is_cut_anywhere_is_refused() -> None:
    data = large(3).to_bytes()
    for end in range(len(data) - 1):
        with pytest.raises(CorruptObject):
            JournalState.parse(data[:end], key="k")


def test_work_on_a_checkpoint_is_in_steps_of_few_rows() -> None:
    count = 2_000
    state = large(count)
    steps = sum(1 for _ in state.encoding())
    assert steps >= 3 * count // ROWS_AT_ONCE
    steps = sum(1 for _ in JournalState.parsing(state.to_bytes(), key="k"))
    assert steps >= 2 * (3 * count // ROWS_AT_ONCE)


async def test_a_checkpoint_of_thousands_of_schemas_takes_short_turns_of_the_loop() -> None:
    state = large(4_000)
    data = state.to_bytes()
    with loop_turns() as turns:
        made = await in_turns(state.encoding(), Turn())
        await in_turns(JournalState.parsing(data, key="k"), Turn())
    assert made == data
    assert turns.longest_seconds < 0.03


class Slow(MemoryObjectStore):
    """Its checkpoints are put when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = asyncio.Event()
        self.has_begun = asyncio.Event()
        self.under_way = 0
        self.most = 0
        self.count = 0

    async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
        self.under_way += 1
        self.count += 1
        self.most = max(self.most, self.under_way)
        self.has_begun.set()
        await self.may_go_on.wait()
        await super().put_file(key, path, kms_key_id=kms_key_id)
        self.under_way -= 1


async def test_no_request_waits_for_a_checkpoint_and_there_is_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 2)
    store, objects = MemoryMetadataStore(latency=0), Slow()
    registry = registry_on(store, objects)
    for number in range(2):
        await id_of(registry, record(f"R{number}"), f"s{number}")
    await asyncio.wait_for(objects.has_begun.wait(), 60)
    for number in range(2, 9):  # None of them waits for what cannot go on.
        await id_of(registry, record(f"R{number}"), f"s{number}")
    assert (objects.count, objects.most) == (1, 1)
    objects.may_go_on.set()
    await settled(registry)
    assert (objects.count, objects.most) == (2, 1)  # The second one is of the newest entry.
    listing = await list_journal(objects, CLUSTER)
    assert listing.numbers[SchemaObject.CHECKPOINT] == [2, 8]


async def test_a_process_that_ends_leaves_its_checkpoint_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 2)
    store, objects = MemoryMetadataStore(latency=0), Slow()
    registry = registry_on(store, objects)
    for number in range(2):
        await id_of(registry, record(f"R{number}"), f"s{number}")
    await asyncio.wait_for(objects.has_begun.wait(), 60)
    assert isinstance(registry.committer, journal_module.RegistryJournal)
    await registry.committer.close()
    objects.may_go_on.set()
    for number in range(2):
        await set_level(store, objects, number)
    listing = await list_journal(objects, CLUSTER)
    assert listing.numbers[SchemaObject.CHECKPOINT] == [4]
    assert (await read_journal(objects, CLUSTER)).problems == []


async def test_an_entry_below_two_checkpoints_goes_unless_it_has_a_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr("tidelog_core.schema_registry.journal.journal_checkpoints.KEPT", 0)
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    await id_of(registry_on(store, objects), record("R"), "s")
    for number in range(15):
        await set_level(store, objects, number)
    listing = await list_journal(objects, CLUSTER)
    assert listing.numbers[SchemaObject.CHECKPOINT] == [12, 16]
    assert listing.numbers[SchemaObject.ENTRY] == [1, 13, 14, 15, 16]
    entry = JournalEntry.parse(await objects.get(schema_key(CLUSTER, 1)), key="")
    assert any(one.id.collection == "schema-text:." for one in entry.writes)
