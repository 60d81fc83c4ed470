"""Items with a malformed body, alone and beside a lost entry: only what needs them is refused."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.records import put
from tidelog_core.metadata.schema_records import (
    EVERYTHING,
    SchemaContext,
    SchemaSettings,
    schema_context_key,
    schema_journal_key,
    schema_settings_key,
    schema_subject_key,
)
from tidelog_core.metadata.store import UNREADABLE_VERSION, Item, ItemKey, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal.accepted_loss import accept_loss, newest_loss
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_gaps import ID_JUMP
from tidelog_core.schema_registry.journal.journal_repair import collections_of
from tidelog_core.schema_registry.reading import record_of
from tidelog_core.schema_registry.settings import RegistrySettings
from tidelog_core.schemas.model import GIVEN_MAX, Mode
from tidelog_core.tier.keys import schema_key
from tidelog_core.verification.schema_check import MALFORMED, check_schemas

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
BODIES: list[Any] = [{}, {"x": 1}, {"context": 3}, {"versions": [["one", 2, False]]}]


def malformed(items: Items, key: ItemKey, body: object, *, more: int = 0) -> Items:
    """Return the items with another body of one, as somebody writes it ``more`` times."""
    return {**items, key: (items[key][0] + more, json.dumps(body))}


async def malformed_keys(store: MemoryMetadataStore) -> set[ItemKey]:
    names = await collections_of(store)
    items = [one for name in names for one in await store.list(name)]
    return {one.id for one in items if record_of(one) is None}


async def require_narrow(items: Items, objects: MemoryObjectStore, broken: ItemKey) -> None:
    """Check that new schemas are registered, under new ids, and that the journal stays whole."""
    store, bucket = store_with(items), copy_of(objects)
    before = items[broken]
    # All registrations in the default context need the settings of everything.
    prefixes = [one for one in GIVEN if one or broken.key != EVERYTHING]
    for number in range(2):
        for prefix in prefixes:
            last = GIVEN[prefix]
            new = record(f"N{number}")
            found = await id_of(registry_on(store, bucket), new, f"{prefix}n{number}")
            assert found > last + number, (prefix, number)
        journal = RegistryJournal(store, bucket, CLUSTER)
        await journal.adopt()
        await journal.inspect()
        await journal.settled()
    left = await malformed_keys(store)
    assert left <= {broken}
    assert not left or store._items[broken] == before, "as it was"
    again, found_again = await restored(bucket)
    assert found_again.problems == ()
    assert await malformed_keys(again) == set()
    name = f"{broken.collection}/{broken.key}"
    here = {key: body for key, body in (await items_of(store)).items() if key != name}
    assert here.items() <= (await items_of(again)).items()


@pytest.mark.parametrize("lost", range(1, 12))
async def test_a_malformed_item_beside_a_lost_entry_stops_no_other_change(lost: int) -> None:
    states, whole = await filled()
    objects = copy_of(whole)
    await objects.delete([schema_key(CLUSTER, lost)])
    chance = random.Random(f"malformed {lost}")
    keys = sorted(key for key in states[-1] if key != JOURNAL)
    for key in keys:
        items = malformed(states[-1], key, chance.choice(BODIES), more=chance.randrange(2))
        await require_narrow(items, objects, key)


@pytest.mark.parametrize("seed", range(12))
async def test_no_id_is_given_twice_beside_malformed_items_of_a_store_that_was_set_back(
    seed: int,
) -> None:
    """A malformed item is newer than all entries, but shows no change of a lost one."""
    states, whole = await filled()
    chance = random.Random(f"set back {seed}")
    for lost in range(1, 12):
        objects = copy_of(whole)
        await objects.delete([schema_key(CLUSTER, lost)])
        older = chance.choice(states[:-1])
        key = chance.choice(sorted(key for key in states[-1] if key != JOURNAL))
        more = chance.randrange(1, 20)
        newer = malformed(states[-1], key, chance.choice(BODIES), more=more)[key]
        items = {**older, key: newer, JOURNAL: states[-1][JOURNAL]}
        await require_narrow(items, objects, key)


async def test_a_malformed_item_shows_no_change_of_a_lost_entry() -> None:
    """The store was set back before the lost entry gave an id to a schema, and then damaged."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await id_of(registry, B, "other")
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2)])
    (identity,) = {key for key in store._items if "identity" in key.collection} - before.keys()
    items = {**before, JOURNAL: store._items[JOURNAL], identity: store._items[identity]}
    recovered = store_with(malformed(items, identity, {}))
    assert await id_of(registry_on(recovered, objects), C) > 1 + ID_JUMP


