"""How old is what nothing needs? As old as the sweeps that have seen it so, whatever its own time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tidelog_core.errors import TidelogError
from tidelog_core.metadata import records
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.records import Broker, ScrubOrphans, Topic
from tidelog_core.metadata.store import ANY_VERSION, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.restoration.plan import plan_restoration
from tidelog_core.restoration.restored_store import write_restoration
from tidelog_core.restoration.survey import list_clusters, survey
from tidelog_core.retention.orphans import AgeLimits
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import deletion_key, log_start_key, topic_manifest_key
from tidelog_core.tier.manifest import ClusterManifest
from tidelog_functions.scrub.sweep import ORPHANS_MAX

from tests.support.function_world import CLUSTER_ID, DAY_MS, HOUR_MS, FunctionWorld, folder_world
from tests.support.retention_drama import processes, quick_folder
from tests.support.tier_segments import put_segment
from tests.support.watched_stores import (
    Crash,
    Process,
    WatchedMetadata,
    WatchedObjects,
    Witness,
)

WEEK_MS = 7 * DAY_MS


@pytest.fixture
async def world() -> AsyncIterator[FunctionWorld]:
    with quick_folder() as folder:
        async with folder_world(folder) as world:
            yield world


async def orphans(world: FunctionWorld) -> list[ScrubOrphans]:
    items = await world.store.list(records.SCRUB_ORPHANS_COLLECTION)
    return [ScrubOrphans.from_item(item) for item in items]


async def publish_log_start(world: FunctionWorld, topic: Topic, offset: int) -> str:
    key = log_start_key(CLUSTER_ID, topic.name, topic.topic_id, 0, offset)
    await world.objects.put(key, b"")
    return key


scenes = st.one_of(
    st.tuples(st.just("orphan"), st.sampled_from([0, 1, 2]), st.sampled_from([-1, 0, 1, 400])),
    st.tuples(st.just("wait"), st.sampled_from([1, HOUR_MS, DAY_MS // 2, DAY_MS, 3 * DAY_MS])),
    st.tuples(st.just("sweep"), processes, st.sampled_from([1_000_000, 4, 2])),
    st.tuples(st.just("dry run"), st.just(Process()), st.just(1_000_000)),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(scenes, min_size=4, max_size=20))
async def test_nothing_goes_before_sweeps_have_seen_it_for_long_enough(script: list[Any]) -> None:
    """Whatever the objects' own times, crashes and time limits; and in the end all of it goes."""
    with quick_folder() as folder:
        async with folder_world(folder) as world:
            topics = [await world.create_topic(name) for name in ("a", "b", "gone")]
            for topic in topics[:2]:
                await world.copy(topic, 0)
            await world.store.commit([records.delete(topics[2])])
            needed = await world.present()
            limits = [DAY_MS, DAY_MS, WEEK_MS]
            # By key: its limit, and the first sweep that began since.
            waiting: dict[str, tuple[int, int | None]] = {}
            for scene in script:
                if scene[0] == "wait":
                    world.clock.now_ms += scene[1]
                elif scene[0] == "orphan":
                    keys = await world.put_orphan(topics[scene[1]], 0)
                    for key in (keys.log, keys.index):
                        waiting[key] = limits[scene[1]], None
                        seconds = world.clock.now_ms / 1000 - scene[2] * 86_400
                        os.utime(folder / "objects" / key, (seconds, seconds))
                else:
                    now_ms, is_dry = world.clock.now_ms, scene[0] == "dry run"
                    await sweep(world, scene[1], scene[2], is_dry=is_dry)
                    present = await world.present()
                    assert needed <= present
                    for key, (limit_ms, seen_ms) in list(waiting.items()):
                        if key not in present:
                            assert not is_dry
                            assert seen_ms is not None
                            assert now_ms - seen_ms > limit_ms
                            del waiting[key]
                        elif seen_ms is None and not is_dry:
                            waiting[key] = limit_ms, now_ms
            for _ in range(5):  # The first goes on with one that was cut short.
                await world.scrub()
                world.clock.now_ms += WEEK_MS // 2 + 1
            assert await world.present() == needed
            assert await orphans(world) == []


