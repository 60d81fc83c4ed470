"""ClusterView follows the store: whole topics, every change, however far behind it was."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StoreUnavailable
from tidelog_core.metadata import records
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.image.topics import LIST_FROM_KEYS
from tidelog_core.metadata.image.updates import CHANGES_PER_IMAGE_MAX
from tidelog_core.metadata.node_config import LiveNodeConfig, effective_node_config
from tidelog_core.metadata.records import (
    Broker,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    Topic,
    put,
)
from tidelog_core.metadata.store import ALL_KEYS, ItemKey, KeyRange, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import TopicPartition


@asynccontextmanager
async def store_at(path: Path, *, changelog_length: int = 50) -> AsyncIterator[SqliteMetadataStore]:
    store = SqliteMetadataStore(path / "metadata.db", changelog_length=changelog_length)
    try:
        yield store
    finally:
        await store.close()


def topic(name: str, count: int = 1) -> Topic:
    return Topic(name=name, topic_id=uuid4(), partition_count=count)


def partitions(of: Topic, first: int = 0) -> list[Partition]:
    return [
        Partition(
            topic_id=of.topic_id, partition=n, replicas=(1,), leader=1, leader_epoch=0, isr=(1,)
        )
        for n in range(first, of.partition_count)
    ]


async def create(store: SqliteMetadataStore, new: Topic) -> None:
    unlogged = [put(partition, is_logged=False) for partition in partitions(new)]
    await store.commit([put(new), *unlogged])


def comparable(image: ClusterImage) -> tuple[object, ...]:
    return (
        image.cluster_id,
        dict(image.brokers),
        dict(image.topics),
        dict(image.topic_names),
        dict(image.partitions_by_topic),
        dict(image.deleted_topics),
        dict(image.node_configs),
        dict(image.group_configs),
    )


async def test_a_view_shows_what_is_there_and_what_comes(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        a = topic("a", 3)
        await store.commit([put(Cluster(cluster_id="c"))])
        await create(store, a)
        view = ClusterView(store)
        assert view.image.cluster_id == ""
        image = await view.refresh()
        assert image.cluster_id == "c"
        assert image.topic("a") == a
        assert image.topic_by_id(a.topic_id) == a
        assert image.topic("b") is None
        assert image.topic_by_id(uuid4()) is None
        assert image.partitions("b") == ()
        found = image.partition(TopicPartition("a", 2))
        assert found is not None
        assert found.partition == 2
        assert image.partition(TopicPartition("a", 3)) is None
        assert image.partition(TopicPartition("a", -1)) is None
        broker = Broker(broker_id=1, incarnation=UUID(int=1), endpoints=plaintext_endpoints("h", 1))
        await store.commit([put(broker)])
        await create(store, topic("b"))
        assert image.topic("b") is None  # An image never changes.
        later = await view.refresh()
        assert (list(later.topics), later.brokers) == (["a", "b"], {1: broker})
        assert later.topics["a"] is image.topics["a"]


async def test_subscribers_hear_which_topics_changed(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        a, b = topic("a", 2), topic("b")
        view = ClusterView(store)
        heard: list[tuple[int, list[str]]] = []
        unsubscribe = view.subscribe(lambda i, names: heard.append((i.version, sorted(names))))
        await create(store, a)
        await create(store, b)
        image = await view.refresh()
        await view.refresh()  # Nothing new: nobody is called.
        moved = dataclasses.replace(image.partitions("a")[1], leader_epoch=1)
        await store.commit([put(moved)])
        await view.refresh()
        broker = Broker(broker_id=1, incarnation=UUID(int=1), endpoints=plaintext_endpoints("h", 1))
        await store.commit([put(broker)])
        await view.refresh()
        gone = DeletedTopic(topic_id=b.topic_id, name="b", partition_count=1, deleted_ms=1)
        await store.commit([records.delete(view.image.topics["b"]), put(gone)])
        image = await view.refresh()
        assert image.deleted_topics == {b.topic_id: gone}
        unsubscribe()
        await create(store, topic("c"))
        await view.refresh()
        assert heard == [(2, ["a", "b"]), (3, ["a"]), (4, []), (5, ["b"])]


async def test_a_topic_created_again_under_its_name_is_another_topic(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        old, new = topic("a", 3), topic("a", 2)
        view = ClusterView(store)
        await create(store, old)
        await view.refresh()
        await store.commit([records.delete(view.image.topics["a"])])
        await create(store, new)
        image = await view.refresh()
        assert image.topic("a") == new
        assert image.topic_by_id(old.topic_id) is None
        assert [p.topic_id for p in image.partitions("a")] == [new.topic_id] * 2
        assert set(image.partitions_by_topic) == {new.topic_id}


async def test_partitions_past_the_count_are_not_there_yet(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        narrow = topic("a", 1)
        wide = dataclasses.replace(narrow, partition_count=4)
        view = ClusterView(store)
        await create(store, narrow)
        # Logged on purpose: the view is told of them before the topic counts them.
        await store.commit([put(partition) for partition in partitions(wide, first=1)])
        assert len((await view.refresh()).partitions("a")) == 1
        widened = dataclasses.replace(view.image.topics["a"], partition_count=4)
        await store.commit([put(widened)])
        assert len((await view.refresh()).partitions("a")) == 4


@pytest.mark.parametrize("partition_count", [2, LIST_FROM_KEYS + 2])
async def test_a_topic_deleted_while_it_is_read_is_left_out(
    tmp_path: Path, partition_count: int
) -> None:
    class DeletesWhileReading(SqliteMetadataStore):
        async def list(
            self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[records.Item]:
            await self._delete(collection)
            return await super().list(collection, prefix=prefix, keys=keys)

        async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, records.Item]:
            await self._delete(next(iter(ids)).collection)
            return await super().get_many(ids)

        async def _delete(self, collection: str) -> None:
            if collection.startswith(records.PARTITION_COLLECTION_PREFIX):
                await self.commit([Write(records.topic_key("a"), None, -1)])
                items = await super().list(collection)
                if items:
                    await self.commit([Write(item.id, None, -1, False) for item in items])

    store = DeletesWhileReading(tmp_path / "metadata.db")
    await create(store, topic("a", partition_count))
    view = ClusterView(store)
    assert not (await view.refresh()).topics
    assert not (await view.refresh()).topics
    await store.close()


@pytest.mark.parametrize("changes_per_image_max", [1, CHANGES_PER_IMAGE_MAX])
@pytest.mark.parametrize("changelog_length", [3, 1000])
async def test_following_ends_where_loading_does(
    tmp_path: Path,
    changelog_length: int,
    changes_per_image_max: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Random changes, refreshed at random: the view equals one that loads everything."""
    limit = "tidelog_core.metadata.image.updates.CHANGES_PER_IMAGE_MAX"
    monkeypatch.setattr(limit, changes_per_image_max)
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def change(store: SqliteMetadataStore, image: ClusterImage) -> None:
        name = rng.choice("abcdef")
        before = image.topic(name)
        match rng.randrange(6), before:
            case _, None:
                await create(store, topic(name, rng.randrange(1, 40)))
            case 0, Topic() as old:
                gone = DeletedTopic(
                    topic_id=old.topic_id, name=name, partition_count=1, deleted_ms=0
                )
                await store.commit([records.delete(old), put(gone)])
            case 1, Topic() as old:
                wide = dataclasses.replace(old, partition_count=old.partition_count + 2)
                more = partitions(wide, first=old.partition_count)
                await store.commit([put(wide), *(put(p, is_logged=False) for p in more)])
            case 2, Topic() as old:
                configs = {"retention.ms": str(rng.randrange(100))}
                await store.commit([put(dataclasses.replace(old, configs=configs))])
            case 3, Topic():
                moved = [
                    dataclasses.replace(p, leader_epoch=p.leader_epoch + 1)
                    for p in image.partitions(name)
                ]
                await store.commit([put(partition) for partition in moved])
            case _:
                broker_id = rng.randrange(3)
                known = image.brokers.get(broker_id)
                broker = Broker(
                    broker_id=broker_id,
                    incarnation=uuid4(),
                    endpoints=plaintext_endpoints("h", 1),
                    version=known.version if known else 0,
                )
                await store.commit(
                    [put(broker) if rng.random() < 0.7 or not known else records.delete(known)]
                )

    async with store_at(tmp_path, changelog_length=changelog_length) as store:
        truth, follower = ClusterView(store), ClusterView(store)
        for _ in range(120):
            await change(store, await truth.refresh())
            if rng.random() < 0.3:
                fresh = await ClusterView(store).refresh()
                assert comparable(await follower.refresh()) == comparable(fresh)
                assert comparable(await truth.refresh()) == comparable(fresh)


