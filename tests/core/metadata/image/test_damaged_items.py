"""An item that cannot be read is alone in its trouble, and never taken for one that is gone."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from tidelog_core.errors import VersionConflict
from tidelog_core.metadata import records
from tidelog_core.metadata.coordination.group_configs import (
    GROUP_CONFIG_COLLECTION,
    GroupConfigOverrides,
    group_config_key,
)
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.image.readings import is_readable
from tidelog_core.metadata.image.topics import LOST_PARTITIONS_MAX
from tidelog_core.metadata.records import (
    Broker,
    Cluster,
    DeletedTopic,
    NodeConfigOverrides,
    Partition,
    Topic,
    put,
)
from tidelog_core.metadata.store import ANY_VERSION, ItemKey, Write
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.model import NO_LEADER, TopicPartition

from tests.support.stored_items import overwrite_body

ORDERS = Topic(name="orders", topic_id=UUID(int=1), partition_count=3)
OTHER = Topic(name="other", topic_id=UUID(int=2), partition_count=1)
BROKER = Broker(broker_id=1, incarnation=UUID(int=9), endpoints=plaintext_endpoints("h", 1))
CONFIGS = NodeConfigOverrides(broker_id=None, configs={"num.partitions": "3"})
GROUP = GroupConfigOverrides(group_id="g", configs={"consumer.session.timeout.ms": "50000"})
GONE = DeletedTopic(topic_id=UUID(int=3), name="gone", partition_count=1, deleted_ms=5)
ORDERS_1 = records.partition_key(ORDERS.topic_id, 1)


def partition(of: Topic, number: int) -> Partition:
    return Partition(
        topic_id=of.topic_id,
        partition=number,
        replicas=(1, 2),
        leader=1,
        leader_epoch=4,
        isr=(1, 2),
        log_start_offset=17,
    )


class FollowedCluster:
    """A cluster in a SQLite file, and a view that follows it."""

    def __init__(self, path: Path, *, changelog_length: int) -> None:
        self.path = path / "metadata.db"
        self.store = SqliteMetadataStore(self.path, changelog_length=changelog_length)
        self.view = ClusterView(self.store)

    async def fill(self) -> None:
        await self.store.commit([put(Cluster(cluster_id="c")), put(BROKER), put(CONFIGS)])
        await self.store.commit([put(GONE), put(GROUP)])
        for topic in (ORDERS, OTHER):
            items = [
                put(partition(topic, n), is_logged=False) for n in range(topic.partition_count)
            ]
            await self.store.commit([put(topic), *items])

    async def write_nonsense(self, key: ItemKey) -> None:
        """Write what a program that we know nothing of might write."""
        await self.store.commit([Write(key, {"of": "tomorrow"}, ANY_VERSION)])

    def spoil(self, key: ItemKey, body: str = "{") -> None:
        """Damage the item where it lies, at the version that it has."""
        overwrite_body(self.path, key, body)

    async def go_on(self, count: int = 1) -> None:
        """Have changes in the changelog that are of nothing else."""
        for port in range(count):
            item = await self.store.get(records.broker_key(7))
            version = 0 if item is None else item.version
            broker = Broker(
                broker_id=7,
                incarnation=BROKER.incarnation,
                endpoints=plaintext_endpoints("h", port),
                version=version,
            )
            await self.store.commit([put(broker)])


@pytest.fixture(params=[1000, 2], ids=["followed", "loaded-anew"])
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[FollowedCluster]:
    """A filled cluster; with a short changelog every refresh loads everything."""
    world = FollowedCluster(tmp_path, changelog_length=request.param)
    await world.fill()
    yield world
    await world.store.close()


SHOWN = [
    records.cluster_key(),
    records.broker_key(1),
    records.node_config_key(None),
    group_config_key("g"),
    records.deleted_topic_key(GONE.topic_id),
    records.topic_key("orders"),
]


@pytest.mark.parametrize("key", SHOWN, ids=str)
async def test_what_an_item_said_last_stays_while_it_cannot_be_read(
    world: FollowedCluster, key: ItemKey, caplog: pytest.LogCaptureFixture
) -> None:
    before = await world.view.refresh()
    await world.write_nonsense(key)
    for _ in range(3):
        await world.go_on(4)
        image = await world.view.refresh()
        assert image.cluster_id == "c"
        assert image.brokers[1] == BROKER
        assert image.node_configs == {None: CONFIGS}
        assert image.group_configs == {"g": GROUP}
        assert image.deleted_topics == {GONE.topic_id: GONE}
        assert image.topics == before.topics
        assert image.partitions("orders") == before.partitions("orders")
        assert list(image.unreadable) == [key]
    assert image.brokers[7].endpoint.port == 3
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 1
    assert (vars(errors[0])["collection"], vars(errors[0])["key"]) == (key.collection, key.key)


@pytest.mark.parametrize("key", SHOWN, ids=str)
async def test_an_item_that_could_never_be_read_hides_no_other(
    world: FollowedCluster, key: ItemKey
) -> None:
    world.spoil(key)
    image = await world.view.refresh()
    assert list(image.unreadable) == [key]
    assert "other" in image.topics
    assert ("orders" in image.topics) == (key != records.topic_key("orders"))
    assert image.is_unreadable("orders") == (key == records.topic_key("orders"))
    assert (1 in image.brokers) == (key != records.broker_key(1))


async def test_nobody_leads_a_partition_that_changed_and_cannot_be_read(
    world: FollowedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    before = await world.view.refresh()
    await world.write_nonsense(ORDERS_1)
    heard: list[frozenset[str]] = []
    world.view.subscribe(lambda _, names: heard.append(names))
    for _ in range(2):
        await world.go_on(4)
        image = await world.view.refresh()
        found = image.partition(TopicPartition("orders", 1))
        assert found is not None
        assert not is_readable(found)
        assert (found.leader, found.isr) == (NO_LEADER, ())
        assert (found.replicas, found.leader_epoch, found.log_start_offset) == ((1, 2), 4, 17)
        for number in (0, 2):
            name = TopicPartition("orders", number)
            assert image.partition(name) == before.partition(name)
    assert "orders" in heard[0]
    with pytest.raises(VersionConflict):
        await world.store.commit([put(dataclasses.replace(found, leader=2))])
    assert [r.levelname for r in caplog.records] == ["ERROR"]


async def test_an_item_in_order_again_is_as_any_other(
    world: FollowedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    await world.view.refresh()
    keys = [*SHOWN, ORDERS_1]
    bodies = {key: item.body for key in keys if (item := await world.store.get(key))}
    for key in keys:
        await world.write_nonsense(key)
    assert set((await world.view.refresh()).unreadable) == set(keys)
    for key in keys:
        await world.store.commit([Write(key, bodies[key], ANY_VERSION)])
    image = await world.view.refresh()
    assert image.unreadable == {}
    found = image.partition(TopicPartition("orders", 1))
    assert found == partition(ORDERS, 1)
    assert found is not None
    assert found.version == 3
    assert caplog.text.count("in order again") == len(SHOWN) + 1


async def test_an_item_that_is_repaired_in_the_store_is_read_again(
    world: FollowedCluster,
) -> None:
    view = ClusterView(world.store, read_again_seconds=0)
    keys = [*SHOWN, ORDERS_1]
    whole = {key: item.body for key in keys if (item := await world.store.get(key))}
    for key in keys:
        world.spoil(key)
    heard: list[frozenset[str]] = []
    image = await view.refresh()
    view.subscribe(lambda _, names: heard.append(names))
    assert set(image.unreadable) == {*SHOWN}  # of a topic that nobody knows nothing is shown
    assert await view.refresh() is image
    world.spoil(records.topic_key("orders"), json.dumps(whole[records.topic_key("orders")]))
    image = await view.refresh()
    assert set(image.unreadable) == {*SHOWN, ORDERS_1} - {records.topic_key("orders")}
    assert await view.refresh() is image
    for key in keys:
        world.spoil(key, json.dumps(whole[key]))
    image = await view.refresh()
    assert image.unreadable == {}
    assert image == await ClusterView(world.store).refresh()
    assert heard == [{"orders"}, {"orders"}]


async def test_damage_at_a_known_version_takes_no_leader_and_the_next_write_mends_it(
    world: FollowedCluster,
) -> None:
    await world.view.refresh()
    world.spoil(ORDERS_1)
    await world.go_on(4)
    # Nobody is told, so that only those who load everything meet it.
    known = (await world.view.refresh()).partition(TopicPartition("orders", 1))
    assert known == partition(ORDERS, 1)
    assert known is not None
    await world.store.commit([put(dataclasses.replace(known, isr=(1,)))])
    image = await world.view.refresh()
    assert image.unreadable == {}
    found = image.partition(TopicPartition("orders", 1))
    assert found is not None
    assert found.isr == (1,)


async def test_a_partition_that_could_never_be_read_has_its_place(world: FollowedCluster) -> None:
    world.spoil(ORDERS_1, '{"partition": 7}')
    image = await world.view.refresh()
    assert [p.partition for p in image.partitions("orders")] == [0, 1, 2]
    assert [is_readable(p) for p in image.partitions("orders")] == [True, False, True]
    assert image.partitions("orders")[1].replicas == ()


@pytest.mark.parametrize("is_logged", [True, False])
async def test_a_partition_item_that_is_lost_is_not_a_partition_that_is_gone(
    world: FollowedCluster, is_logged: bool
) -> None:
    if is_logged:
        await world.view.refresh()
    await world.store.commit([Write(ORDERS_1, None, ANY_VERSION, is_logged)])
    image = await world.view.refresh()
    assert [is_readable(p) for p in image.partitions("orders")] == [True, False, True]
    assert image.partitions("orders")[1].replicas == ((1, 2) if is_logged else ())
    assert list(image.unreadable) == [ORDERS_1]


async def test_a_count_of_partitions_that_cannot_be_is_damage_of_the_topic(
    world: FollowedCluster,
) -> None:
    before = await world.view.refresh()
    wide = dataclasses.replace(
        before.topics["orders"], partition_count=LOST_PARTITIONS_MAX + 100_000_000
    )
    await world.store.commit([put(wide)])
    image = await world.view.refresh()
    assert list(image.unreadable) == [records.topic_key("orders")]
    assert image.topics == before.topics
    assert image.partitions("orders") == before.partitions("orders")
    fresh = await ClusterView(world.store).refresh()
    assert list(fresh.topics) == ["other"]
    assert fresh.is_unreadable("orders")


async def test_what_cannot_be_read_in_place_of_a_deleted_topic_is_another_topic(
    world: FollowedCluster,
) -> None:
    orders = (await world.view.refresh()).topics["orders"]
    tombstone = DeletedTopic(
        topic_id=orders.topic_id, name="orders", partition_count=3, deleted_ms=1
    )
    await world.store.commit([records.delete(orders), put(tombstone)])
    await world.write_nonsense(records.topic_key("orders"))
    image = await world.view.refresh()
    assert list(image.topics) == ["other"]
    assert image.is_unreadable("orders")


@pytest.mark.parametrize(
    "key",
    [
        ItemKey(records.BROKER_COLLECTION, "seven"),
        ItemKey(records.BROKER_COLLECTION, "1"),
        ItemKey(records.NODE_CONFIG_COLLECTION, "every"),
        ItemKey(GROUP_CONFIG_COLLECTION, "h"),
        ItemKey(records.DELETED_TOPIC_COLLECTION, "no-id"),
        ItemKey(records.TOPIC_COLLECTION, "alias"),
    ],
    ids=str,
)
async def test_an_item_in_a_place_of_no_record_is_named_and_nothing_else(
    world: FollowedCluster, key: ItemKey
) -> None:
    before = await world.view.refresh()
    await world.store.commit([Write(key, ORDERS.to_body(), ANY_VERSION)])
    image = await world.view.refresh()
    assert list(image.unreadable) == [key]
    assert dataclasses.replace(image, version=before.version, unreadable={}) == before
    await world.store.commit([Write(key, None, ANY_VERSION)])
    assert (await world.view.refresh()).unreadable == {}


async def test_an_item_of_a_partition_collection_of_no_topic_is_not_looked_at(
    world: FollowedCluster,
) -> None:
    before = await world.view.refresh()
    for collection in (
        "partition:none",
        records.partition_collection(uuid4()),
        ORDERS_1.collection,
    ):
        for name in ("x", "0000000099", "1"):
            await world.write_nonsense(ItemKey(collection, name))
    image = await world.view.refresh()
    assert dataclasses.replace(image, version=before.version) == before


async def test_of_every_field_of_a_partition_any_wrong_value_is_damage(tmp_path: Path) -> None:
    world = FollowedCluster(tmp_path, changelog_length=1000)
    await world.fill()
    whole = partition(ORDERS, 1).to_body()
    await world.view.refresh()
    for field in whole:
        for value in (None, "x", -2, 2**63, True, {}, ["x"], [2**63]):
            body = json.loads(json.dumps({**whole, field: value}))
            await world.store.commit([Write(ORDERS_1, body, ANY_VERSION)])
            image = await world.view.refresh()
            assert list(image.unreadable) == [ORDERS_1], (field, value)
    await world.store.close()
