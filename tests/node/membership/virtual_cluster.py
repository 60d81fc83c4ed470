"""Members of one cluster in one process, in virtual time, over one store that can fail.

    async def main() -> None:
        async with virtual_cluster(tmp_path, brokers=3) as cluster:
            await cluster.create("t", partitions=3, replicas=3)
            await cluster[1].kill()
            await asyncio.sleep(12)
            assert cluster[2].leads("t", 0)

    run(main())

Each member has everything that a node has of membership, and no logs: its leaderships are
handed over as ``LeaderStates`` would once nothing is left to replicate, or to store.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from tidelog.wire.host_addresses import PortRefused
from tidelog_core.config import NodeConfig
from tidelog_core.errors import StoreUnavailable, TierUnavailable
from tidelog_core.metadata.endpoints import plaintext_endpoints
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import AckedBy, Broker, Partition, Topic, put
from tidelog_core.metadata.store import (
    ALL_KEYS,
    Changes,
    Check,
    ClusterVersion,
    Item,
    ItemKey,
    KeyRange,
    Write,
)
from tidelog_core.model import TopicPartition
from tidelog_core.replication.change import ChangeReason
from tidelog_core.replication.lead_changes import move_lead
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.replication.placement.heirs import wants_diskless
from tidelog_core.replication.placement.reassignment import asked_leader
from tidelog_core.waiting import wait_and_clear
from tidelog_node.diskless.chain.store_watch import StoreWatch
from tidelog_node.membership.member import ClusterMember
from tidelog_node.membership.membership import new_membership
from tidelog_node.membership.registration import register_broker

from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

LEASE_S = 9.0


class Link:
    """One member's way to the store: it can be slow, cut, or lose answers."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self._store = store
        self.is_cut = False
        self.delay_s = 0.0
        self.unlocked = asyncio.Event()  # else writes wait, and reads do not
        self.unlocked.set()
        self.commits = 0
        self.listed: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()  # requests about a collection, failed ones too

    async def get(self, id: ItemKey) -> Item | None:
        self.asked[id.collection] += 1
        await self._pass()
        return await self._store.get(id)

    async def get_many(self, ids: Collection[ItemKey]) -> dict[ItemKey, Item]:
        self.asked.update(item_id.collection for item_id in ids)  # each is read by itself
        await self._pass()
        return await self._store.get_many(ids)

    async def list(
        self, collection: str, *, prefix: str = "", keys: KeyRange = ALL_KEYS
    ) -> list[Item]:
        self.asked[collection] += 1
        await self._pass()
        self.listed[collection] += 1
        return await self._store.list(collection, prefix=prefix, keys=keys)

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        await self._pass()
        await self.unlocked.wait()
        self.commits += 1
        await self._store.commit(writes, checks=checks)

    async def changes_since(self, version: ClusterVersion) -> Changes:
        await self._pass()
        return await self._store.changes_since(version)

    async def increment(self, id: ItemKey, by: int) -> int:
        await self._pass()
        return await self._store.increment(id, by)

    async def close(self) -> None:
        pass

    async def _pass(self) -> None:
        await asyncio.sleep(self.delay_s)
        if self.is_cut:
            raise StoreUnavailable("the link is cut")


class VirtualPorts:
    """The ports of all members as one of them sees them: ``Ports`` without sockets."""

    def __init__(self, members: dict[int, Member]) -> None:
        self._members = members
        self._filtered: dict[int, asyncio.Event] = {}
        self.dropped: set[int] = set()  # brokers of which no packet comes or goes
        self.closing: set[int] = set()  # brokers whose connections end as soon as they are open
        self.held: Counter[int] = Counter()  # connections that were opened to be held
        self.asked: list[int] = []  # brokers that were to be reached, in order

    def filter(self, broker_id: int) -> None:
        """Have the broker's port refuse this member alone, and end its connection."""
        self._filtered.setdefault(broker_id, asyncio.Event()).set()

    def end_filter(self, broker_id: int) -> None:
        self._filtered[broker_id].clear()

    async def hold(self, broker: Broker, on_open: Callable[[], None], *, timeout_s: float) -> None:
        broker_id = broker.broker_id
        if broker_id in self.dropped:
            await asyncio.sleep(timeout_s)
            raise TimeoutError("no answer")
        member, filtered = self._listening(broker_id)
        self.held[broker_id] += 1
        on_open()
        if broker_id in self.closing:
            return
        waiting = [asyncio.create_task(one.wait()) for one in (member.has_closed, filtered)]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        if broker_id in self.dropped:
            await asyncio.Event().wait()

    async def reach(self, broker: Broker, *, timeout_s: float) -> None:
        self.asked.append(broker.broker_id)
        if broker.broker_id in self.dropped:
            await asyncio.sleep(timeout_s)
            raise TimeoutError("no answer")
        self._listening(broker.broker_id)

    def _listening(self, broker_id: int) -> tuple[Member, asyncio.Event]:
        """Return the member and the filter in front of it. Raises ``PortRefused``."""
        filtered = self._filtered.setdefault(broker_id, asyncio.Event())
        member = self._members.get(broker_id)
        if filtered.is_set() or member is None or member.has_closed.is_set():
            raise PortRefused(f"broker {broker_id} refuses")
        return member, filtered