async def test_much_news_comes_in_several_images_with_pauses_between_them(tmp_path: Path) -> None:
    async with store_at(tmp_path, changelog_length=1000) as store:
        view = ClusterView(store)
        await create(store, topic("old"))
        before = await view.refresh()
        shown: list[tuple[int, int]] = []  # the version, the topics that are news
        turns = 0
        turn_of: list[int] = []

        def on_image(image: ClusterImage, names: frozenset[str]) -> None:
            shown.append((image.version, len(names)))
            turn_of.append(turns)
            assert all(len(image.partitions(name)) == 10 for name in names)

        async def take_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        view.subscribe(on_image)
        others = asyncio.create_task(take_turns())
        topic_count = 2 * CHANGES_PER_IMAGE_MAX // 10 + 1
        for number in range(topic_count):
            await create(store, topic(f"t{number}", 10))
        after = await view.refresh()
        others.cancel()
        each = CHANGES_PER_IMAGE_MAX // 10
        assert shown == [
            (before.version, each),
            (before.version, each),
            (after.version, topic_count - 2 * each),
        ]
        assert turn_of == sorted(set(turn_of))  # Someone else ran between any two.
        assert comparable(after) == comparable(await ClusterView(store).refresh())


async def test_a_refresh_that_ends_half_way_is_made_good_by_the_next(tmp_path: Path) -> None:
    class Failing(SqliteMetadataStore):
        reads_left = 1_000_000

        async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, records.Item]:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise StoreUnavailable("the store is away")
            return await super().get_many(ids)

    store = Failing(tmp_path / "metadata.db")
    view = ClusterView(store)
    before = await view.refresh()
    topic_count = 3 * CHANGES_PER_IMAGE_MAX // 20
    for number in range(topic_count):
        await create(store, topic(f"t{number}", 20))
    store.reads_left = 2  # The third image cannot be made.
    with pytest.raises(StoreUnavailable):
        await view.refresh()
    assert view.image.version == before.version
    assert 0 < len(view.image.topics) < topic_count
    store.reads_left = 1_000_000
    after = await view.refresh()
    assert len(after.topics) == topic_count
    assert comparable(after) == comparable(await ClusterView(store).refresh())
    await store.close()


