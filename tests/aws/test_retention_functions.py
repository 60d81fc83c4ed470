"""Retention and scrub where they are deployed: DynamoDB and S3, by the handlers themselves."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
from tidelog_core.metadata.stores.dynamodb import DynamoDbMetadataStore
from tidelog_core.objects.location import parse_object_location
from tidelog_core.objects.s3 import S3ObjectStore
from tidelog_core.retention.orphans import AgeLimits
from tidelog_functions.local.events import object_created, scheduled
from tidelog_functions.retention.handler import handle as retain
from tidelog_functions.scrub.handler import handle as scrub

from tests.aws.buckets import make_bucket
from tests.support.function_world import DAY_MS, FunctionWorld, Steps
from tests.support.retention_drama import DELAY_MS, Drama, prepare
from tests.support.watched_stores import Fault, Process

BUCKET = "tidelog-functions"

Deployed = Callable[[], AbstractAsyncContextManager[FunctionWorld]]


@pytest.fixture
def deployed(
    dynamodb_local_endpoint: str,
    ministack_endpoint: str,
    aws_credentials: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Deployed:
    """Opens a table and a prefix of its own, which the environment names too."""
    make_bucket(ministack_endpoint, BUCKET)

    @asynccontextmanager
    async def opened() -> AsyncIterator[FunctionWorld]:
        table, prefix = f"tidelog-{uuid.uuid4().hex}", f"{uuid.uuid4().hex}/nested"
        place = f"region=us-east-1&endpoint={dynamodb_local_endpoint}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", ministack_endpoint)
        monkeypatch.setenv("TIDELOG_METADATA", f"dynamodb://{table}?{place}")
        monkeypatch.setenv("TIDELOG_OBJECTS", f"s3://{BUCKET}/{prefix}")
        store = DynamoDbMetadataStore(table, region="us-east-1", endpoint=dynamodb_local_endpoint)
        objects = S3ObjectStore(BUCKET, prefix=prefix, endpoint=ministack_endpoint)
        try:
            await store.create_table()
            world = FunctionWorld(store, objects)
            await world.start()
            yield world
        finally:
            await objects.close()
            await store.close()

    return opened


async def test_segments_go_by_event_and_schedule_and_orphans_by_the_scrub(
    deployed: Deployed,
) -> None:
    async with deployed() as world:
        configs = {"retention.ms": "3600000", "file.delete.delay.ms": "0"}
        topic, other = [await world.create_topic(n, configs=configs) for n in ("a", "b")]
        for one in (topic, other):
            await world.copy(one, 0, age_ms=DAY_MS)
            await world.copy(one, 10)
        (_, newest) = await world.segments(topic.topic_id)
        prefix = parse_object_location(os.environ["TIDELOG_OBJECTS"]).prefix
        key = f"{prefix}{world.keys(topic, newest).index}"
        event = object_created(BUCKET, key, now_ms=0)
        for expected in (1, 0):  # the second time it finds it done
            summary = await asyncio.to_thread(retain, event, Steps())
            assert summary["segment_deleted_count"] == expected
        assert len(await world.segments(other.topic_id)) == 2
        schedule = scheduled("retention", now_ms=0)
        summary = await asyncio.to_thread(retain, schedule, Steps())
        assert summary["segment_deleted_count"] == 1
        assert len(await world.present()) == 4
        tombstone = await world.delete_topic(other)
        summary = await asyncio.to_thread(retain, schedule, Steps())
        assert summary["next_deletion_ms"] == tombstone.deleted_ms + 60_000
        world.clock.now_ms += 60_001
        await world.retain()
        assert len(await world.present()) == 2
        assert await world.store.get(tombstone.item_id) is None
        # The one segment that is left covers what an upload has left behind.
        await world.put_orphan(topic, 10)
        report = await asyncio.to_thread(scrub, scheduled("scrub", now_ms=0), Steps())
        assert (report["young_count"], report["orphan_count"]) == (2, 0)
        world.clock.now_ms += DAY_MS
        limits = AgeLimits(orphan_age_ms=DAY_MS // 2, doubtful_age_ms=DAY_MS)
        assert (await world.scrub(limits=limits)).orphan_count == 2
        assert len(await world.present()) == 2


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (9, Fault.UNKNOWN),
        (14, Fault.DIES_AFTER),
        (19, Fault.DIES_BEFORE),
        pytest.param(24, Fault.UNKNOWN, marks=pytest.mark.slow),
        (29, Fault.FAILS),
        pytest.param(36, Fault.DIES_AFTER, marks=pytest.mark.slow),
        pytest.param(43, Fault.DIES_BEFORE, marks=pytest.mark.slow),
    ],
)
async def test_a_crash_or_failure_is_made_up_for(
    deployed: Deployed, number: int, fault: Fault
) -> None:
    async with deployed() as world:
        cluster = Drama(world)
        await cluster.start()
        await prepare(cluster)
        process = Process(number, fault)
        await cluster.call((), [process, Process()], 1_000_000)
        world.clock.now_ms += DELAY_MS + 1
        await cluster.call((), [process, Process()], 1_000_000)
        await cluster.end()
