"""Objects of the journal that the bucket loses: they are named, and what they had is written again."""

from __future__ import annotations

import pytest
from tidelog_core.errors import SchemasMovedOn, VersionConflict
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.journal import journal as journal_module
from tidelog_core.schema_registry.journal import journal_checkpoints as checkpoints_module
from tidelog_core.schema_registry.journal import journal_replay as replay_module
from tidelog_core.schema_registry.journal.accepted_loss import accept_loss, newest_loss
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_checkpoints import DAMAGED, JournalHealth
from tidelog_core.schema_registry.journal.journal_objects import JournalEntry
from tidelog_core.schema_registry.journal.journal_reading import list_journal, read_journal
from tidelog_core.tier.keys import SchemaObject, schema_key
from tidelog_core.verification.schema_check import check_schemas

from tests.contracts.schema_registry import record, require_whole
from tests.core.schema_registry.journal.journals import (
    CLUSTER,
    A,
    B,
    C,
    copy_of,
    filled,
    id_of,
    items_of,
    registry_on,
    restored,
    set_level,
    settled,
    store_with,
)
from tests.support.memory_store import MemoryMetadataStore

OVERWRITTEN = (8, 10)  # the entries of ``filled`` of which nothing is left
DAMAGES = {"missing": None, "not JSON": b"{", "of another kind": b'{"kind": "x"}'}


async def damage(objects: MemoryObjectStore, key: str, data: bytes | None) -> None:
    await objects.delete([key])
    if data is not None:
        await objects.put(key, data)


def keys_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the objects that the log names as damaged."""
    return [getattr(one, "key", "") for one in caplog.records if one.getMessage() == DAMAGED]


async def inspected(store: MemoryMetadataStore, objects: MemoryObjectStore) -> RegistryJournal:
    """Return the journal of a process that starts, once it has done what it does."""
    journal = RegistryJournal(store, objects, CLUSTER)
    await journal.inspect()
    await journal.settled()
    return journal


@pytest.mark.parametrize("kind", DAMAGES)
async def test_any_lost_entry_is_named_and_written_again(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    states, whole = await filled()
    last = len(states) - 1
    for number in range(1, last):
        caplog.clear()
        store, objects = store_with(states[-1]), copy_of(whole)
        key = schema_key(CLUSTER, number)
        await damage(objects, key, DAMAGES[kind])
        named = {one.object for one in await check_schemas(objects, CLUSTER, store)}
        assert named == {key}
        journal = await inspected(store, objects)
        assert journal.health == JournalHealth(damaged_object_count=1)
        assert keys_in(caplog) == [key]
        assert await check_schemas(objects, CLUSTER, store) == []
        listing = await list_journal(objects, CLUSTER)
        assert len(listing.numbers[SchemaObject.CHECKPOINT]) == 1
        again, found = await restored(objects)
        assert found.problems == ()
        assert await items_of(again) == await items_of(store)
        kept, before = await items_of(store), await items_of(store_with(states[-1]))
        if number in OVERWRITTEN:  # It may have given an id to a schema that nothing shows.
            kept = {key: body for key, body in kept.items() if "schema-context" not in key}
            before = {key: body for key, body in before.items() if key in kept}
        assert kept == before


async def test_the_next_checkpoint_mends_what_was_lost_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    for schema in (A, B, C):
        await id_of(registry, schema)
    await objects.delete([schema_key(CLUSTER, 2)])
    for number in range(6):
        await set_level(store, objects, number)
    assert await check_schemas(objects, CLUSTER, store) == []
    again, found = await restored(objects)
    assert found.problems == ()
    assert await items_of(again) == await items_of(store)
    assert await require_whole(again) == 3


async def test_a_lost_deletion_is_written_again() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    deletion = SchemaDeletion(registry)
    await id_of(registry, A, "a")
    await deletion.delete_subject("a", is_permanent=False)
    await deletion.delete_subject("a", is_permanent=True)
    await id_of(registry, B, "b")
    await objects.delete([schema_key(CLUSTER, 3)])
    await inspected(store, objects)
    again, found = await restored(objects)
    assert found.problems == ()
    assert await items_of(again) == await items_of(store)
    assert await id_of(registry_on(again, objects), C, "c") == 3


async def test_the_entry_of_a_text_below_the_checkpoint_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    for schema in (A, B, C, record("R")):
        await id_of(registry, schema)
    await settled(registry)
    await objects.delete([schema_key(CLUSTER, 2)])
    assert len(await check_schemas(objects, CLUSTER, store)) == 1
    await inspected(store, objects)
    assert await check_schemas(objects, CLUSTER, store) == []
    _, found = await restored(objects)
    assert (found.schema_count, found.problems) == (4, ())


async def test_a_text_that_only_the_store_has_lost_stays_in_the_journal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another entry is lost too: what is written again must not remove the text."""
    monkeypatch.setattr(replay_module, "RECENT", 2)  # Else it is in the store at once.
    states, objects = await filled()
    items = dict(states[-1])
    (text,) = [one for one in items if one.collection == "schema-text:." and int(one.key) == 1]
    del items[text]
    store = store_with(items)
    await objects.delete([schema_key(CLUSTER, 1)])  # a level
    await inspected(store, objects)
    _, found = await restored(copy_of(objects))
    assert (found.schema_count, found.problems) == (5, ())
    (problem,) = await check_schemas(objects, CLUSTER, store)
    assert problem.object == f"{text.collection}/{text.key}"
    assert "register its text again" in problem.problem
    assert await id_of(registry_on(store, objects), A) == 1
    assert await check_schemas(objects, CLUSTER, store) == []


