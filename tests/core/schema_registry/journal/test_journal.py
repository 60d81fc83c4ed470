"""The journal of the registry: what a process leaves that ends between two steps, and restoring."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import (
    ItemTooLarge,
    OutcomeUnknown,
    SchemasMovedOn,
    StoreUnavailable,
    VersionConflict,
)
from tidelog_core.metadata.records import RestorationMark, put, restoration_key
from tidelog_core.metadata.schema_records import SchemaJournal, SchemaText, schema_journal_key
from tidelog_core.metadata.store import ANY_VERSION, Check, Item, ItemKey, MetadataStore, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.restoration import schemas as restoring
from tidelog_core.restoration.schemas import restore_schemas
from tidelog_core.schema_registry.deletion import SchemaDeletion
from tidelog_core.schema_registry.journal import journal as journal_module
from tidelog_core.schema_registry.journal import journal_checkpoints as checkpoints_module
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.journal.journal_gaps import ID_JUMP
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility
from tidelog_core.tier.keys import SchemaObject, schema_key

from tests.contracts.schema_registry import Killed, KilledStore, record, refusal, require_whole
from tests.core.schema_registry.journal.journals import (
    CLUSTER,
    A,
    B,
    C,
    copy_of,
    fill,
    id_of,
    items_of,
    registry_on,
    restored,
    set_level,
    settled,
)
from tests.support.memory_store import MemoryMetadataStore


class EndedStore:
    """A metadata store whose process ends at a commit, or whose commits fail."""

    def __init__(self, store: MetadataStore, error: BaseException, *, after: bool = False) -> None:
        self._store, self._error, self._after = store, error, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        if self._after:
            await self._store.commit(writes, checks=checks)
        raise self._error


class Ended(BaseException):
    """The end of a process."""


@pytest.fixture
def store() -> MemoryMetadataStore:
    return MemoryMetadataStore(latency=0)


@pytest.fixture
def objects() -> MemoryObjectStore:
    return MemoryObjectStore()


async def test_a_lost_registry_comes_back_whole_and_gives_no_id_twice(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await fill(store, objects)
    again, found = await restored(objects)
    assert await items_of(again) == await items_of(store)
    assert (found.subject_count, found.schema_count, found.problems) == (3, 5, ())
    registry = registry_on(again, objects)
    assert await id_of(registry, record("New"), "new") == 6  # 5 was that of a removed schema
    assert await refusal(registry.register("order", Wanted(A))) == 42205
    twice, _ = await restored(objects)
    assert await items_of(twice) == await items_of(again)


async def test_checkpoints_replace_entries_and_keep_what_has_texts(
    store: MemoryMetadataStore, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(checkpoints_module, "KEPT", 4)
    await fill(store, objects)
    for n in range(40):
        await set_level(store, objects, n)
    keys = [one.key async for one in objects.list(f"{CLUSTER}/schemas/")]
    assert len(keys) < 25
    assert sum("checkpoint" in one for one in keys) == 2
    again, found = await restored(objects)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


@pytest.mark.parametrize("is_made", [False, True], ids=["before", "after"])
async def test_a_writer_that_ends_at_its_commit_leaves_an_entry_that_the_next_one_makes(
    store: MemoryMetadataStore, objects: MemoryObjectStore, is_made: bool
) -> None:
    assert await id_of(registry_on(store, objects), A) == 1
    ended = registry_on(EndedStore(store, Ended(), after=is_made), objects)
    with suppress(Ended):
        await id_of(ended, B)
    lost, _ = await restored(copy_of(objects))
    assert (await registry_on(lost, objects).schema(2)).text == B.text
    other = registry_on(store, objects)
    assert await id_of(other, C) == 3  # 2 is that of the other schema
    assert await id_of(other, B) == 2
    assert await require_whole(store) == 3


async def test_a_failed_commit_is_made_by_the_next_change(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)
    failing = registry_on(EndedStore(store, StoreUnavailable("away")), objects)
    with pytest.raises(StoreUnavailable):
        await id_of(failing, B)
    await RegistrySettings(registry_on(store, objects)).set_config(
        "", RegistryConfig(Compatibility.FULL)
    )
    assert await id_of(registry_on(store, objects), B) == 2


async def test_what_the_store_cannot_take_is_void(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)

    class Narrow(EndedStore):
        async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            if len(writes) > 1:
                raise self._error
            await self._store.commit(writes, checks=checks)

    too_large = ItemTooLarge(("schema-text:.", "2"), 500_000, limit=400_000)
    assert await refusal(registry_on(Narrow(store, too_large), objects).register("s", Wanted(B)))
    item = await store.get(schema_journal_key())
    assert item is not None
    assert SchemaJournal.from_item(item).void_count == 1
    assert SchemaJournal.from_item(item).is_whole  # No start has to adopt all items for it.
    assert await id_of(registry_on(store, objects), C) == 2
    again, found = await restored(objects)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


async def test_a_restoration_fences_the_old_nodes(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    old = registry_on(store, objects)
    assert await id_of(old, A) == 1
    again, _ = await restored(objects)
    for _ in range(2):
        with pytest.raises(SchemasMovedOn, match="of another metadata store"):
            await id_of(old, B)
    assert await id_of(registry_on(again, objects), C) == 2


async def test_a_restoration_fences_old_nodes_that_have_registered_nothing(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    journal = RegistryJournal(store, objects, CLUSTER)
    await journal.begin()
    again, _ = await restored(objects)
    with pytest.raises(SchemasMovedOn, match="of another metadata store"):
        await id_of(SchemaRegistry(store, committer=journal), A)
    assert await id_of(registry_on(again, objects), B) == 1


async def test_a_registry_that_is_called_during_a_restoration_hinders_it_not(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await fill(store, objects)
    lost = MemoryMetadataStore(latency=0)
    await lost.commit([put(RestorationMark(cluster_id=CLUSTER), is_logged=False)])
    early = registry_on(lost, objects)
    with pytest.raises(StoreUnavailable, match="a restoration is under way"):
        await id_of(early, A)
    assert (await restore_schemas(objects, CLUSTER, lost)).schema_count == 5
    await lost.commit([Write(restoration_key(), None, ANY_VERSION, False)])
    assert await items_of(lost) == await items_of(store)
    assert await id_of(early, record("New"), "new") == 6


async def test_a_store_that_was_set_back_takes_the_rest_from_the_bucket(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)
    back = MemoryMetadataStore(latency=0)
    back._items = dict(store._items)
    await id_of(registry_on(store, objects), B)
    assert await id_of(registry_on(back, objects), C) == 3
    assert (await registry_on(back, objects).schema(2)).text == B.text


async def test_a_store_that_was_set_back_too_far_gives_out_no_id(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)
    back = MemoryMetadataStore(latency=0)
    back._items = dict(store._items)
    for schema in (B, C, record("R")):
        await id_of(registry_on(store, objects), schema)
    await objects.delete([schema_key(CLUSTER, 2)])  # as checkpoints do, much later
    with pytest.raises(SchemasMovedOn, match="has 1 entries"):
        await id_of(registry_on(back, objects), record("Other"))


async def test_another_bucket_or_none_is_refused(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)
    with pytest.raises(SchemasMovedOn, match="have all nodes the same object store"):
        await id_of(registry_on(store, MemoryObjectStore()), B)
    with pytest.raises(SchemasMovedOn, match="that this process has not"):
        await id_of(SchemaRegistry(store), B)
    assert await id_of(registry_on(store, objects), B) == 2


async def test_schemas_of_older_programs_are_adopted(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    old = SchemaRegistry(store)
    for n in range(12):
        await id_of(old, record("R", *(f"f{i}" for i in range(n))))
    before = await items_of(store)
    journal = RegistryJournal(store, objects, CLUSTER)
    await journal.adopt()
    again, found = await restored(copy_of(objects))
    assert await items_of(again) == before == await items_of(store)
    assert not found.problems
    puts = len([one async for one in objects.list("")])
    await journal.adopt()
    assert len([one async for one in objects.list("")]) == puts


async def test_an_older_program_that_writes_beside_the_journal_blocks_nobody(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    """Its write makes an entry impossible that was put, but not committed."""
    await id_of(registry_on(store, objects), A)
    with suppress(Ended):
        await id_of(registry_on(EndedStore(store, Ended()), objects), B)
    (subject,) = await store.list("schema-subject")
    deleted = {**subject.body, "versions": [[1, 1, True]]}
    await store.commit([Write(subject.id, deleted, subject.version, False)])
    assert await id_of(registry_on(store, objects), C) == 2
    item = await store.get(schema_journal_key())
    assert item is not None
    assert not SchemaJournal.from_item(item).is_whole  # The next start adopts all items again.
    await RegistryJournal(store, objects, CLUSTER).adopt()
    again, found = await restored(objects)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


@pytest.mark.parametrize("damage", ["missing", "corrupt"])
async def test_a_damaged_entry_is_named_and_no_id_is_given_twice(
    store: MemoryMetadataStore, objects: MemoryObjectStore, damage: str
) -> None:
    for schema in (A, B, C, record("R")):
        await id_of(registry_on(store, objects), schema)
    key = schema_key(CLUSTER, 3)
    await objects.delete([key])
    if damage == "corrupt":
        await objects.put(key, b"{")
    again, found = await restored(objects)
    assert [one.object for one in found.problems] == [key]
    registry = registry_on(again, objects)
    assert (await registry.schema(1)).text == A.text
    assert await refusal(registry.schema(3)) == 40403
    assert await id_of(registry, record("New"), "new") == 4 + ID_JUMP + 1


async def test_a_context_of_a_damaged_entry_goes_on_far_above_its_known_ids(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    await id_of(registry_on(store, objects), A)
    settings = RegistrySettings(registry_on(store, objects))
    await settings.set_config("", RegistryConfig(Compatibility.FULL))
    await objects.replace(schema_key(CLUSTER, 1), b"{")  # It has the context, too.
    again, found = await restored(objects)
    assert len(found.problems) == 1
    assert await id_of(registry_on(again, objects), B) == ID_JUMP + 1


async def test_texts_tell_of_ids_if_the_entry_with_the_context_is_damaged(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    for schema in (A, B, C):
        await id_of(SchemaRegistry(store), schema)
    await RegistryJournal(store, objects, CLUSTER).adopt()
    await objects.replace(schema_key(CLUSTER, 1), b"{")
    again, _ = await restored(objects)
    assert await id_of(registry_on(again, objects), record("New"), "new") == 3 + ID_JUMP + 1


async def test_an_entry_is_not_void_while_another_writers_commit_of_it_shows(
    store: MemoryMetadataStore, objects: MemoryObjectStore
) -> None:
    """Its items conflict already, and the position is still read as it was."""

    class Showing:
        before: Item | None = None

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def get(self, id: ItemKey) -> Item | None:
            shown, self.before = self.before, None
            return shown if shown is not None and shown.id == id else await store.get(id)

        async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            before = await store.get(schema_journal_key())
            await store.commit(writes)
            self.before = before
            raise VersionConflict([(writes[0].id.collection, writes[0].id.key)])

    await id_of(registry_on(store, objects), A)
    assert await id_of(registry_on(Showing(), objects), B) == 2
    keys = [one.key async for one in objects.list(f"{CLUSTER}/schemas/")]
    assert not any(SchemaObject.VOID.value in one for one in keys)
    again, found = await restored(objects)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


async def test_writers_of_one_process_take_turns(store: MemoryMetadataStore) -> None:
    class Counting(MemoryObjectStore):
        put_count = 0

        async def put(self, key: str, data: bytes, *, kms_key_id: str = "") -> None:
            self.put_count += 1
            await super().put(key, data, kms_key_id=kms_key_id)

    objects = Counting()
    registry = registry_on(store, objects)
    deletion, settings = SchemaDeletion(registry), RegistrySettings(registry)
    for n in range(10):
        await id_of(registry, A, f"s{n}")
    level = RegistryConfig(Compatibility.FULL)
    await asyncio.gather(
        *(settings.set_config(f"t{n}", level) for n in range(20)),
        *(deletion.delete_subject(f"s{n}", is_permanent=False) for n in range(5)),
        *(deletion.delete_version(f"s{n}", 1, is_permanent=False) for n in range(5, 10)),
        *(id_of(registry, B, f"u{n}") for n in range(10)),
    )
    assert objects.put_count == 1 + 10 + 40  # None found its number taken.


async def test_a_deletion_whose_answer_was_lost_says_what_it_has_deleted(
    store: MemoryMetadataStore,
) -> None:
    registry = SchemaRegistry(store)
    deletion = SchemaDeletion(registry)
    for schema in (A, B, C):
        await id_of(registry, schema)
    await deletion.delete_subject("s-value", is_permanent=False)
    lost: Iterator[Exception | None] = iter([None, OutcomeUnknown("lost"), OutcomeUnknown("lost")])
    store.on_commit = lambda _: next(lost, None)
    assert await deletion.delete_subject("s-value", is_permanent=True) == [1, 2, 3]
    assert await refusal(registry.version("s-value", 1, with_deleted=True)) == 40401


async def test_a_failed_checkpoint_fails_no_registration(
    store: MemoryMetadataStore, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 2)

    class NoCheckpoints(MemoryObjectStore):
        async def put_file(self, key: str, path: Path, *, kms_key_id: str = "") -> None:
            raise StoreUnavailable("away")

    failing = NoCheckpoints()
    registry = registry_on(store, failing)
    assert [await id_of(registry, one) for one in (A, B, C)] == [1, 2, 3]
    await settled(registry)
    assert isinstance(registry.committer, RegistryJournal)
    assert registry.committer.health.failed_checkpoint_count == 1
    again, found = await restored(failing)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


class EndedObjects:
    """An object store whose process ends at the n-th call of a method, or after it."""

    def __init__(self, objects: Any, method: str, *, calls: int = 0, after: bool = False) -> None:
        self._objects, self._method, self._calls, self._after = objects, method, calls, after
        self.error: BaseException = Ended()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)
        if name != self._method:
            return found

        async def ending(*args: Any, **given: Any) -> Any:
            self._calls -= 1
            if self._calls >= 0:
                return await found(*args, **given)
            if self._after:
                await found(*args, **given)
            raise self.error

        return ending


@pytest.mark.parametrize("is_put", [False, True], ids=["lost", "put"])
async def test_a_put_with_an_unknown_outcome_is_registered_once(
    store: MemoryMetadataStore, objects: MemoryObjectStore, is_put: bool
) -> None:
    assert await id_of(registry_on(store, objects), A) == 1

    class OnceUnknown(EndedObjects):
        def __getattr__(self, name: str) -> Any:
            found = super().__getattr__(name)
            self._method = ""  # The next one has an answer.
            return found

    unsure = OnceUnknown(objects, "put", after=is_put)
    unsure.error = OutcomeUnknown("the answer was lost")
    assert await id_of(registry_on(store, unsure), B) == 2
    assert await id_of(registry_on(store, objects), C) == 3
    assert await require_whole(store) == 3


@pytest.mark.parametrize(
    ("method", "after"),
    [("put_file", False), ("put_file", True), ("delete", False), ("delete", True)],
)
async def test_a_checkpoint_that_ends_in_the_middle_is_made_up_for(
    store: MemoryMetadataStore,
    objects: MemoryObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    after: bool,
) -> None:
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 4)
    monkeypatch.setattr(checkpoints_module, "KEPT", 2)
    await fill(store, objects)
    for n in range(12):
        # The manifest of the cluster is replaced before, and not through this store.
        ending = EndedObjects(objects, method, after=after)
        ending.error = StoreUnavailable("away")
        await set_level(store, ending, n)
    between, found = await restored(copy_of(objects))
    assert not found.problems
    assert await items_of(between) == await items_of(store)
    for n in range(8):
        await set_level(store, objects, n)
    assert len([one async for one in objects.list(f"{CLUSTER}/schemas/")]) < 20
    again, found = await restored(objects)
    assert not found.problems
    assert await items_of(again) == await items_of(store)


async def test_a_restoration_that_ends_at_any_commit_is_continued(
    store: MemoryMetadataStore, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "COMMIT_ITEMS_MAX", 2)
    await fill(store, objects)

    class EndsAt(EndedStore):
        left = 0

        async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
            self.left -= 1
            if self.left < 0:
                raise self._error
            await self._store.commit(writes, checks=checks)

    lost, ends = MemoryMetadataStore(latency=0), 0
    while True:
        ending = EndsAt(lost, Ended())
        ending.left = ends
        with suppress(Ended):
            found = await restore_schemas(objects, CLUSTER, ending)
            break
        ends += 1
    assert ends > 5
    assert not found.problems
    assert await items_of(lost) == await items_of(store)
    assert await id_of(registry_on(lost, objects), record("New"), "new") == 6


async def test_under_any_kills_the_bucket_has_what_was_answered(
    store: MemoryMetadataStore, objects: MemoryObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writers end at puts and commits; after each answer the bucket alone has the schema."""
    monkeypatch.setattr(journal_module, "CHECKPOINT_EVERY", 5)
    chance = random.Random(f"{CLUSTER} 1")
    given: dict[str, int] = {}
    for n in range(120):
        schema = record("R", *(f"f{i}" for i in range(chance.randrange(8))))
        ended = EndedObjects(objects, "put", calls=chance.randrange(2), after=chance.random() < 0.5)
        registry = registry_on(KilledStore(store, chance), ended if n % 3 else objects)
        with suppress(Killed, Ended):
            found = await registry.register(f"s{n % 3}", Wanted(schema))
            assert given.setdefault(schema.text, found.schema_id) == found.schema_id
        if n % 10 == 9:
            lost, restoration = await restored(copy_of(objects))
            assert restoration.problems == ()
            texts = [SchemaText.from_item(one) for one in await lost.list("schema-text:.")]
            assert given.items() <= {one.text: one.schema_id for one in texts}.items()
    last = await id_of(registry_on(store, objects), record("Last"), "last")
    assert len(given) == 8
    assert await require_whole(store) == last == 9
    lost, _ = await restored(objects)
    assert await items_of(lost) == await items_of(store)