async def sweep(world: FunctionWorld, process: Process, steps: int, *, is_dry: bool) -> None:
    witness = Witness(world.store, world.clock)
    watched = FunctionWorld(
        WatchedMetadata(world.store, process, witness),
        WatchedObjects(world.objects, process, witness),
    )
    watched.clock = world.clock
    with contextlib.suppress(Crash, TidelogError):
        await watched.scrub(dry_run=is_dry, steps=steps)


async def test_a_new_metadata_store_has_seen_nothing_yet(world: FunctionWorld) -> None:
    """As after a restoration: what it knows nothing of waits as long as anything new."""

    topic = await world.create_topic()
    await world.copy(topic, 0)
    lost = await world.put_orphan(topic, 0)
    await world.scrub()
    world.clock.now_ms += 30 * DAY_MS
    with quick_folder() as folder:
        store = SqliteMetadataStore(folder / "metadata.db")
        after = FunctionWorld(store, world.objects)
        after.clock = world.clock
        await after.start()
        report = await after.scrub()
        assert (report.orphan_count, report.young_count) == (0, 4)
        after.clock.now_ms += WEEK_MS
        assert (await after.scrub()).orphan_count == 0
        await store.close()
    assert (await world.scrub()).orphan_count == 2
    assert lost.log not in await world.present()


async def test_below_a_log_start_that_a_restoration_has_chosen_everything_stays(
    world: FunctionWorld,
) -> None:
    """Until the log start has moved on: then the records would be gone by now in any case."""

    topic = await world.create_topic()
    await world.put_orphan(topic, 0)
    await world.copy(topic, 20)
    partition = await world.partition(topic)
    restored = dataclasses.replace(partition, log_start_offset=20, restored_log_start=20)
    await world.store.commit([records.put(restored)])
    for _ in range(2):
        report = await world.scrub()
        assert (report.orphan_count, report.unexplained_count) == (0, 2)
        world.clock.now_ms += 365 * DAY_MS
    assert await world.published_log_starts(topic) == []
    await world.delete_records(topic, 21)
    assert (await world.scrub()).young_count == 2
    world.clock.now_ms += WEEK_MS + 1
    assert (await world.scrub()).orphan_count == 2


async def test_what_a_restoration_has_left_out_can_be_put_right_and_restored(
    tmp_path: Path,
) -> None:
    """However old the objects are and however long the scrub has run meanwhile."""
    folder = tmp_path / "objects"
    previous = NO_HASH
    for base in (0, 20, 40):
        previous = put_segment(folder, range(base, base + 20, 10), previous=previous).chained_hash
    (folder / "cluster/cluster.json").write_bytes(ClusterManifest(cluster_id="cluster").to_bytes())
    for path in folder.rglob("*.*"):
        os.utime(path, (1, 1))
    damaged = sorted(folder.rglob("*.index"))[1]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])

    objects = FolderObjectStore(folder)
    bases = []
    for name in ("first", "second"):
        store = SqliteMetadataStore(tmp_path / f"{name}.db")
        clusters, _ = await list_clusters(objects)
        found = await survey(objects, clusters["cluster"])
        restoration = plan_restoration(found, brokers=[1])
        await write_restoration(store, restoration, objects)
        bases.append([s.base_offset for topic in restoration.topics for s in topic.segments])
        world = FunctionWorld(store, objects)
        broker = Broker(
            broker_id=1, incarnation=uuid4(), endpoints=plaintext_endpoints("127.0.0.1", 1)
        )
        await store.commit([records.put(broker)])
        present = await world.present()
        for _ in range(3):
            report = await world.scrub()
            assert (report.orphan_count, report.young_count, report.failed) == (0, 0, {})
            world.clock.now_ms += 365 * DAY_MS
        assert await world.present() == present
        await store.close()
        damaged.write_bytes(whole)
    await objects.close()
    assert bases == [[40], [0, 20, 40]]


async def test_a_clock_that_was_ahead_or_behind_costs_nothing_but_time(
    world: FunctionWorld,
) -> None:
    topic = await world.create_topic()
    await world.copy(topic, 0)
    await world.put_orphan(topic, 0)
    world.clock.now_ms += 365 * DAY_MS
    await world.scrub()
    world.clock.now_ms -= 365 * DAY_MS
    assert (await world.scrub()).young_count == 2
    world.clock.now_ms += DAY_MS
    assert (await world.scrub()).young_count == 2
    world.clock.now_ms += 1
    assert (await world.scrub()).orphan_count == 2


