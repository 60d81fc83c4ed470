"""The retention function, called as Lambda calls it, on the embedded stores."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata import records
from tidelog_core.metadata.records import NodeConfigOverrides, SegmentState
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.retention.deleted_topics import clean_deleted_topic
from tidelog_core.tier.keys import TOPIC_NAME_LENGTH_MAX
from tidelog_functions.events import UnknownEvent
from tidelog_functions.invocation import PartitionsFailed
from tidelog_functions.local.events import object_created, scheduled
from tidelog_functions.retention.handler import handle

from tests.support.function_world import (
    CLUSTER_ID,
    DAY_MS,
    HOUR_MS,
    RECORDS_PER_SEGMENT,
    FunctionWorld,
    Steps,
    folder_world,
    run_retention,
)

T = TypeVar("T")
SCHEDULE = scheduled("retention", now_ms=0)
AT_ONCE = {"file.delete.delay.ms": "0", "retention.ms": str(HOUR_MS)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for both stores, which the environment names."""
    monkeypatch.setenv("TIDELOG_METADATA", f"sqlite://{tmp_path}/metadata.db")
    monkeypatch.setenv("TIDELOG_OBJECTS", f"file://{tmp_path}/objects")
    return tmp_path


def in_world(folder: Path, run: Callable[[FunctionWorld], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with folder_world(folder) as world:
            return await run(world)

    return asyncio.run(main())


def created(folder: Path, key: str) -> dict[str, object]:
    return object_created(f"{folder}/objects", key, now_ms=0)


def two_topics(folder: Path) -> list[str]:
    """Make two topics, each with an old segment and a new one; return their new index keys."""

    async def run(world: FunctionWorld) -> list[str]:
        keys = []
        for name in ("a", "b"):
            topic = await world.create_topic(name, configs=AT_ONCE)
            await world.copy(topic, 0, age_ms=DAY_MS)
            newest = await world.copy(topic, 10)
            keys.append(world.keys(topic, newest).index)
        return keys

    return in_world(folder, run)


async def object_count(world: FunctionWorld) -> int:
    return len(await world.present())


def test_a_clock_in_doubt_removes_nothing(folder: Path) -> None:
    async def run(world: FunctionWorld) -> list[int]:
        topic = await world.create_topic("a", configs=AT_ONCE)
        for first in (0, 10):
            await world.copy(topic, first, age_ms=DAY_MS)
        counts = []
        for is_trusted in (False, True):
            result = await run_retention(
                world.store,
                world.objects,
                world.clock,
                (),
                may_expire=lambda: is_trusted,  # noqa: B023
            )
            assert result.failed == {}
            counts.append(result.done.segment_deleted_count)
        return counts

    assert in_world(folder, run) == [0, 2]


def test_an_event_applies_retention_to_its_partition_alone(folder: Path) -> None:
    key, _ = two_topics(folder)
    summary = handle(created(folder, key), Steps())
    assert summary["segment_deleted_count"] == 1
    assert summary["partition_count"] == 1
    assert in_world(folder, object_count) == 6
    assert handle(created(folder, key), Steps())["segment_deleted_count"] == 0


def test_the_schedule_applies_retention_to_every_partition(folder: Path) -> None:
    two_topics(folder)
    summary = handle(SCHEDULE, Steps())
    assert summary["segment_deleted_count"] == 2
    assert summary["is_finished"] is True
    assert in_world(folder, object_count) == 4
    json.dumps(summary)


def test_events_in_queues_and_notifications_are_understood(folder: Path) -> None:
    first, second = two_topics(folder)
    notification = {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": "ObjectCreated:Put",
                "s3": {"bucket": {"name": f"{folder}/objects"}, "object": {"key": first}},
            }
        ]
    }
    queue = {
        "Records": [
            {"eventSource": "aws:sqs", "body": json.dumps(notification)},
            {"eventSource": "aws:sqs", "body": json.dumps(created(folder, second))},
        ]
    }
    assert handle(queue, Steps())["segment_deleted_count"] == 2


