"""Groups on DynamoDB: what a commit's check costs does not grow with the topics subscribed to."""

from __future__ import annotations

import pytest

from tests.aws.test_dynamodb_store import ANSWER_TIMEOUT_S, new_table, opened
from tests.support.group_commits import commit_cost, consumer_by_names


@pytest.fixture
async def table(dynamodb_local_endpoint: str) -> str:
    return await new_table(dynamodb_local_endpoint)


@pytest.mark.usefixtures("aws_credentials")
async def test_a_commit_in_a_group_of_many_topics_checks_an_item_of_one_unit(
    dynamodb_local_endpoint: str, table: str
) -> None:
    async with opened(table, dynamodb_local_endpoint, read_timeout=ANSWER_TIMEOUT_S) as store:
        used = await commit_cost(store, 40, consumer_by_names)
    # A check in a transaction takes each unit twice.
    assert {units["group"] for units in used} == {2}
