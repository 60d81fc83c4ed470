"""A log that goes offline is news, whatever took it there and on whatever thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.log.local_log import LocalLog

from tests.node.fetching.session_world import SessionClient, fetch_world, is_waiting
from tests.node.fetching.test_session_fetches import settled_client
from tests.support.batches import batch_of
from tests.support.request_contexts import context_of

SECONDS_MAX = 60.0
WAIT_MS = 60_000

FAILURES: dict[str, Callable[[LocalLog], object]] = {
    "an error of the disk": lambda log: log._segments.go_offline(),
    "it must not be added to": lambda log: log.take_offline(),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_consumer_that_waits_is_told_at_once(tmp_path: Path, failure: str) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=3)
        client = await settled_client(world, "t", 3)
        reply = world.handler.handle(
            client.next_request(max_wait_ms=WAIT_MS),
            context_of(client.version, node_id=client.replica_id),
        )
        assert is_waiting(reply)
        log = world.replica("t", 1).log
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(world.executor, FAILURES[failure], log)
        async with asyncio.timeout(SECONDS_MAX):
            client.take(await reply)  # type: ignore[misc]
        key = world.key("t", 1, by_id=True)
        assert client.errors == {key: ErrorCode.kafka_storage_error}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_follower_that_has_the_whole_log_is_told_at_once(
    tmp_path: Path, failure: str
) -> None:
    """Nothing is left to read there, so reading does not find out."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", partitions=3)
        follower = await settled_client(world, "t", 3, replica_id=2)
        reply = world.handler.handle(
            follower.next_request(max_wait_ms=WAIT_MS),
            context_of(follower.version, node_id=follower.replica_id),
        )
        assert is_waiting(reply)
        FAILURES[failure](world.replica("t", 1).log)
        async with asyncio.timeout(SECONDS_MAX):
            follower.take(await reply)  # type: ignore[misc]
        key = world.key("t", 1, by_id=True)
        assert follower.errors == {key: ErrorCode.kafka_storage_error}


async def test_a_follower_at_the_end_of_an_offline_log_counts_as_in_sync(tmp_path: Path) -> None:
    """What the leader has acknowledged is there, and it may have to lead."""
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t")
        replica = world.replica("t")
        replica.append(memoryview(bytearray(batch_of(b"v"))))
        replica.log._segments.go_offline()
        for broker_id in (2, 3):
            follower = SessionClient(world, by_id=True, replica_id=broker_id)
            follower.want(world.key("t", 0, by_id=True), 1, leader_epoch=0)
            await follower.fetch()
            assert list(follower.errors.values()) == [ErrorCode.kafka_storage_error]
        assert replica.log.high_watermark == 1


async def test_a_session_without_a_request_is_told_by_the_next(tmp_path: Path) -> None:
    async with fetch_world(tmp_path) as world:
        await world.create_topic("t", replicas=(1,), partitions=3)
        client = await settled_client(world, "t", 3)
        world.replica("t", 1).log._segments.go_offline()
        await asyncio.sleep(0)
        await client.fetch()
        key = world.key("t", 1, by_id=True)
        assert client.errors == {key: ErrorCode.kafka_storage_error}
