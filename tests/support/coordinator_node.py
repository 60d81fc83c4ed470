"""A small cluster in a metadata store, and coordinators on it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from uuid import UUID, uuid5

from tidelog_core.config import NodeConfig
from tidelog_core.metadata.coordination.consumer_groups import Partitions
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import Partition, Topic, delete, put
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS, PageLimits
from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.groups.assignment.target_computation import TargetComputation
from tidelog_node.groups.classic_messages import GroupCaller, JoinAnswer, JoinRequest, SyncAnswer
from tidelog_node.groups.consumer.heartbeat import ASSIGNED_AT_ONCE_MEMBERS_MAX

from tests.support.group_requests import join, sync
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import Alone, node_context
from tests.support.virtual_time import run

_NAMESPACE = UUID(int=7)


def topic_id(name: str) -> UUID:
    return uuid5(_NAMESPACE, name)


async def create_topic(
    store: MetadataStore,
    name: str,
    partition_count: int = 2,
    *,
    leader: int = 1,
    id: UUID | None = None,
) -> None:
    topic = Topic(
        name=name, topic_id=topic_id(name) if id is None else id, partition_count=partition_count
    )
    partitions = [
        Partition(
            topic_id=topic.topic_id,
            partition=index,
            replicas=(1, 2),
            leader=leader,
            leader_epoch=0,
            isr=(1, 2),
        )
        for index in range(partition_count)
    ]
    await store.commit([put(topic), *(put(partition) for partition in partitions)])


async def delete_topic(store: MetadataStore, view: ClusterView, name: str) -> None:
    topic = view.image.topic(name)
    assert topic is not None
    partitions = view.image.partitions(name)
    await store.commit([delete(topic), *(delete(partition) for partition in partitions)])
    await view.refresh()


async def grow_topic(store: MetadataStore, view: ClusterView, name: str, by: int = 1) -> None:
    await view.refresh()
    topic = view.image.topic(name)
    assert topic is not None
    count = topic.partition_count
    template = view.image.partitions(name)[0]
    await store.commit(
        [
            put(dataclasses.replace(topic, partition_count=count + by)),
            *(
                put(dataclasses.replace(template, partition=count + index, version=0))
                for index in range(by)
            ),
        ]
    )
    await view.refresh()


async def lead_offsets(store: MetadataStore, view: ClusterView, leader: int) -> None:
    """Give every shard to the broker."""
    await view.refresh()
    await store.commit(
        [
            put(dataclasses.replace(p, leader=leader, leader_epoch=p.leader_epoch + 1))
            for p in view.image.partitions(CONSUMER_OFFSETS_TOPIC)
        ]
    )
    await view.refresh()


@dataclasses.dataclass
class Node:
    """One broker's view, caches and coordinator."""

    coordinator: GroupCoordinator
    view: ClusterView
    config: NodeConfig

    async def join(self, request: JoinRequest, group: str = "g") -> JoinAnswer:
        return await self.coordinator.join(group, request)

    async def member(self, name: str, group: str = "g", **options: object) -> JoinAnswer:
        """Join a dynamic member with the two requests that it takes."""
        await self.join(join(new=name, **options), group)  # type: ignore[arg-type]
        return await self.join(join(name, **options), group)  # type: ignore[arg-type]

    async def stable(self, *names: str, group: str = "g", **options: object) -> int:
        """Make a group stable with these members, the first leading."""
        answers = await asyncio.gather(*(self.member(n, group, **options) for n in names))
        generation = max(answer.generation for answer in answers)
        assert {answer.generation for answer in answers} == {generation}
        assigned = {name: f"assigned {name}".encode() for name in names}
        await asyncio.gather(
            *(self.sync(n, generation, assigned if n == names[0] else None, group) for n in names)
        )
        return generation

    async def sync(
        self,
        name: str,
        generation: int,
        assigned: dict[str, bytes] | None = None,
        group: str = "g",
    ) -> SyncAnswer:
        return await self.coordinator.sync(group, sync(name, generation, assigned))

    async def commit(
        self,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        topic: str = "t",
        partition: int = 0,
        group: str = "g",
        committed_ms: int = 0,
    ):  # type: ignore[no-untyped-def]
        value = CommittedOffset(offset, -1, "", committed_ms)
        return await self.coordinator.commit_offsets(
            group,
            {(topic, topic_id(topic)): {partition: value}},
            GroupCaller(member_id, None, generation),
        )

    async def offset(self, topic: str = "t", partition: int = 0, group: str = "g") -> int | None:
        found = await self.coordinator.fetch_offsets(group, {topic: [partition]})
        return next((value.offset for value in found.values()), None)


async def slowly(computation: TargetComputation) -> Mapping[str, Partitions]:
    """Return the result 0.2 s later in the loop's virtual time, which no thread can wait for."""
    await asyncio.sleep(0.2)
    return computation.run()


@contextlib.asynccontextmanager
async def node(
    store: MetadataStore,
    *,
    broker_id: int = 1,
    config: NodeConfig | None = None,
    can_serve: Callable[[], bool] = lambda: True,
    page_limits: PageLimits = DEFAULT_PAGE_LIMITS,
    may_expire: Callable[[], bool] = lambda: True,
    assigned_at_once_members_max: int = ASSIGNED_AT_ONCE_MEMBERS_MAX,
    compute: Callable[[TargetComputation], Awaitable[Mapping[str, Partitions]]] | None = None,
) -> AsyncIterator[Node]:
    """Run a coordinator in the running loop's time."""
    loop = asyncio.get_running_loop()
    settings = NodeConfig(group_initial_rebalance_delay_ms=100) if config is None else config
    view = ClusterView(store)
    await view.refresh()
    context = node_context(
        store,
        view,
        broker_id=broker_id,
        config=lambda: settings,
        membership=Alone(broker_id, can_serve=can_serve),
        clock_ms=lambda: int(loop.time() * 1000) + 5_000_000,
        may_expire=may_expire,
    )
    groups = HostedGroups(
        context,
        clock=loop.time,
        page_limits=page_limits,
        assigned_at_once_members_max=assigned_at_once_members_max,
        compute=slowly if compute is None else compute,
    )
    coordinator = GroupCoordinator(context, groups)
    await coordinator.start()
    try:
        yield Node(coordinator, view, settings)
    finally:
        await coordinator.close()


async def new_cluster(store: MetadataStore) -> None:
    """Create the shards and two topics, everything led by broker 1."""
    await create_topic(store, CONSUMER_OFFSETS_TOPIC, 4)
    await create_topic(store, "t")
    await create_topic(store, "u")


def play(scenario: Callable[[MemoryMetadataStore], Awaitable[None]]) -> None:
    """Run the scenario in virtual time on a new cluster, with the store's commits reset."""

    async def main() -> None:
        store = MemoryMetadataStore()
        await new_cluster(store)
        store.commits.clear()
        await scenario(store)

    run(main())
