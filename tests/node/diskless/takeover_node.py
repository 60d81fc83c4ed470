"""A node in this process that enters diskless partitions, in a chain that a test writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tidelog_core.diskless.chain.chain_writer import PutOutcome
from tidelog_core.diskless.chain.store import ChainStore
from tidelog_core.diskless.wal.build import ObjectName, WalSlice, refer_to
from tidelog_core.diskless.wal.epoch_chains import current_chain
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.metadata.epoch_chains import ChainName, EpochChains
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_node.diskless.recovery.log_recovery import LogRecovery
from tidelog_node.diskless.recovery.log_refill import LogRefill
from tidelog_node.diskless.recovery.range_cache import KEPT_BYTES_MAX, RangeCache
from tidelog_node.diskless.recovery.tail_fills import FILL_LIMITS, TailFills
from tidelog_node.diskless.takeover.takeovers import Takeovers
from tidelog_node.follower.catch_up import CatchUp
from tidelog_node.replicas.replica import Replica
from tidelog_node.tier.history import TierHistory
from tidelog_node.tier.manifests import BucketManifests

from tests.node.diskless.chained_log import new_chain
from tests.node.replication.led_node import LedNode, led_node
from tests.support.batches import batch_of
from tests.support.data_objects import build_data_object
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.log_building import read_bytes


class StoredChain(HandChain):
    """A chain whose objects are put when a test says so."""

    def __init__(self, store: MemoryObjectStore, cluster_id: str) -> None:
        super().__init__()
        self.name: ChainName = new_chain()
        self.is_deposed = False
        self.entered: list[tuple[str, int, int]] = []  # partition, epoch, sequence before
        self.pending: set[Replica] = set()  # it still has something of them from an earlier epoch
        self._store, self._cluster_id = store, cluster_id
        self.next_sequence = 0
        self.tail_counts: dict[str, int] = {}
        self._ends: dict[Replica, int] = {}

    def take(
        self,
        replica: Replica,
        stored: EpochChains,
        *,
        end_offset: int,
        previous_sequence: int,
        tail_count: int,
    ) -> None:
        current = current_chain(stored)
        assert current is not None
        assert (current.chain, current.first_offset) == (self.name, end_offset)
        assert replica.log.log_end_offset == replica.log.high_watermark == end_offset
        self.entered.append((str(replica.partition), current.leader_epoch, previous_sequence))
        self._ends[replica] = end_offset
        self.tail_counts[str(replica.partition)] = tail_count
        replica.chain = self

    async def commit(self, *replicas: Replica) -> PutOutcome:
        """Put what these logs have got into one object, and say so if that was done."""
        slices = []
        for replica in replicas:
            data = read_bytes(replica.log, self._ends[replica])
            epoch = replica.leader_epoch
            slices.append(WalSlice(replica.topic_id, replica.partition.partition, epoch, data))
        name = ObjectName(self._cluster_id, self.name, self.next_sequence, self.next_sequence, 0, 0)
        chains = ChainStore(self._store, self._cluster_id)
        data = build_data_object(name, slices).data
        outcome = await chains.put(self.name, self.next_sequence, data)
        if outcome is PutOutcome.STORED:
            self.next_sequence += 1
            for replica in replicas:
                self._ends[replica] = replica.log.log_end_offset
                replica.on_chain_committed(self._ends[replica])
        return outcome

    async def commit_by_gateway(self, gateway: ChainName, replica: Replica) -> None:
        """Put the batch that the log has got into a gateway's object, and a reference to it here.

        As if the log had got it from there. The gateway's sequences are those of this chain.
        """
        base_offset, sequence = self._ends[replica], self.next_sequence
        data = bytes(foreign_batches(read_bytes(replica.log, base_offset)))
        foreign = WalSlice(*replica.name, -1, data, is_foreign=True)
        chains = ChainStore(self._store, self._cluster_id)
        name = ObjectName(self._cluster_id, gateway, sequence, sequence, 0, 0)
        built = build_data_object(name, [foreign]).data
        assert await chains.put(gateway, sequence, built) is PutOutcome.STORED
        (row,) = parse_object(built, key="").slices
        reference = refer_to(
            foreign,
            gateway=gateway,
            sequence=sequence,
            position=row.position,
            leader_epoch=replica.leader_epoch,
            base_offset=base_offset,
        )
        name = ObjectName(self._cluster_id, self.name, sequence, sequence, 0, 0)
        referring = build_data_object(name, [], references=[reference]).data
        assert await chains.put(self.name, sequence, referring) is PutOutcome.STORED
        self.next_sequence += 1
        self._ends[replica] = replica.log.log_end_offset
        replica.on_chain_committed(self._ends[replica])


class NoIndexes:
    """The index objects of a tier without segments."""

    async def get(self, *_: object) -> Any:
        raise AssertionError


class TakeoverNode:
    """A node, its chain, and what enters its partitions."""

    def __init__(self, node: LedNode, objects: MemoryObjectStore, kept_bytes_max: int) -> None:
        self.node, self.objects = node, objects
        self.cluster_id = node.view.image.cluster_id
        self.chain = StoredChain(objects, self.cluster_id)
        self.chain_calls = 0
        self.takeovers: Takeovers
        self.recovery: LogRecovery
        self.history: TierHistory
        self.fills: TailFills
        self.ranges = RangeCache(self._read, kept_bytes_max)

    async def _read(self, key: str, start: int, end: int) -> bytes | memoryview:
        return await self.objects.get_range(key, start, end)  # which some tests replace

    async def own_chain(self) -> Any:
        self.chain_calls += 1
        if self.chain.is_deposed:
            self.chain = StoredChain(self.objects, self.cluster_id)
        return _Entry(self.chain)

    def replica(self, partition: int = 0) -> Replica:
        return self.node.replica(partition)

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not is_true():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def until_led(self, partition: int = 0) -> Replica:
        await self.until(lambda: self.replica(partition).is_leader)
        return self.replica(partition)

    async def send(self, *values: bytes, **fields: Any) -> Any:
        """Produce one batch, commit it, and return the answer."""
        answer = self.node.send_batch(batch_of(*values, **fields))
        assert await self.chain.commit(self.replica()) is PutOutcome.STORED
        return await answer

    def stored(self, partition: int = 0) -> Any:
        return self.node.view.image.partitions("t")[partition]


class _Entry:
    """The chain as ``Takeovers`` knows it."""

    def __init__(self, chain: StoredChain) -> None:
        self._chain = chain
        self.name = chain.name
        self.next_sequence = chain.next_sequence
        self.enter = chain.take

    @property
    def is_deposed(self) -> bool:
        return self._chain.is_deposed

    def has_uncommitted(self, replica: Replica) -> bool:
        return replica in self._chain.pending


@asynccontextmanager
async def takeover_node(
    folder: Path,
    objects: MemoryObjectStore | None = None,
    *,
    kept_bytes_max: int = KEPT_BYTES_MAX,
) -> AsyncIterator[TakeoverNode]:
    async with led_node(folder) as node:
        it = TakeoverNode(node, objects or MemoryObjectStore(), kept_bytes_max)
        history = TierHistory(
            store=node.store,
            indexes=NoIndexes(),  # type: ignore[arg-type]
            view=node.view,
        )
        it.history = history
        chains = ChainStore(it.objects, it.cluster_id)
        catch_up = CatchUp(node.context, history=history, timeout_s=1)
        refill = LogRefill(node.context, it.ranges.read_within)
        it.fills = TailFills(
            LogRefill(node.context, it.ranges.read_within, limits=FILL_LIMITS, behind=refill),
            history,
            node.context.counters.chain,
        )
        it.recovery = LogRecovery(
            node.context,
            objects=it.objects,
            chains=ChainStore(it.objects, it.cluster_id, read=it.ranges.read),
            refill=refill,
            history=history,
            catch_up=catch_up,
            fills=it.fills,
        )
        takeovers = Takeovers(
            node.context,
            replicas=node.replicas,
            own_chain=it.own_chain,
            chains=chains,
            recovery=it.recovery,
            manifests=BucketManifests(node.context, it.objects),
        )
        it.takeovers = takeovers
        work = asyncio.create_task(takeovers.run())
        try:
            for replica in node.replicas.replicas():  # as at a start
                node.replicas.follow_again(replica.partition.topic)
            yield it
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            await it.fills.close()


async def create(it: TakeoverNode, *, partitions: int = 1) -> None:
    await it.node.create_topic(replicas=(1,), partition_count=partitions, **DISKLESS)