async def test_orphans_that_are_gone_are_forgotten(world: FunctionWorld) -> None:
    topic, other = await world.create_topic("a"), await world.create_topic("z")
    for one in (topic, other):
        await world.copy(one, 0)
        await world.put_orphan(one, 0)
    await world.store.commit([records.delete(other)])
    await world.objects.replace(topic_manifest_key(CLUSTER_ID, "z", other.topic_id), b"{}")
    await world.scrub()
    assert len(await orphans(world)) == 3
    await world.objects.delete(list(await world.present()))
    await world.scrub()
    assert await orphans(world) == []


async def test_orphans_whose_item_cannot_be_read_are_seen_again(world: FunctionWorld) -> None:
    topic = await world.create_topic()
    await world.copy(topic, 0)
    await world.put_orphan(topic, 0)
    await world.scrub()
    (found,) = await orphans(world)
    world.clock.now_ms += DAY_MS + 1
    await world.store.commit([Write(found.item_id, {"x": 1}, ANY_VERSION, False)])
    report = await world.scrub()
    assert (report.orphan_count, report.young_count, report.failed) == (0, 2, {})
    world.clock.now_ms += DAY_MS + 1
    assert (await world.scrub()).orphan_count == 2


async def test_more_orphans_than_one_item_holds_go_in_turn(tmp_path: Path) -> None:
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    world = FunctionWorld(store, MemoryObjectStore())
    await world.start()
    topic = await world.create_topic("x" * 249)
    named = await world.copy(topic, 0)
    for _ in range(ORPHANS_MAX):
        await world.put_orphan(topic, 0)
    limits = AgeLimits(orphan_age_ms=DAY_MS, doubtful_age_ms=DAY_MS)
    counts = []
    for _ in range(4):
        counts.append((await world.scrub(limits=limits)).orphan_count)
        world.clock.now_ms += DAY_MS + 1
    assert counts == [0, ORPHANS_MAX, ORPHANS_MAX, 0]
    keys = world.keys(topic, named)
    assert await world.present() == {keys.log, keys.index}
    await store.close()


async def test_of_what_tells_a_log_start_the_true_one_stays(world: FunctionWorld) -> None:
    """Smaller ones say nothing more; a greater one is from before the metadata was set back."""

    topic, gone = await world.create_topic("events"), await world.create_topic("gone")
    await world.delete_records(topic, 20)
    for offset in (5, 20, 90):
        await publish_log_start(world, topic, offset)
        await publish_log_start(world, gone, offset)
    await world.store.commit([records.delete(gone)])
    assert (await world.scrub()).foreign_count == 0
    world.clock.now_ms += DAY_MS + 1
    report = await world.scrub()
    assert (report.orphan_count, report.young_count) == (2, 3)
    assert await world.published_log_starts(topic) == [20]
    world.clock.now_ms += WEEK_MS
    assert (await world.scrub()).orphan_count == 3
    assert await world.published_log_starts(gone) == []


@pytest.mark.parametrize("is_cut_short", [False, True])
async def test_what_tells_of_a_deletion_goes_last_and_never_while_retention_is_at_it(
    world: FunctionWorld,
    is_cut_short: bool,
) -> None:
    live, deleted, gone = [await world.create_topic(n) for n in ("live", "deleted", "gone")]
    for topic in (live, deleted, gone):
        await world.objects.put(deletion_key(CLUSTER_ID, topic.name, topic.topic_id), b"")
        await world.put_orphan(topic, 0)
    await world.delete_topic(deleted)
    await world.store.commit([records.delete(gone)])
    left: list[tuple[str, ...]] = []
    for _ in range(40):
        await world.scrub(steps=2 if is_cut_short else 1_000_000)
        told = {key.split("/")[1].partition("-")[0] for key in await world.told()}
        if "gone" not in told:
            assert not [key for key in await world.present() if "/gone-" in key]
        if not left or tuple(sorted(told)) != left[-1]:
            left.append(tuple(sorted(told)))
        world.clock.now_ms += DAY_MS
    assert left == [("deleted", "gone", "live"), ("deleted", "gone"), ("deleted",)]
