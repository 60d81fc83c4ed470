"""A metadata store that was set back through the middle of a change, as recoveries to a time do."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from tidelog_core.errors import SchemasMovedOn
from tidelog_core.metadata.schema_records import SchemaJournal, schema_journal_key
from tidelog_core.metadata.store import Check, ItemKey, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal import journal_replay as replay_module
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_objects import JournalEntry, void_object
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility
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


async def require_all_there(mixed: Items, objects: MemoryObjectStore, whole: Items) -> None:
    """Check that the next change finds every change that was answered, and gives a free id."""
    store, bucket = store_with(mixed), copy_of(objects)
    await RegistryJournal(store, bucket, CLUSTER).begin()
    assert await items_of(store) == await items_of(store_with(whole))
    voids = [one.key async for one in bucket.list("") if SchemaObject.VOID.value in one.key]
    assert voids == []
    assert await id_of(registry_on(store, bucket), record("New"), "new") == 6
    assert await check_schemas(bucket, CLUSTER, store) == []
    again, found = await restored(bucket)
    assert found.problems == ()
    assert await items_of(again) == await items_of(store)


def mixed(states: list[Items], choose: dict[ItemKey, int]) -> Items:
    """Return a store whose items are of different times."""
    keys = {key for state in states for key in state}
    made = {key: states[choose.get(key, -1)].get(key) for key in keys}
    return {key: item for key, item in made.items() if item is not None}


@pytest.mark.parametrize("number", range(1, 13))
async def test_no_cut_through_a_change_loses_it(number: int) -> None:
    """Each item of the change is as before it or after it: all combinations, or 32 of them."""
    states, objects = await filled()
    before, after = states[number - 1 : number + 1]
    changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    combinations = list(itertools.product((0, 1), repeat=len(changed)))
    if len(combinations) > 32:
        combinations = random.Random(f"cut {number}").sample(combinations, 32)
    for some in combinations:
        choose = dict(zip(sorted(changed), some, strict=True))
        await require_all_there(mixed([before, after], choose), objects, states[-1])


@pytest.mark.parametrize("seed", range(20))
async def test_no_cut_through_several_changes_loses_one(seed: int) -> None:
    states, objects = await filled()
    chance = random.Random(f"cut {seed}")
    end = chance.randrange(4, len(states))
    some = states[end - 4 : end + 1]
    keys = sorted({key for state in some for key in state})
    choose = {key: chance.randrange(len(some)) for key in keys}
    await require_all_there(mixed(some, choose), objects, states[-1])


async def test_items_behind_the_position_give_no_id_twice() -> None:
    """Nothing conflicts here: only a look at the journal tells."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    assert await id_of(registry, A) == 1
    before = dict(store._items)
    assert await id_of(registry, B) == 2
    back = {**before, JOURNAL: store._items[JOURNAL]}
    recovered = registry_on(store_with(back), objects)
    assert await id_of(recovered, record("Other"), "other") == 3
    assert (await recovered.schema(2)).text == B.text


@pytest.mark.parametrize("newer", [0, 1])
async def test_a_change_is_done_after_a_replay_that_wrote_several_at_once(
    monkeypatch: pytest.MonkeyPatch, newer: int
) -> None:
    """The replay gives a subject one version more, the three registrations gave it three.

    The next registration expects that, long after; it is the newest entry, or another follows.
    """
    monkeypatch.setattr(replay_module, "RECENT", 4)
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await RegistrySettings(registry).set_config("", RegistryConfig(Compatibility.NONE))
    before = dict(store._items)
    for name in ("P", "Q", "R"):
        await id_of(registry, record(name))
    after = dict(store._items)
    for number in range(8):
        await set_level(store, objects, number)
    assert await id_of(registry, record("S")) == 4
    for number in range(newer):
        await set_level(store, objects, number)
    (context,) = [key for key in after if key.collection == "schema-context"]
    recovered = store_with({**before, context: after[context]})
    await RegistryJournal(recovered, objects, CLUSTER).begin()
    assert await items_of(recovered) == await items_of(store)
    assert await check_schemas(objects, CLUSTER, recovered) == []
    assert await id_of(registry_on(recovered, objects), record("T")) == 5


