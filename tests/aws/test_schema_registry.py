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
    schema_count, writer_count = 2, 2  # DynamoDB Local takes 50 ms for a commit

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
