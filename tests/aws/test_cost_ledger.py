"""The ledger on DynamoDB Local, and what keeping it takes of DynamoDB."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tidelog_core.cost.counts import ITEMS
from tidelog_core.cost.entries import Addition, Limits, Tally
from tidelog_core.cost.ledger import add
from tidelog_core.cost.prices import list_prices
from tidelog_core.metadata.store import MetadataStore

from tests.aws.test_dynamodb_store import ANSWER_TIMEOUT_S, new_table, opened
from tests.contracts.cost_ledger import NOW_HOUR, CostLedgerContract
from tests.contracts.metadata_update import Open


@pytest.mark.usefixtures("aws_credentials")
class TestOnDynamoDbLocal(CostLedgerContract):
    hours = 5

    @pytest.fixture
    async def table(self, dynamodb_local_endpoint: str) -> str:
        return await new_table(dynamodb_local_endpoint)

    @pytest.fixture
    def open(self, dynamodb_local_endpoint: str, table: str) -> Open:
        @asynccontextmanager
        async def open_store() -> AsyncIterator[MetadataStore]:
            async with opened(table, dynamodb_local_endpoint, read_timeout=10.0) as store:
                yield store

        return open_store


@pytest.mark.usefixtures("aws_credentials")
async def test_a_node_with_many_topics_pays_a_few_units_a_minute(
    dynamodb_local_endpoint: str,
) -> None:
    """An addition reads the item and writes it: with 20 topics of all items, below 6 KB."""
    table = await new_table(dynamodb_local_endpoint)
    tally = Tally()
    topic_items = [name for name in ITEMS if name.startswith(("object", "zone", "function-event"))]
    for topic in range(20):
        for name in topic_items:
            tally.add(name, 10**9, topic=f"a-topic-with-a-name-{topic}")
    for name in ITEMS:
        tally.add(name, 10**12)
    limits = Limits(list_prices(), 20)
    async with opened(table, dynamodb_local_endpoint, read_timeout=ANSWER_TIMEOUT_S) as store:
        for number in range(2):
            addition = Addition(f"token-{number}", NOW_HOUR, "node-101", tally)
            read, written = store.usage.read_units, store.usage.write_units
            assert await add(store, addition, limits, now_hour=NOW_HOUR)
        assert store.usage.read_units - read <= 3
        assert store.usage.write_units - written <= 10