@pytest.mark.parametrize("newer", [0, 1])
async def test_a_store_from_before_a_lost_entry_gets_what_came_after_it(newer: int) -> None:
    """The entry was written again from the store, and is void; later ones expect its versions."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    await id_of(registry, A)
    before = dict(store._items)
    await id_of(registry, B)
    await id_of(registry, C)
    await objects.delete([schema_key(CLUSTER, 2)])
    journal = RegistryJournal(store, objects, CLUSTER)
    await journal.inspect()
    await journal.settled()
    for number in range(newer):
        await set_level(store, objects, number)
    recovered = store_with(before)
    journal = RegistryJournal(recovered, objects, CLUSTER)
    await journal.begin()
    assert await items_of(recovered) == await items_of(store)
    await journal.adopt()  # as a node that starts
    assert await check_schemas(objects, CLUSTER, recovered) == []


async def test_an_end_in_the_middle_of_a_replay_is_continued() -> None:
    states, objects = await filled()
    for commits in range(4):
        store = store_with({**states[4], JOURNAL: states[-1][JOURNAL]})
        ending: Any = EndingStore(store, commits)
        with suppress(Ended):
            await RegistryJournal(ending, objects, CLUSTER).begin()
        await require_all_there(dict(store._items), objects, states[-1])


class Ended(BaseException):
    """The end of a process."""


class EndingStore:
    """A metadata store whose process ends after some commits."""

    def __init__(self, store: MemoryMetadataStore, commits: int) -> None:
        self._store, self._left = store, commits

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        self._left -= 1
        if self._left < 0:
            raise Ended
        await self._store.commit(writes, checks=checks)


async def test_what_somebody_without_a_journal_wrote_is_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    states, objects = await filled()
    key = ItemKey("schema-subject", "order")
    version, _ = states[-1][key]
    body = '{"subject": "order", "versions": [], "referrers": []}'
    foreign = {**states[-1], key: (version + 1, body)}
    store = store_with(foreign)
    await RegistryJournal(store, objects, CLUSTER).begin()
    assert store._items[key] == foreign[key]
    assert "schema items differ from the journal" in caplog.text
    (found,) = await check_schemas(objects, CLUSTER, store)
    assert found.object == f"{key.collection}/{key.key}"


async def test_a_void_entry_stays_void_in_a_store_that_was_set_back() -> None:
    """It could be done there. But the journal says that it does not count."""
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    assert await id_of(registry_on(store, objects), A) == 1
    back = dict(store._items)
    item = await store.get(JOURNAL)
    assert item is not None
    position = SchemaJournal.from_item(item)
    (subject,) = await store.list("schema-subject")
    deleted = {**subject.body, "versions": [[1, 1, True]]}
    write = Write(subject.id, deleted, subject.version, is_logged=False)
    refused = JournalEntry(2, position.store_id, (write,))
    await objects.put(schema_key(CLUSTER, 2), refused.to_bytes())
    void = schema_key(CLUSTER, 2, SchemaObject.VOID)
    await objects.put(void, void_object(2, position.store_id))
    recovered = store_with(back)
    assert await id_of(registry_on(recovered, objects), C) == 2
    item = await recovered.get(JOURNAL)
    assert item is not None
    position = SchemaJournal.from_item(item)
    assert (position.sequence, position.void_count) == (3, 1)
    again, _ = await restored(objects)
    assert await items_of(again) == await items_of(recovered)


async def test_two_nodes_with_different_buckets_do_not_both_open() -> None:
    """They begin at the same time: both find no position in the metadata store."""
    store = MemoryMetadataStore(latency=0)
    buckets = [MemoryObjectStore(), MemoryObjectStore()]
    journals = [RegistryJournal(store, one, CLUSTER) for one in buckets]
    await journals[0]._create()
    first = dict(store._items)
    store._items.clear()
    await journals[1]._create()  # It has put the first entry of its own bucket, and then is late.
    store._items = first
    with pytest.raises(SchemasMovedOn, match="have all nodes the same object store"):
        await id_of(registry_on(store, buckets[1]), A)
    assert await id_of(registry_on(store, buckets[0]), A) == 1
    with pytest.raises(SchemasMovedOn, match="have all nodes the same object store"):
        await id_of(registry_on(store, buckets[1]), B)


async def test_two_nodes_with_one_bucket_open_it_at_the_same_time() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    journals = [RegistryJournal(store, objects, CLUSTER) for _ in range(2)]
    await journals[0]._create()
    store._items.clear()  # It ends before its commit; the entry is in the bucket.
    assert await id_of(registry_on(store, objects), A) == 1
    assert await id_of(registry_on(store, objects), B) == 2


async def test_a_bucket_of_another_life_gets_no_position() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    assert await id_of(registry_on(store, objects), A) == 1
    lost = MemoryMetadataStore(latency=0)
    with pytest.raises(SchemasMovedOn, match="of another metadata store"):
        await id_of(registry_on(lost, objects), B)
    assert await lost.get(JOURNAL) is None  # So a restoration is still possible.
