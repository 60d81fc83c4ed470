"""The scrub: what it removes, what it keeps, what it reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tidelog_core.errors import InvalidConfig
from tidelog_core.metadata import records
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.store import ObjectMeta
from tidelog_core.tier.keys import (
    cluster_manifest_key,
    store_identity_key,
    topic_manifest_key,
)
from tidelog_functions.events import UnknownEvent
from tidelog_functions.invocation import PartitionsFailed
from tidelog_functions.local.events import object_created, scheduled
from tidelog_functions.scrub.handler import handle

from tests.support.function_world import (
    CLUSTER_ID,
    DAY_MS,
    HOUR_MS,
    FunctionWorld,
    Steps,
    age_orphans,
    folder_world,
)

T = TypeVar("T")
SCHEDULE = scheduled("scrub", now_ms=0)


def in_world(folder: Path, run: Callable[[FunctionWorld], Coroutine[Any, Any, T]]) -> T:
    async def main() -> T:
        async with folder_world(folder) as world:
            return await run(world)

    return asyncio.run(main())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for both stores, which the environment names."""
    monkeypatch.setenv("TIDELOG_METADATA", f"sqlite://{tmp_path}/metadata.db")
    monkeypatch.setenv("TIDELOG_OBJECTS", f"file://{tmp_path}/objects")
    return tmp_path


async def test_orphans_go_when_they_are_old_and_accounted_for(folder: Path) -> None:
    """A copy that failed and was made again: its offsets are in a finished segment."""
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        segment = await world.copy(topic, 0)
        named = {*vars_of(world, topic, segment)}
        orphan = await world.put_orphan(topic, 0)
        young = await world.scrub()
        assert (young.orphan_count, young.young_count) == (0, 2)
        world.clock.now_ms += DAY_MS + HOUR_MS
        trial = await world.scrub(dry_run=True)
        assert (trial.orphan_count, trial.is_dry_run) == (2, True)
        assert len(await world.present()) == 4
        report = await world.scrub()
        assert report.orphan_count == 2
        assert sorted(report.orphans) == sorted([orphan.log, orphan.index])
        assert report.orphan_bytes == 2
        assert await world.present() == named
        assert (await world.scrub()).orphan_count == 0


def vars_of(
    world: FunctionWorld, topic: records.Topic, segment: records.SegmentMeta
) -> tuple[str, str]:
    keys = world.keys(topic, segment)
    return keys.log, keys.index


async def test_what_an_item_names_stays_whatever_its_state_and_age(folder: Path) -> None:
    async with folder_world(folder) as world:
        topic = await world.create_topic(
            configs={"retention.ms": "1000", "file.delete.delay.ms": str(90 * DAY_MS)}
        )
        await world.copy(topic, 0, age_ms=DAY_MS)
        await world.start_copy(topic, 10)
        await world.retain()  # the first is DELETE_STARTED now
        world.clock.now_ms += 30 * DAY_MS
        report = await world.scrub()
        assert (report.orphan_count, report.unexplained_count) == (0, 0)
        assert len(await world.present()) == 4