class PendingChain:
    """A member's chain as ``StoreWatch`` sees it: what is pending while the bucket is away."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.committed_end = 0


class NoLogs:
    """Leaders whose followers have everything: they hand over with a write of the caller's.

    Those of diskless partitions hand over when they are asked.
    """

    hands_over = True

    def has_leader_state(self, topic_id: UUID, partition: int) -> bool:
        return True

    def begin_hand_over(
        self, topic_id: UUID, partition: int, successor: int, *, is_leaving: bool
    ) -> bool:
        return False


class Member:
    """One broker; ``start`` after ``kill`` or ``stop`` is another process of it."""

    def __init__(
        self,
        broker_id: int,
        store: MemoryMetadataStore,
        folder: Path,
        config: NodeConfig,
        ports: VirtualPorts,
    ) -> None:
        self.broker_id = broker_id
        self.ports = ports
        self.chain = PendingChain()
        self.logs = NoLogs()
        self.has_unentered = False  # partitions wait to enter the chain
        self.is_bucket_away = False
        self.probe_count = 0  # of the bucket
        self.has_closed = asyncio.Event()  # its port; set while it does not run
        self.has_closed.set()
        self.config = config
        self.folder = folder
        self.link = Link(store)
        self.rack: str | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._paused: list[asyncio.Task[None]] = []

    async def start(self, *, was_clean: bool = True) -> None:
        loop = asyncio.get_running_loop()
        self.folder.mkdir(exist_ok=True)
        self.view = ClusterView(self.link)
        await self.view.refresh()
        self.membership = new_membership(
            self.broker_id, self.config, clock=lambda: loop.time() * 1000
        )
        self.membership.leads_by_chain = self._leads_diskless
        node = node_context(
            self.link,
            self.view,
            broker_id=self.broker_id,
            config=lambda: self.config,
            membership=self.membership,
        )
        self.member = ClusterMember(
            node,
            self.membership,
            lease_store=self.link,
            renewal_store=self.link,
            run_renewals=lambda work: work,  # no thread: all in one virtual time
            ports=self.ports,
        )
        self.counters = node.counters
        await self.member.prepare(self.folder, was_clean=was_clean)
        self.has_closed = asyncio.Event()
        self._begin(self.view.run(self.config.metadata_poll_interval_ms / 1000))
        await self.member.take_lease(self._begin)
        await register_broker(
            self.link,
            broker_id=self.broker_id,
            incarnation=uuid4(),
            endpoints=plaintext_endpoints("localhost", 9000 + self.broker_id),
            rack=self.rack,
        )
        await self.view.refresh()
        await self.member.enter(self.logs, self._begin)
        watch = StoreWatch(
            self.membership,
            chain=lambda: self.chain,
            has_unentered=lambda: self.has_unentered,
            probe=self._probe,
        )
        self._begin(watch.run())
        self._begin(self._hand_over_asked())
        self._leading_from = len(self._tasks)
        self.member.begin_leading(self._begin)

    async def kill(self) -> None:
        self.has_closed.set()
        await self._end(self._tasks)

    async def stop(self) -> None:
        """Leave in order."""
        await self._end(self._tasks[self._leading_from :])
        await self.member.drain()
        self.has_closed.set()
        await self._end(self._tasks)
        await self.member.leave()

    @property
    def can_serve(self) -> bool:
        return self.membership.can_serve()

    def leads(self, topic: str, partition: int) -> bool:
        """Whether this node would answer for the partition at this moment."""
        found = self.view.image.partition(TopicPartition(topic, partition))
        return found is not None and self.membership.leads(found) and self.can_serve

    async def _probe(self) -> None:
        self.probe_count += 1
        if self.is_bucket_away:
            raise TierUnavailable("the bucket is away")

    async def _hand_over_asked(self) -> None:
        """Hand diskless partitions over as their leader states would."""
        changed = asyncio.Event()
        self.view.subscribe(lambda *_: changed.set())
        while True:
            await wait_and_clear(changed, None)
            changes = [
                move_lead(partition, asked_leader(partition), ChangeReason.HAND_OVER)
                for partition in self._led_diskless()
                if self.logs.hands_over
                and asked_leader(partition) != self.broker_id
                and self.logs.has_leader_state(partition.topic_id, partition.partition)
            ]
            if changes and self.can_serve:
                await write_changes(self.link, changes)
                with suppress(StoreUnavailable):
                    await self.view.refresh()

    def _led_diskless(self) -> list[Partition]:
        image = self.view.image
        return [
            partition
            for name in image.topics
            for partition in image.partitions(name)
            if partition.is_diskless and self.membership.leads(partition)
        ]

    def _leads_diskless(self) -> bool:
        return bool(self._led_diskless())

    def problems(self) -> list[BaseException]:
        """What ended tasks that should never end."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [error for task in ended if (error := task.exception()) is not None]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        ending = list(tasks)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._tasks = [task for task in self._tasks if task not in ending]


