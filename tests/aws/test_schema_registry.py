"""The schema registry in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_core.metadata.schema_records import schema_context_key, schema_text_key
from tidelog_core.metadata.store import ANY_VERSION, MetadataStore, Write
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.schema_registry.journal.journal import RegistryJournal
from tidelog_core.schema_registry.registry import SchemaRegistry, Wanted

from tests.aws.test_dynamodb_store import new_table, opened
from tests.contracts.metadata_update import Open
from tests.contracts.schema_registry import SchemaRegistryContract, record, require_whole


@pytest.mark.usefixtures("aws_credentials")
class TestRegistryOnDynamoDbLocal(SchemaRegistryContract):
    schema_count, writer_count = 3, 4

    @pytest.fixture
    async def table(self, dynamodb_local_endpoint: str, aws_credentials: None) -> str:
        return await new_table(dynamodb_local_endpoint)

    @pytest.fixture
    def open(self, dynamodb_local_endpoint: str, table: str) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            async with opened(table, dynamodb_local_endpoint) as store:
                yield store

        return open_store

    @pytest.mark.slow  # DynamoDB Local takes 50 ms for a commit; memory and SQLite run it always.
    async def test_ids_are_dense_and_unique_when_writers_are_killed(self, open: Open) -> None:
        await super().test_ids_are_dense_and_unique_when_writers_are_killed(open)

    async def test_items_of_a_recovered_table_are_completed_by_the_journal(
        self, open: Open
    ) -> None:
        """The recovery went through a change: two of its items are as they were before."""
        objects = MemoryObjectStore()
        async with open() as store:
            first = SchemaRegistry(store, committer=RegistryJournal(store, objects, "c"))
            await first.register("a", Wanted(record("A")))
            before = await store.get(schema_context_key("."))
            assert before is not None
            await first.register("a", Wanted(record("A", "x")))
            behind = Write(before.id, before.body, ANY_VERSION, is_logged=False)
            lost = Write(schema_text_key(".", 2), None, ANY_VERSION, is_logged=False)
            await store.commit([behind, lost])
            again = SchemaRegistry(store, committer=RegistryJournal(store, objects, "c"))
            assert (await again.register("b", Wanted(record("B")))).schema_id == 3
            assert (await again.schema(2)).text == record("A", "x").text
            assert await require_whole(store) == 3