# Registers a schema and is killed by itself at one of the steps; says what it was told.
KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from tests.contracts.schema_registry import record
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted

def end():
    os.kill(os.getpid(), signal.SIGKILL)

class Objects(FolderObjectStore):
    async def put(self, key, data, *, kms_key_id=""):
        if STEP == "put":
            end()
        await super().put(key, data, kms_key_id=kms_key_id)

class Store(SqliteMetadataStore):
    async def commit(self, writes, *, checks=()):
        if STEP == "commit":
            end()
        await super().commit(writes, checks=checks)
        if STEP == "answer":
            end()

async def main(folder):
    global STEP
    STEP = ""
    store = Store(folder / "metadata.db")
    registry = SchemaRegistry(
        store, committer=RegistryJournal(store, Objects(folder / "objects"), "c"))
    first = await registry.register("s-value", Wanted(record("R")))
    STEP = sys.argv[2]
    found = await registry.register("s-value", Wanted(record("R", "x")))
    print(first.schema_id, found.schema_id, flush=True)
    await store.close()

asyncio.run(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize("step", ["put", "commit", "answer", "none"])
async def test_no_kill_between_two_steps_loses_an_answered_schema(
    tmp_path: Path, step: str
) -> None:
    """The metadata store is lost with the process: ids go on, and none is given twice."""
    done = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-c", KILLED, str(tmp_path), step],
        env={**os.environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == (0 if step == "none" else -signal.SIGKILL), done.stderr
    in_bucket = step != "put"
    objects = FolderObjectStore(tmp_path / "objects")
    store = SqliteMetadataStore(tmp_path / "restored.db")
    found = await restore_schemas(objects, CLUSTER, store)
    assert (found.schema_count, found.problems) == (1 + in_bucket, ())
    registry = registry_on(store, objects)
    assert await id_of(registry, record("R", "y"), "other") == 2 + in_bucket
    assert await id_of(registry, record("R", "x")) == (2 if in_bucket else 3)
    assert await require_whole(store) == 3
    await store.close()