async def test_the_only_copy_of_what_the_metadata_has_forgotten_stays(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A metadata store that was set back to an earlier time must not cost records."""
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        await world.copy(topic, 0)
        forgotten = await world.put_orphan(topic, 10)
        world.clock.now_ms += 365 * DAY_MS
        report = await world.scrub()
        assert report.orphan_count == 0
        assert report.unexplained_count == 2
        assert sorted(report.unexplained) == sorted([forgotten.log, forgotten.index])
        assert {forgotten.log, forgotten.index} <= await world.present()
        await world.copy(topic, 10)  # The leader copies it again: now it is accounted for.
        assert (await world.scrub()).orphan_count == 0  # since just now
        world.clock.now_ms += DAY_MS + 1
        assert (await world.scrub()).orphan_count == 2
    assert "object without metadata kept" in caplog.text


async def test_what_is_below_the_log_start_goes_after_the_longer_time(folder: Path) -> None:
    """It may be what a restoration has left out, or what an older metadata store has not."""
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        await world.delete_records(topic, 20)
        await world.put_orphan(topic, 10)
        await world.copy(topic, 20)
        assert (await world.scrub()).young_count == 2
        world.clock.now_ms += 7 * DAY_MS
        assert (await world.scrub()).young_count == 2
        world.clock.now_ms += 1
        assert (await world.scrub()).orphan_count == 2


async def test_topics_that_no_longer_exist_go_after_the_longer_time(folder: Path) -> None:
    """With their manifests; a tombstone that is left keeps them for retention."""
    async with folder_world(folder) as world:
        topic, deleted = await world.create_topic("gone"), await world.create_topic("deleted")
        for one in (topic, deleted):
            await world.put_orphan(one, 0)
            key = topic_manifest_key(CLUSTER_ID, one.name, one.topic_id)
            await world.objects.replace(key, b"{}")
        await world.objects.replace(cluster_manifest_key(CLUSTER_ID), b"{}")
        await world.store.commit([records.delete(topic)])
        await world.delete_topic(deleted)
        world.clock.now_ms += 365 * DAY_MS
        assert (await world.scrub()).orphan_count == 0
        world.clock.now_ms += 2 * DAY_MS
        assert (await world.scrub()).orphan_count == 0
        world.clock.now_ms += 6 * DAY_MS
        report = await world.scrub()
        assert report.orphan_count == 3
        present = await world.present()
        assert len(present) == 4
        assert not [key for key in present if "gone-" in key]


async def test_a_topic_whose_item_cannot_be_read_is_not_taken_for_gone(folder: Path) -> None:
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        await world.put_orphan(topic, 0)
        await world.objects.replace(topic_manifest_key(CLUSTER_ID, "events", topic.topic_id), b"{}")
        await world.corrupt(topic.item_id)
        for _ in range(2):
            world.clock.now_ms += 365 * DAY_MS
            report = await world.scrub()
        assert report.orphan_count == 0
        assert list(report.failed) == ["topic events"]
        assert len(await world.present()) == 3


async def test_foreign_objects_are_counted_and_left_alone(folder: Path) -> None:
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        segment = await world.copy(topic, 0)
        beside = world.keys(topic, segment).log.rpartition("/")[0]
        foreign = {
            f"{beside}/00000000000000000000-junk.log",
            f"{beside}/notes/index",
            f"{CLUSTER_ID}/readme.txt",
            f"{CLUSTER_ID}/a/b",
            "other-cluster/cluster.json",
        }
        for key in foreign:
            await world.objects.put(key, b"mine")
        await world.objects.put(store_identity_key(CLUSTER_ID), b"{}")  # It is not foreign.
        world.clock.now_ms += 365 * DAY_MS
        report = await world.scrub()
        assert (report.foreign_count, report.orphan_count, report.missing_count) == (4, 0, 0)
        assert foreign | {store_identity_key(CLUSTER_ID)} <= await world.present()


async def test_segments_without_their_objects_are_reported_by_name(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with folder_world(folder) as world:
        topic, bare = await world.create_topic("events"), await world.create_topic("bare")
        first, second = await world.copy(topic, 0), await world.copy(topic, 10)
        alone = await world.copy(bare, 0)
        await world.copy(topic, 20)
        gone = world.keys(topic, first).log
        await world.objects.delete([gone, *vars_of(world, bare, alone)])
        short = world.keys(topic, second).index
        await world.objects.replace(short, b"cut")
        report = await world.scrub()
        assert report.missing_count == 4
        assert f"{gone}: is not there" in report.missing
        assert f"{short}: has 3 bytes instead of 5" in report.missing
        assert len([line for line in report.missing if "bare-" in line]) == 2
        assert len(await world.segments(topic.topic_id)) == 3
    assert caplog.text.count("object of a segment is missing") == 4


def test_a_corrupt_item_is_named_and_stops_no_other_partition(folder: Path) -> None:
    async def run(world: FunctionWorld) -> None:
        for name in ("a", "b"):
            topic = await world.create_topic(name)
            segment = await world.copy(topic, 0)
            await world.put_orphan(topic, 0)
            if name == "a":
                await world.corrupt(segment.item_id)

        with contextlib.suppress(PartitionsFailed):
            await world.scrub()
        await age_orphans(world.store, by_ms=2 * DAY_MS)

    in_world(folder, run)
    with pytest.raises(PartitionsFailed, match="metadata item segment:"):
        handle(SCHEDULE, Steps())

    async def count(world: FunctionWorld) -> int:
        return len(await world.present())

    assert in_world(folder, count) == 6


def test_the_handler_returns_and_logs_a_summary(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    async def run(world: FunctionWorld) -> None:
        topic = await world.create_topic()
        await world.copy(topic, 0)
        await world.put_orphan(topic, 0)

    in_world(folder, run)
    assert handle(SCHEDULE, Steps())["orphan_count"] == 0
    in_world(folder, lambda world: age_orphans(world.store, by_ms=2 * HOUR_MS))
    assert handle(SCHEDULE, Steps())["orphan_count"] == 0
    monkeypatch.setenv("TIDELOG_SCRUB_ORPHAN_AGE_MS", str(HOUR_MS))
    trial = handle({"dry_run": True}, Steps())
    assert (trial["orphan_count"], trial["is_dry_run"]) == (2, True)
    monkeypatch.setenv("TIDELOG_SCRUB_DRY_RUN", "true")
    assert handle(SCHEDULE, Steps())["is_dry_run"] is True
    monkeypatch.setenv("TIDELOG_SCRUB_DRY_RUN", "false")
    summary = handle(SCHEDULE, Steps())
    assert (summary["orphan_count"], summary["is_dry_run"]) == (2, False)
    [told] = [record for record in caplog.records if record.message == "bucket scrubbed"][-1:]
    assert vars(told)["summary"] == summary
    assert handle(SCHEDULE, Steps())["orphan_count"] == 0


def test_wrong_settings_and_events_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for event in ({"dry_run": "yes"}, {"hello": 1}, object_created("bucket", "key", now_ms=0)):
        with pytest.raises(UnknownEvent):
            handle(event, Steps())
    monkeypatch.setenv("TIDELOG_SCRUB_ORPHAN_AGE_MS", "60000")
    monkeypatch.setenv("TIDELOG_SCRUB_DOUBTFUL_AGE_MS", "a week")
    monkeypatch.setenv("TIDELOG_SCRUB_DRY_RUN", "perhaps")
    with pytest.raises(InvalidConfig) as raised:
        handle(SCHEDULE, Steps())
    assert len(raised.value.problems) == 3


async def test_a_cluster_without_nodes_is_left_alone(folder: Path) -> None:
    """Whoever restores its metadata from the bucket has just begun."""
    async with folder_world(folder) as world:
        topic = await world.create_topic()
        await world.copy(topic, 0)
        await world.put_orphan(topic, 0)
        (broker,) = await world.store.list(records.BROKER_COLLECTION)
        await world.store.commit([records.delete(records.Broker.from_item(broker))])
        world.clock.now_ms += 365 * DAY_MS
        assert (await world.scrub()).object_count == 0
        assert len(await world.present()) == 4


def test_leftovers_of_writes_go_when_the_folder_is_opened(folder: Path) -> None:
    async def run(world: FunctionWorld) -> None:
        await world.create_topic()

    in_world(folder, run)
    leftover = folder / "objects" / ".staging" / "0123456789abcdef"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    handle(SCHEDULE, Steps())
    assert not leftover.exists()


class ListingStore(FolderObjectStore):
    """A folder store that counts what its listings have handed out."""

    listed_count = 0

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectMeta]:
        async for found in super().list(prefix, start_after=start_after):
            self.listed_count += 1
            yield found


async def test_a_call_near_its_time_limit_goes_on_with_the_next_one(folder: Path) -> None:
    """Every partition is looked at once, bare ones and manifests too, however short the calls."""
    async with folder_world(folder) as world:
        for name in "abcd":
            topic = await world.create_topic(name, partitions=4)
            key = topic_manifest_key(CLUSTER_ID, name, topic.topic_id)
            await world.objects.replace(key, b"{}")
            for partition in range(0, 4, 2):
                await world.copy(topic, 0, partition=partition)
                await world.put_orphan(topic, 0, partition=partition)
            bare = await world.copy(topic, 0, partition=3)
            await world.objects.delete(vars_of(world, topic, bare))
        assert (await world.scrub()).young_count == 16
        object_count = len(await world.present())
        listing = world.objects = ListingStore(folder / "objects")
        world.clock.now_ms += 2 * DAY_MS
        totals, runs = [0, 0, 0], 0
        while True:
            report = await world.scrub(steps=7)
            runs += 1
            counts = (report.orphan_count, report.missing_count, report.segment_count)
            totals = [total + count for total, count in zip(totals, counts, strict=True)]
            if report.is_finished:
                break
            assert runs < 20
        assert runs > 2
        # No run lists what an earlier one has done, but for the partition at which that one had
        # no time left: four objects, and the one that showed that they were all.
        assert object_count <= listing.listed_count <= object_count + 5 * runs
        assert totals == [16, 8, 12]
        again = await world.scrub()
        assert (again.segment_count, again.orphan_count, again.missing_count) == (12, 0, 8)
        await listing.close()
