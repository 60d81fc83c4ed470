"""Programs that poll on after every error: nodes are not asked as fast as they do."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog import Consumer
from tidelog.errors import TidelogError
from tidelog.wire import requests

from tests.sdk.scripted_node import TOPIC, ScriptedNode, fetched, of

CALM_MAX = 40  # of requests in a second; a hot loop sends thousands
SECONDS = 1.0


async def poll_on(consumer: Consumer) -> Counter[str]:
    """Poll for some time behind the first error; return the names of the errors."""
    errors: Counter[str] = Counter()
    ends_at = math.inf
    while time.monotonic() < ends_at or errors.total() < 2:
        try:
            await consumer.poll(timeout_ms=100)
        except TidelogError as error:
            errors[type(error).__name__] += 1
            ends_at = min(ends_at, time.monotonic() + SECONDS)
        await asyncio.sleep(0)
    return errors


def joining(code: ErrorCode) -> Any:
    return lambda _: of(requests.JOIN_GROUP, error_code=code, members=())


def beating(code: ErrorCode) -> Any:
    return lambda _: of(requests.CONSUMER_GROUP_HEARTBEAT, error_code=code)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize(
    "code", [ErrorCode.group_authorization_failed, ErrorCode.group_max_size_reached]
)
async def test_a_group_that_refuses_a_member_is_not_asked_in_a_hot_loop(
    protocol: Any, code: ErrorCode
) -> None:
    async with (
        ScriptedNode(join_group=joining(code), consumer_group_heartbeat=beating(code)) as node,
        Consumer(node.address, topics=TOPIC, group_id="g", group_protocol=protocol) as consumer,
    ):
        errors = await poll_on(consumer)
        asked = node.count(requests.JOIN_GROUP) + node.count(requests.CONSUMER_GROUP_HEARTBEAT)
        assert 1 < asked < CALM_MAX
        assert errors.total() > 1


async def test_offsets_that_may_not_be_read_are_not_asked_for_in_a_hot_loop() -> None:
    def refuse(request: Any) -> Any:
        return of(
            requests.OFFSET_FETCH,
            groups=tuple(
                of(
                    requests.OFFSET_FETCH,
                    "OffsetFetchResponseGroup",
                    group_id=group.group_id,
                    topics=(),
                    error_code=ErrorCode.group_authorization_failed,
                )
                for group in request.groups
            ),
        )

    async with (
        ScriptedNode(offset_fetch=refuse) as node,
        Consumer(node.address, group_id="g") as consumer,
    ):
        consumer.assign([(TOPIC, 0)])
        errors = await poll_on(consumer)
        assert 1 < node.count(requests.OFFSET_FETCH) < CALM_MAX
        assert errors.keys() == {"GroupAuthorizationFailed"}


async def test_a_topic_that_may_not_be_read_is_not_fetched_in_a_hot_loop() -> None:
    def refuse(request: Any) -> Any:
        return fetched(request, error=ErrorCode.topic_authorization_failed)

    async with ScriptedNode(fetch_by_name=refuse) as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek((TOPIC, 0), 0)
        errors = await poll_on(consumer)
        assert 1 < node.count(requests.FETCH_BY_NAME) < CALM_MAX
        assert errors.keys() == {"TopicAuthorizationFailed"}


async def test_bytes_that_are_no_batch_are_not_fetched_in_a_hot_loop() -> None:
    def garbage(request: Any) -> Any:
        return fetched(request, b"garbage" * 20, high_watermark=9)

    async with ScriptedNode(fetch_by_name=garbage) as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek((TOPIC, 0), 0)
        errors = await poll_on(consumer)
        assert 1 < node.count(requests.FETCH_BY_NAME) < CALM_MAX
        assert errors.keys() == {"UnsupportedMagic"}


async def test_a_batch_whose_bytes_are_damaged_is_not_fetched_in_a_hot_loop() -> None:
    from tests.support.batches import batch_of

    damaged = bytearray(batch_of(b"value"))
    damaged[-1] ^= 1

    def answer(request: Any) -> Any:
        return fetched(request, bytes(damaged), high_watermark=9)

    async with ScriptedNode(fetch_by_name=answer) as node, Consumer(node.address) as consumer:
        consumer.assign([(TOPIC, 0)])
        consumer.seek((TOPIC, 0), 0)
        errors = await poll_on(consumer)
        assert 1 < node.count(requests.FETCH_BY_NAME) < CALM_MAX
        assert errors.keys() == {"CorruptRecordBatch"}
