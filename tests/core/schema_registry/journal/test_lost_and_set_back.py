"""A metadata store that was set back, and a bucket that has lost an entry: no id is given twice."""

from __future__ import annotations

import random

import pytest
from tidelog_core.errors import SchemasMovedOn
from tidelog_core.metadata.schema_records import schema_context_key, schema_journal_key
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal import journal_replay as replay_module
from tidelog_core.schema_registry.journal.accepted_loss import accept_loss
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_gaps import ID_JUMP
from tidelog_core.schema_registry.settings import RegistrySettings
from tidelog_core.schemas.model import GIVEN_MAX, Mode
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.verification.schema_check import check_schemas

from tests.contracts.schema_registry import record
from tests.core.schema_registry.journal.journals import (
    CLUSTER,
    A,
    B,
    C,
    Items,
    copy_of,
    filled,
    id_of,
    items_of,
    registry_on,
    restored,
    set_level,
    store_with,
)
from tests.support.memory_store import MemoryMetadataStore

JOURNAL = schema_journal_key()
GIVEN = {"": 5, ":.stage:": 1}  # the last id that ``filled`` has given out in each context


async def require_new_ids(items: Items, objects: MemoryObjectStore) -> None:
    """Check that schemas which were never there get ids which were never given.

    So does the next process, after the lost entry was written again, and a restoration.
    """
    store, bucket = store_with(items), copy_of(objects)
    for number in range(2):
        for prefix, last in GIVEN.items():
            new = record(f"N{number}")
            found = await id_of(registry_on(store, bucket), new, f"{prefix}n{number}")
            assert found > last + number, (prefix, number)
        journal = RegistryJournal(store, bucket, CLUSTER)
        await journal.inspect()
        await journal.settled()
    for problem in await check_schemas(bucket, CLUSTER, store):
        # The text of a schema is lost that only the lost entry had.
        assert "register its text again" in problem.problem, problem
    again, found_again = await restored(bucket)
    assert found_again.problems == ()
    assert (await items_of(store)).items() <= (await items_of(again)).items()


@pytest.mark.parametrize("lost", range(1, 12))
@pytest.mark.parametrize("damage", [None, b"{"], ids=["missing", "damaged"])
async def test_no_id_is_given_twice_whatever_the_store_was_set_back_to(
    lost: int, damage: bytes | None
) -> None:
    states, whole = await filled()
    objects = copy_of(whole)
    await objects.delete([schema_key(CLUSTER, lost)])
    if damage is not None:
        await objects.put(schema_key(CLUSTER, lost), damage)
    for older in states[:-1]:
        await require_new_ids({**older, JOURNAL: states[-1][JOURNAL]}, objects)


@pytest.mark.parametrize("seed", range(12))
async def test_no_id_is_given_twice_if_items_are_of_many_times(seed: int) -> None:
    states, objects = await filled()
    chance = random.Random(f"lost {seed}")
    await objects.delete([schema_key(CLUSTER, one) for one in chance.sample(range(1, 12), 2)])
    items: Items = {}
    for key in sorted({key for state in states for key in state}):
        found = chance.choice(states).get(key)
        if found is not None:
            items[key] = found
    await require_new_ids({**items, JOURNAL: states[-1][JOURNAL]}, objects)


async def test_what_later_entries_have_is_written_into_a_store_that_was_set_back() -> None:
    """Only what the lost entry had is gone: its text may be registered again, under another id."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    for schema in (B, C, record("R")):
        await id_of(registry, schema)
    await objects.delete([schema_key(CLUSTER, 3)])
    recovered = store_with({**before, JOURNAL: store._items[JOURNAL]})
    again = registry_on(recovered, objects)
    assert await id_of(again, record("New"), "new") == 5, "a later entry has the counter"
    assert [(await again.schema(one)).text for one in (1, 2, 4)] == [
        one.text for one in (A, B, record("R"))
    ]
    assert await id_of(again, C, "c") == 6


async def test_ids_go_on_without_a_gap_if_the_store_shows_what_was_lost() -> None:
    """As it does if it was not set back: most losses are of that kind."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    for schema in (A, B, C):
        await id_of(registry, schema)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2), schema_key(CLUSTER, 3)])
    assert await id_of(registry_on(store, objects), record("New"), "new") == 4


async def test_ids_that_show_are_passed_over_if_their_counter_is_behind() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    counter = schema_context_key(".")
    before = store._items[counter]
    await id_of(registry, B)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2)])
    recovered = store_with({**store._items, counter: before})
    assert await id_of(registry_on(recovered, objects), record("New"), "new") == 3


async def test_nothing_is_jumped_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process that starts looks, also before the loss is written again."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await id_of(registry, B)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2)])
    recovered = store_with({**before, JOURNAL: store._items[JOURNAL]})
    for number in range(3):
        found = await id_of(registry_on(recovered, objects), record(f"N{number}"), f"n{number}")
        assert found == 1 + ID_JUMP + number + 1
    monkeypatch.setattr(replay_module, "RECENT", 2)  # The loss is old by now.
    assert await id_of(registry_on(recovered, objects), record("N"), "n") == 1 + ID_JUMP + 4


async def test_an_import_that_was_lost_may_have_had_any_id() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    await RegistrySettings(registry).set_mode(":.old:", Mode.IMPORT, force=False)
    before = dict(store._items)
    await id_of(registry, B)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 3)])
    recovered = store_with({**before, JOURNAL: store._items[JOURNAL]})
    again = registry_on(recovered, objects)
    assert await id_of(again, record("New"), "new") == 1 + ID_JUMP + 1
    await RegistrySettings(again).set_mode(":.old:", Mode.READWRITE, force=False)
    assert await id_of(again, record("New"), ":.old:new") == GIVEN_MAX + 1


async def test_a_loss_that_a_person_accepts_gives_no_id_twice() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await id_of(registry, B)
    last = schema_key(CLUSTER, 2)
    await objects.delete([last])
    recovered = store_with({**before, JOURNAL: store._items[JOURNAL]})
    with pytest.raises(SchemasMovedOn, match=last):
        await id_of(registry_on(recovered, objects), C)
    for _ in range(2):
        await accept_loss(recovered, objects, CLUSTER, last)
    await RegistryJournal(recovered, objects, CLUSTER).adopt()  # as a node that starts
    assert await id_of(registry_on(recovered, objects), C) == 1 + ID_JUMP + 1


async def test_a_checkpoint_proves_that_its_own_entry_was_done() -> None:
    """The store is behind it, and the entry is lost: its number must not be used again."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await id_of(registry, B)
    journal = RegistryJournal(store, objects, CLUSTER)
    await journal.begin()
    journal._checkpoints.request(2)
    await journal.settled()
    assert schema_key(CLUSTER, 2, SchemaObject.CHECKPOINT) in objects._objects
    await objects.delete([schema_key(CLUSTER, 2)])
    with pytest.raises(SchemasMovedOn, match="the bucket those up to 2"):
        await id_of(registry_on(store_with(before), objects), C)