class VirtualCluster:
    """The members and the store that they share."""

    def __init__(self, folder: Path, config: NodeConfig, rack_count: int = 0) -> None:
        self.rack_count = rack_count  # the brokers are in them by turns; 0: in none
        self.store = MemoryMetadataStore()
        self.folder = folder
        self.config = config
        self.members: dict[int, Member] = {}
        self._view = ClusterView(self.store)

    def __getitem__(self, broker_id: int) -> Member:
        return self.members[broker_id]

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members.values())

    async def add(self, broker_id: int) -> Member:
        folder, ports = self.folder / f"node-{broker_id}", VirtualPorts(self.members)
        member = Member(broker_id, self.store, folder, self.config, ports)
        if self.rack_count:
            member.rack = f"r{broker_id % self.rack_count}"
        self.members[broker_id] = member
        await member.start()
        return member

    async def create(
        self,
        topic: str,
        *,
        partitions: int,
        replicas: Sequence[int] = (1, 2, 3),
        isr: Sequence[int] | None = None,
        leader: int | None = None,
        **configs: str,
    ) -> None:
        """Create a topic of partitions with the same replicas; the leaders go round the ISR."""
        members = tuple(replicas if isr is None else isr)
        new = Topic(
            name=topic,
            topic_id=uuid5(NAMESPACE_OID, topic),  # it decides who is heir, so never by chance
            partition_count=partitions,
            configs={name.replace("_", "."): value for name, value in configs.items()},
        )
        items = []
        for number in range(partitions):
            turn = number % len(replicas)
            items.append(
                Partition(
                    topic_id=new.topic_id,
                    partition=number,
                    replicas=(*replicas[turn:], *replicas[:turn]),
                    leader=members[number % len(members)] if leader is None else leader,
                    leader_epoch=0,
                    isr=members,
                    acked_by=AckedBy.CHAIN if wants_diskless(new) else None,
                )
            )
        for start in range(0, len(items), 80):
            await self.store.commit(
                [put(item, is_logged=False) for item in items[start : start + 80]]
            )
        await self.store.commit([put(new)])

    async def partitions(self, topic: str) -> tuple[Partition, ...]:
        """Return the partitions as the store has them."""
        return (await self._view.refresh()).partitions(topic)

    async def lead(self, partition: Partition, leader: int) -> None:
        """Store the partition as if it had been handed over to the leader."""
        change = move_lead(partition, leader, ChangeReason.HAND_OVER)
        await self.store.commit([put(change.after)])

    async def leaders(self, topic: str) -> list[int]:
        """Return the stored leader of each partition."""
        return [partition.leader for partition in await self.partitions(topic)]


@asynccontextmanager
async def virtual_cluster(
    folder: Path, *, brokers: int = 3, config: NodeConfig | None = None, racks: int = 0
) -> AsyncIterator[VirtualCluster]:
    """Run members 1 to ``brokers``; at the end nothing of theirs may have broken."""
    cluster = VirtualCluster(folder, NodeConfig() if config is None else config, racks)
    try:
        for broker_id in range(1, brokers + 1):
            await cluster.add(broker_id)
        yield cluster
        assert not [problem for member in cluster for problem in member.problems()]
    finally:
        for member in cluster:
            await member.kill()