def test_foreign_keys_are_passed_over_with_a_line_in_the_log(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    two_topics(folder)
    caplog.set_level(logging.INFO)
    for key in ("holiday.jpg", "cluster-1/holiday/index", "cluster-1/x.index"):
        caplog.clear()
        assert handle(created(folder, key), Steps())["partition_count"] == 0
        assert any(getattr(record, "key", None) == key for record in caplog.records)
    assert in_world(folder, object_count) == 8


def test_events_of_what_is_gone_or_of_another_cluster_do_nothing(folder: Path) -> None:
    key, _ = two_topics(folder)
    other = key.replace("cluster-1", "cluster-2")
    gone = key.replace(key.split("-")[-1], "0123456789ab.index")
    nowhere = "/".join(["cluster-1", f"a-{'0' * 8}-0000-0000-0000-{'0' * 12}", *key.split("/")[2:]])
    for one in (other, nowhere):
        assert handle(created(folder, one), Steps())["partition_count"] == 0
    # A segment that is gone is of a partition that is there.
    assert handle(created(folder, gone), Steps())["segment_deleted_count"] == 1


@pytest.mark.parametrize(
    ("event", "named"),
    [
        (None, "absent"),
        ([], "must be an object"),
        ({}, "its fields: none"),
        ({"hello": 1}, "its fields: hello"),
        ({"source": "aws.ec2", "detail-type": "Scheduled Event"}, "'aws.ec2'"),
        ({"source": {}, "detail-type": "Scheduled Event"}, r"source \{\}"),
        ({"source": "aws.s3", "detail-type": "Object Deleted", "detail": {}}, "'Object Deleted'"),
        ({"source": "aws.s3", "detail-type": "Object Created"}, "detail must be"),
        ({"Records": {}}, "Records must be a list"),
        ({"Records": ["x"]}, r"Records\[0\]"),
        ({"Records": [{"eventSource": "aws:sns"}]}, "'aws:sns'"),
        ({"Records": [{"eventSource": "aws:sqs", "body": "{"}]}, "not JSON"),
        ({"Records": [{"eventSource": "aws:sqs", "body": "[" * 100_000}]}, "not JSON"),
        (
            {"Records": [{"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {}}]},
            r"s3\.bucket",
        ),
    ],
)
def test_unknown_events_are_refused_by_name(folder: Path, event: object, named: str) -> None:
    with pytest.raises(UnknownEvent, match=named):
        handle(event, Steps())


def test_an_event_of_another_bucket_is_refused(folder: Path) -> None:
    with pytest.raises(UnknownEvent, match="other-bucket"):
        handle(object_created("other-bucket", "x", now_ms=0), Steps())


def test_missing_settings_are_all_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIDELOG_METADATA", "TIDELOG_OBJECTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TIDELOG_CONFIG_NO_SUCH", "1")
    with pytest.raises(InvalidConfig) as raised:
        handle(SCHEDULE, Steps())
    assert len(raised.value.problems) == 3


def test_nothing_is_done_before_there_is_a_cluster(folder: Path) -> None:
    (folder / "objects").mkdir()
    assert handle(SCHEDULE, Steps())["partition_count"] == 0


def test_a_topic_without_settings_gets_those_of_the_nodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the nodes were started with, and as they were changed since."""

    async def prepare(world: FunctionWorld) -> None:
        topic = await world.create_topic(configs={"file.delete.delay.ms": "0"})
        await world.copy(topic, 0, age_ms=30 * DAY_MS)

    in_world(folder, prepare)
    monkeypatch.setenv("TIDELOG_CONFIG_LOG_RETENTION_MS", "-1")
    assert handle(SCHEDULE, Steps())["segment_deleted_count"] == 0

    async def change(world: FunctionWorld) -> None:
        overrides = NodeConfigOverrides(broker_id=None, configs={"log.retention.ms": "1000"})
        await world.store.commit([records.put(overrides)])

    in_world(folder, change)
    assert handle(SCHEDULE, Steps())["segment_deleted_count"] == 1


def test_a_corrupt_item_is_named_and_stops_no_other_partition(folder: Path) -> None:
    two_topics(folder)

    async def corrupt(world: FunctionWorld) -> None:
        item = (await world.store.list(records.TOPIC_COLLECTION))[0]
        topic_id = str(item.body["topic_id"])
        segment = (await world.store.list(f"segment:{topic_id}:0"))[0]
        await world.corrupt(segment.id)
        await world.corrupt(records.topic_key("nonsense"))

    in_world(folder, corrupt)
    with pytest.raises(PartitionsFailed) as raised:
        handle(SCHEDULE, Steps())
    problems = raised.value.problems
    assert set(problems) == {"topic/a/0000000000", "topic nonsense"}
    assert "metadata item segment:" in problems["topic/a/0000000000"]
    assert in_world(folder, object_count) == 6  # the other topic's old segment is gone


@pytest.mark.parametrize("owner", [None, 1], ids=["every node", "the leader"])
async def test_nothing_is_removed_by_settings_that_cannot_all_be_read(
    folder: Path, owner: int | None
) -> None:
    """What cannot be read may say to keep everything."""
    async with folder_world(folder) as world:
        topic = await world.create_topic(configs={"retention.ms": "1000"})
        await world.copy(topic, 0, age_ms=DAY_MS)
        await world.corrupt(records.node_config_key(owner))
        result = await world.retain()
        assert list(map(str, result.failed.values()))
        assert all("node-config" in str(error) for error in result.failed.values())
        assert (await world.partition(topic)).log_start_offset == 0
        await world.store.commit([Write(records.node_config_key(owner), None, ANY_VERSION)])
        await world.corrupt(records.node_config_key(2))  # of a node that does not lead it
        assert (await world.retain()).failed == {}
        assert (await world.partition(topic)).log_start_offset == RECORDS_PER_SEGMENT


async def test_an_event_of_a_topic_with_a_long_name_is_not_stopped_by_a_damaged_neighbour(
    folder: Path,
) -> None:
    async with folder_world(folder) as world:
        shared = "x" * TOPIC_NAME_LENGTH_MAX
        topic = await world.create_topic(f"{shared}b", configs={"retention.ms": "1000"})
        old = await world.copy(topic, 0, age_ms=DAY_MS)
        await world.corrupt(records.topic_key(f"{shared}a"))
        key = world.index_key(topic, old)
        assert (await world.retain(key)).failed == {}
        assert (await world.partition(topic)).log_start_offset == RECORDS_PER_SEGMENT
        await world.corrupt(topic.item_id)
        assert "topic/xxx" in str(*(await world.retain(key)).failed.values())


async def test_what_an_older_program_leaves_of_a_diskless_topic_goes_with_the_schedule(
    folder: Path,
) -> None:
    async with folder_world(folder) as world:
        topic = await world.create_topic("t", configs={"diskless.enable": "true"})
        tombstone = await world.delete_topic(topic)
        marks = partial(world.store.list, records.CHAIN_TOMBSTONE_COLLECTION)
        assert (await world.retain()).failed == {}
        assert len(await marks()) == 1
        await clean_deleted_topic(
            world.store, world.objects, tombstone, None, cluster_id=CLUSTER_ID
        )
        assert (await world.retain()).failed == {}
        assert await marks() == []


async def test_a_foreign_object_of_any_name_does_not_keep_a_deleted_topic(folder: Path) -> None:
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        await world.copy(topic, 0)
        name = next(iter(await world.present())).rpartition("/")[0]
        foreign = folder / "objects" / name / "notes of mine.txt"
        foreign.write_text("?")
        await world.delete_topic(topic)
        world.clock.now_ms += DAY_MS
        assert (await world.retain()).failed == {}
        assert await world.store.list(records.DELETED_TOPIC_COLLECTION) == []
        assert await world.present() == {f"{name}/{foreign.name}"}


def test_a_call_near_its_time_limit_goes_on_with_the_next_schedule(folder: Path) -> None:
    """However little each one gets done: no run begins anew before the end was reached."""

    async def prepare(world: FunctionWorld) -> None:
        for name in "abcdefgh":
            topic = await world.create_topic(name, partitions=5, configs=AT_ONCE)
            for partition in range(5):
                await world.copy(topic, 0, partition=partition, age_ms=DAY_MS)

    in_world(folder, prepare)
    seen, runs = 0, 0
    while True:
        summary = handle(SCHEDULE, Steps(40))
        runs += 1
        assert isinstance(summary["segment_deleted_count"], int)
        seen += summary["segment_deleted_count"]
        if summary["is_finished"]:
            break
        assert runs < 20
    assert runs > 1
    assert seen == 40
    assert in_world(folder, object_count) == 0
    assert handle(SCHEDULE, Steps())["partition_count"] == 40


def test_objects_go_only_after_the_delay(folder: Path) -> None:
    async def prepare(world: FunctionWorld) -> None:
        topic = await world.create_topic(
            configs={"file.delete.delay.ms": "600000", "retention.ms": "1000"}
        )
        await world.copy(topic, 0, age_ms=DAY_MS)

    in_world(folder, prepare)
    summary = handle(SCHEDULE, Steps())
    assert summary["deletion_started_count"] == 1
    assert summary["segment_deleted_count"] == 0
    assert isinstance(summary["next_deletion_ms"], int)

    async def check(world: FunctionWorld) -> None:
        (topic_item,) = await world.store.list(records.TOPIC_COLLECTION)
        topic = records.Topic.from_item(topic_item)
        (segment,) = await world.segments(topic.topic_id)
        assert segment.state is SegmentState.DELETE_STARTED
        assert segment.deletable_ms == summary["next_deletion_ms"]
        assert (await world.partition(topic)).log_start_offset == 10
        assert len(await world.present()) == 2
        world.clock.now_ms = segment.deletable_ms - 1
        await world.retain()
        assert len(await world.present()) == 2
        world.clock.now_ms = segment.deletable_ms
        result = await world.retain()
        assert result.done.segment_deleted_count == 1
        assert await world.present() == set()
        assert await world.segments(topic.topic_id) == []

    in_world(folder, check)