@pytest.mark.parametrize("topic_count", [10, 300])
async def test_new_topics_are_read_together_and_not_one_by_one(
    tmp_path: Path, topic_count: int
) -> None:
    class Counting(SqliteMetadataStore):
        calls = 0

        async def get(self, id: ItemKey) -> records.Item | None:
            self.calls += 1
            return await super().get(id)

        async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, records.Item]:
            self.calls += 1
            return await super().get_many(ids)

        async def list(
            self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
        ) -> list[records.Item]:
            self.calls += 1
            return await super().list(collection, prefix=prefix, keys=keys)

    store = Counting(tmp_path / "metadata.db")
    view = ClusterView(store)
    await view.refresh()
    for number in range(topic_count):
        await create(store, topic(f"t{number}", 2))
    store.calls = 0
    assert len((await view.refresh()).topics) == topic_count
    image_count = -(-2 * topic_count // CHANGES_PER_IMAGE_MAX)
    assert store.calls <= 1 + image_count  # the topics, and the partitions of each image
    await store.close()


async def test_refreshes_that_wait_together_share_a_reading(tmp_path: Path) -> None:
    class Counting(SqliteMetadataStore):
        reads = 0

        async def changes_since(self, version: object) -> object:  # type: ignore[override]
            self.reads += 1
            return await super().changes_since(version)  # type: ignore[arg-type]

    store = Counting(tmp_path / "metadata.db")
    view = ClusterView(store)
    await view.refresh()
    store.reads = 0
    await asyncio.gather(*(view.refresh() for _ in range(50)))
    assert store.reads <= 2
    await store.close()


async def test_run_brings_changes_and_wait_for_sees_them(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store, store_at(tmp_path) as other:
        view = ClusterView(store)
        running = asyncio.create_task(view.run(0.02))
        waiting = asyncio.create_task(view.wait_for(lambda i: i.topic("a") is not None, 10))
        await create(other, topic("a"))
        assert (await waiting).topic("a") is not None
        with pytest.raises(TimeoutError):
            await view.wait_for(lambda i: i.topic("never") is not None, 0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_nudge_does_not_wait_for_the_interval(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        view = ClusterView(store)
        await view.refresh()
        running = asyncio.create_task(view.run(3600))
        await asyncio.sleep(0.05)
        await create(store, topic("a"))
        view.nudge()
        await view.wait_for(lambda image: image.topic("a") is not None, 10)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_record_written_again_with_the_same_content_is_seen_in_its_new_version(
    tmp_path: Path,
) -> None:
    """Records are equal whatever their version, and the next write is conditional on it."""
    async with store_at(tmp_path) as store:
        group = GroupConfigOverrides(
            group_id="g", configs={"share.isolation.level": "read_committed"}
        )
        setting = NodeConfigOverrides(broker_id=None, configs={"num.partitions": "3"})
        broker = Broker(broker_id=1, incarnation=uuid4(), endpoints=plaintext_endpoints("h", 1))
        view = ClusterView(store)
        await view.refresh()
        for _ in range(3):
            await store.commit([put(group), put(setting), put(broker)])
            await view.refresh()
            image = view.image
            group, setting = image.group_configs["g"], image.node_configs[None]
            broker = image.brokers[1]
        assert group.version == setting.version == broker.version == 3


def test_node_settings_are_overridden_for_all_and_then_for_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = ClusterImage(
        node_configs={
            None: NodeConfigOverrides(
                broker_id=None,
                configs={"num.partitions": "3", "group.max.size": "9", "of.tomorrow": "x"},
            ),
            2: NodeConfigOverrides(broker_id=2, configs={"num.partitions": "4"}),
        }
    )
    static = NodeConfig(num_partitions=2, message_max_bytes=5)
    one, two = (effective_node_config(static, image, broker_id) for broker_id in (1, 2))
    assert (one.num_partitions, one.group_max_size, one.message_max_bytes) == (3, 9, 5)
    assert (two.num_partitions, two.group_max_size) == (4, 9)
    assert "node setting ignored" in caplog.text


async def test_the_settings_in_force_follow_the_view(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        view = ClusterView(store)
        await view.refresh()
        config = LiveNodeConfig(NodeConfig(num_partitions=2), view, 1)
        before = config()
        assert before.num_partitions == 2
        assert config() is before
        await store.commit([put(NodeConfigOverrides(broker_id=1, configs={"num.partitions": "3"}))])
        assert config() is before  # until the view has read it
        await view.refresh()
        assert config().num_partitions == 3