@pytest.mark.parametrize("kind", DAMAGES)
async def test_the_newest_entry_is_lost_until_a_person_accepts_it(kind: str) -> None:
    """Without it a process cannot tell whether the bucket is the right one."""
    states, objects = await filled()
    store, last = store_with(states[-1]), schema_key(CLUSTER, len(states) - 1)
    assert await newest_loss(store, objects, CLUSTER) is None
    await damage(objects, last, DAMAGES[kind])
    if kind == "missing":
        with pytest.raises(SchemasMovedOn, match=last):
            await id_of(registry_on(store, objects), A)
    assert await newest_loss(store, objects, CLUSTER) == last
    with pytest.raises(VersionConflict):  # A node has committed the next one since.
        await accept_loss(store, objects, CLUSTER, schema_key(CLUSTER, len(states) - 2))
    for _ in range(2):
        await accept_loss(store, objects, CLUSTER, last)
    assert await newest_loss(store, objects, CLUSTER) is None
    await RegistryJournal(store, objects, CLUSTER).adopt()  # as a node that starts
    await inspected(store, objects)
    assert await items_of(store) == await items_of(store_with(states[-1]))
    assert await check_schemas(objects, CLUSTER, store) == []
    again, found = await restored(objects)
    assert found.problems == ()
    assert await items_of(again) == await items_of(store)


async def checkpoints(objects: MemoryObjectStore) -> list[int]:
    return (await list_journal(objects, CLUSTER)).numbers[SchemaObject.CHECKPOINT]


@pytest.mark.parametrize("kind", ["not JSON", "cut", "empty"])
async def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(checkpoints_module, "KEPT", 2)
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    registry = registry_on(store, objects)
    for schema in (A, B, C):
        await id_of(registry, schema)
    for number in range(10):
        await set_level(store, objects, number)
    assert await checkpoints(objects) == [8, 12]
    newest = schema_key(CLUSTER, 12, SchemaObject.CHECKPOINT)
    data = await objects.get(newest)
    damages = {"not JSON": b"{" + data, "cut": data[: len(data) // 2], "empty": b""}
    await objects.replace(newest, damages[kind])
    bucket = copy_of(objects)
    again, found = await restored(bucket)
    assert [one.object for one in found.problems] == [newest]
    assert await items_of(again) == await items_of(store)
    assert await id_of(registry_on(again, bucket), record("New"), "new") == 4
    for number in range(3):
        await set_level(store, objects, number)
    assert keys_in(caplog) == [newest]
    assert await checkpoints(objects) == [8, 16]  # two whole ones
    assert (await read_journal(objects, CLUSTER)).problems == []
    for number in range(1, 5):
        await set_level(store, objects, number)
    assert await checkpoints(objects) == [16, 20]


async def test_a_checkpoint_that_is_not_what_was_written_removes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(checkpoints_module, "KEPT", 0)

    class Damaging(MemoryObjectStore):
        is_damaging = False

        async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
            if self.is_damaging and SchemaObject.CHECKPOINT.value in key:
                data = data[:-5]
            await super().put(key, data)

    store, objects = MemoryMetadataStore(latency=0), Damaging()
    for number in range(8):
        await set_level(store, objects, number)
    assert await checkpoints(objects) == [4, 8]
    before = set(objects._objects)
    objects.is_damaging = True
    for number in range(4):
        await set_level(store, objects, number)
    assert before < set(objects._objects)
    again, _ = await restored(copy_of(objects))
    assert await items_of(again) == await items_of(store)
    objects.is_damaging = False
    for number in range(4):
        await set_level(store, objects, number)
    assert await checkpoints(objects) == [8, 16]


@pytest.mark.parametrize("has_void", [False, True])
async def test_a_put_whose_number_was_lost_is_not_taken_for_a_change(has_void: bool) -> None:
    """A writer is slow; another one was faster, and the bucket loses that entry at once.

    A later entry may be void by then.
    """
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    await id_of(registry_on(store, objects), A)

    class Late(MemoryObjectStore):
        """Another writer's entry comes and goes before a put."""

        async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
            if key == schema_key(CLUSTER, 2) and key not in objects._objects:
                assert await id_of(registry_on(store, objects), B, "other") == 2
                del objects._objects[key]
                if has_void:
                    journal = RegistryJournal(store, objects, CLUSTER)
                    position = await journal._position()
                    entry = JournalEntry(3, position.store_id, ())
                    await objects.put(schema_key(CLUSTER, 3), entry.to_bytes())
                    await journal._void(entry, position, is_whole=True)
            await super().put(key, data, kms_key_id=kms_key_id)

    late = Late()
    late._objects = objects._objects
    assert await id_of(registry_on(store, late), C) == 3
    assert (await registry_on(store, objects).schema(2)).text == B.text
    await RegistryJournal(store, objects, CLUSTER).adopt()  # as a node that starts
    await inspected(store, objects)
    assert await check_schemas(objects, CLUSTER, store) == []
    again, found = await restored(objects)
    assert found.problems == ()
    assert await items_of(again) == await items_of(store)
