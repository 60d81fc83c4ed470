"""The schema registry in DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_core.metadata.store import MetadataStore

from tests.aws.test_dynamodb_store import new_table, opened
from tests.contracts.metadata_update import Open
from tests.contracts.schema_registry import SchemaRegistryContract


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
