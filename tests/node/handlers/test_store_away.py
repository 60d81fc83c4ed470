"""What administrators hear when the metadata store does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tidelog_core.errors import ErrorCode, OutcomeUnknown, StoreUnavailable, VersionConflict

from tests.node.handlers.control_plane import Node
from tests.node.handlers.unsteady_store import one_node

NEW_TOPIC = {
    "name": "t",
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
}


async def create(node: Node) -> Any:
    (answer,) = (await node.ask(19, 7, topics=[NEW_TOPIC], validate_only=False)).topics
    return answer.error_code


@pytest.mark.parametrize(
    "failure",
    [StoreUnavailable("away"), OutcomeUnknown("who knows"), VersionConflict([("topic", "t")])],
    ids=lambda failure: type(failure).__name__,
)
async def test_changes_that_could_not_be_stored_may_be_tried_again(
    tmp_path: Path, failure: Exception
) -> None:
    store, node = await one_node(tmp_path)
    assert await create(node) is ErrorCode.none
    store.commit_failure = failure
    alteration = {"name": "retention.ms", "config_operation": 0, "value": "5000"}
    resource = {"resource_type": 2, "resource_name": "t", "configs": [alteration]}
    new = {**NEW_TOPIC, "name": "u"}
    created = (await node.ask(19, 7, topics=[new], validate_only=False)).topics[0]
    altered = (await node.ask(44, 1, resources=[resource], validate_only=False)).responses[0]
    deleted = (await node.ask(20, 5, topic_names=["t"])).responses[0]
    widened = {"name": "t", "count": 3, "assignments": None}
    more = (await node.ask(37, 3, topics=[widened], validate_only=False)).results[0]
    for answer in (created, altered, deleted, more):
        assert answer.error_code is ErrorCode.request_timed_out
        assert answer.error_code.retriable
    store.commit_failure = None
    image = await node.view.refresh()
    assert list(image.topics) == ["t"]
    assert dict(image.topics["t"].configs) == {}
    assert image.topics["t"].partition_count == 1
    await store.close()


async def test_a_topic_that_was_stored_is_created_even_if_the_store_is_away_at_once(
    tmp_path: Path,
) -> None:
    store, node = await one_node(tmp_path)
    store.is_away_after_commit = True
    assert await create(node) is ErrorCode.none
    store.is_unreadable = store.is_away_after_commit = False
    assert list((await node.view.refresh()).topics) == ["t"]
    await store.close()


def test_a_consumer_tries_again_when_a_store_is_away() -> None:
    """Java's consumer takes COORDINATOR_NOT_AVAILABLE in a Fetch answer for a broken broker."""
    assert StoreUnavailable.code is ErrorCode.kafka_storage_error