async def test_what_needs_a_malformed_item_is_refused_and_names_it() -> None:
    states, objects = await filled()
    await objects.delete([schema_key(CLUSTER, 3)])
    subject = schema_subject_key("s-value")
    registry = registry_on(store_with(malformed(states[-1], subject, {})), objects)
    with pytest.raises(CorruptItem, match="schema-subject/s-value"):
        await id_of(registry, C)
    assert await id_of(registry, C, "other") == 3
    problems = await check_schemas(objects, CLUSTER, registry.store)
    assert ("schema-subject/s-value", MALFORMED) in [(one.object, one.problem) for one in problems]


@pytest.mark.parametrize("body", [{}, {"context": ".", "last_id": "many"}])
async def test_a_malformed_counter_is_written_again_above_all_that_may_have_been_given(
    body: object,
) -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    await id_of(registry, B)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2)])
    counter = schema_context_key(".")
    damaged = store_with(malformed(store._items, counter, body))
    assert await id_of(registry_on(damaged, objects), C) > 2 + ID_JUMP
    item = await damaged.get(counter)
    assert item is not None
    assert SchemaContext.from_item(item).last_id > 2 + ID_JUMP


async def test_a_counter_that_a_later_entry_has_is_written_as_that_has_it() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    for schema in (A, B, C):
        await id_of(registry, schema)
    await objects.delete([schema_key(CLUSTER, 1)])
    damaged = store_with(malformed(store._items, schema_context_key("."), {}))
    assert await id_of(registry_on(damaged, objects), record("N"), "n") == 4


async def test_malformed_settings_may_have_had_the_mode_import() -> None:
    """In that mode clients give ids, so a lost entry may have had any."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await RegistrySettings(registry).set_mode(":.old:", Mode.IMPORT, force=False)
    await id_of(registry, B)
    await set_level(store, objects, 0)
    await objects.delete([schema_key(CLUSTER, 2), schema_key(CLUSTER, 3)])
    key = schema_settings_key(":.old:")
    items = {**before, JOURNAL: store._items[JOURNAL], key: store._items[key]}
    again = registry_on(store_with(malformed(items, key, {"mode": "?"})), objects)
    with pytest.raises(CorruptItem):
        await id_of(again, C, ":.old:new")
    await again.store.commit([repaired(items[key][0], key.key)])
    assert await id_of(again, C, ":.old:new") == GIVEN_MAX + 1


def repaired(version: int, scope: str) -> Write:
    """Return the write of a person who repairs settings."""
    return put(SchemaSettings(scope=scope, version=version))


@pytest.mark.parametrize("collection", ["schema-context", "schema-subject", "schema-settings"])
async def test_a_person_can_accept_a_loss_beside_malformed_items(collection: str) -> None:
    states, objects = await filled()
    last = schema_key(CLUSTER, len(states) - 1)
    await objects.delete([last])
    key = max(one for one in states[-1] if one.collection == collection)
    store = store_with(malformed(states[-1], key, {"x": 1}))
    assert await newest_loss(store, objects, CLUSTER) == last
    for _ in range(2):
        await accept_loss(store, objects, CLUSTER, last)
    await require_narrow(store._items, objects, key)


async def test_an_item_that_nobody_can_write_stops_no_other_change() -> None:
    """Its version is unknown, as of attributes that somebody has changed in DynamoDB."""
    states, objects = await filled()
    await objects.delete([schema_key(CLUSTER, 4)])
    broken = {schema_subject_key("order"), schema_context_key(".stage")}

    class Unreadable(MemoryMetadataStore):
        def _item(self, id: ItemKey) -> Item | None:
            if id in broken:
                return Item(id, UNREADABLE_VERSION, {}, "attributes: KeyError('v')")
            return super()._item(id)

    store = Unreadable(latency=0)
    store._items = dict(states[-1])
    registry = registry_on(store, objects)
    assert await id_of(registry, record("N"), "n") > GIVEN[""]
    assert await registry.read.contexts() == [".", ".stage"]
    with pytest.raises(CorruptItem):
        await id_of(registry, record("N"), ":.stage:n")
