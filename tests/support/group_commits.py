"""The cost of a commit in a group that subscribes to many topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from kio.schema.errors import ErrorCode
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.coordination.transactions import PendingOffsets
from tidelog_core.metadata.records import Partition, Topic, put
from tidelog_core.metadata.store import MetadataStore, Write
from tidelog_node.groups.classic_messages import GroupCaller

from bench.day.meter import MeteredStore, Usage
from tests.support.consumer_members import enter
from tests.support.coordinator_node import Node, new_cluster, node, topic_id

TOPICS_PER_COMMIT = 40
Becomes = Callable[[Node, tuple[str, ...]], Awaitable[int]]


async def create_topics(store: MetadataStore, names: tuple[str, ...]) -> None:
    """Create topics of one partition."""
    for start in range(0, len(names), TOPICS_PER_COMMIT):
        writes = []
        for name in names[start : start + TOPICS_PER_COMMIT]:
            topic = Topic(name=name, topic_id=topic_id(name), partition_count=1)
            partition = Partition(
                topic_id=topic.topic_id,
                partition=0,
                replicas=(1, 2),
                leader=1,
                leader_epoch=0,
                isr=(1, 2),
            )
            writes += [put(topic), put(partition)]
        await store.commit(writes)


def names_of(count: int) -> tuple[str, ...]:
    """Return that many names of topics."""
    return tuple(f"many-{number:04d}" for number in range(count))


async def consumer_by_names(broker: Node, names: tuple[str, ...]) -> int:
    """Have the group's one member subscribe by names; return its epoch."""
    return (await enter(broker, "m", names)).member_epoch


async def commit_units(store: MeteredStore, broker: Node, epoch: int) -> list[Mapping[str, int]]:
    """Return the units of a commit, of one in a transaction, and of that transaction's end."""
    offset = CommittedOffset(5, -1, "", 1)
    offsets = {("many-0000", topic_id("many-0000")): {0: offset}}
    pending = PendingOffsets(
        shard=broker.coordinator.shard_index("g"),
        group_id="g",
        producer_id=7,
        producer_epoch=0,
        offsets=offsets,
    )

    async def txn_offset_commit() -> ErrorCode:
        return await broker.coordinator.commit_transactional(
            "g",
            offsets,
            GroupCaller("m", None, epoch),
            write=lambda timed: put(pending, is_logged=False),
            checks=(),
        )

    async def end() -> ErrorCode:
        also = Write(pending.item_id, None, 1, is_logged=False)
        await broker.coordinator.commit_pending("g", offsets, also=also, checks=())
        return ErrorCode.none

    used = []
    for action in (
        lambda: broker.commit(4, topic="many-0000", member_id="m", generation=epoch),
        txn_offset_commit,
        end,
    ):
        store.usage = Usage()
        assert await action() is ErrorCode.none
        used.append(dict(store.usage.write_units))
    return used


async def commit_cost(
    store: MetadataStore, count: int, becomes: Becomes
) -> list[Mapping[str, int]]:
    """Return ``commit_units`` of a group that subscribes to ``count`` topics."""
    metered = MeteredStore(store)
    await new_cluster(metered)
    names = names_of(count)
    await create_topics(metered, names)
    async with node(metered) as broker:
        epoch = await becomes(broker, names)
        await commit_units(metered, broker, epoch)  # the first makes the page of offsets
        return await commit_units(metered, broker, epoch)
