"""``tidelog verify`` names the objects of the journal that a restoration would miss."""

from __future__ import annotations

from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted
from tidelog_core.tier.keys import schema_key
from tidelog_core.verification.schema_check import check_schemas

from tests.contracts.schema_registry import record
from tests.support.memory_store import MemoryMetadataStore


async def test_damaged_and_missing_entries_are_named() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    assert await check_schemas(objects, "c", store) == []
    registry = SchemaRegistry(store, committer=RegistryJournal(store, objects, "c"))
    for fields in ((), ("x",), ("x", "y")):
        await registry.register("a", Wanted(record("R", *fields)))
    assert await check_schemas(objects, "c", store) == []
    assert await check_schemas(objects, "c") == []
    await objects.replace(schema_key("c", 2), b"{")
    await objects.delete([schema_key("c", 3)])
    found = {one.object: one.problem for one in await check_schemas(objects, "c", store)}
    assert found.keys() == {schema_key("c", 2), schema_key("c", 3)}
    assert "not JSON" in found[schema_key("c", 2)]
    assert "the metadata store has its changes" in found[schema_key("c", 3)]
    only_bucket = [one.object for one in await check_schemas(objects, "c")]
    assert only_bucket == [schema_key("c", 2)]  # The bucket cannot tell that there was a third.


async def test_schemas_that_the_bucket_does_not_have_are_named() -> None:
    store, objects = MemoryMetadataStore(latency=0), MemoryObjectStore()
    await SchemaRegistry(store).register("a", Wanted(record("R")))  # as older programs do
    (found,) = await check_schemas(objects, "c", store)
    assert "lacks schemas of the metadata store" in found.problem
    journal = RegistryJournal(store, objects, "c")
    await journal.begin()
    assert len(await check_schemas(objects, "c", store)) == 1
    await journal.adopt()
    assert await check_schemas(objects, "c", store) == []
