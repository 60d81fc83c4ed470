"""Runs the product's own code on counting stores: what each thing that it does takes.

``bench.day.operations`` has the figures that come out; a test compares the two. The stores
are SQLite and a folder. Identities are as long as real ones, and the same with every run.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.log.unified_log import UnifiedLog
from tidelog_core.log.values import SealedSegment
from tidelog_core.metadata import records
from tidelog_core.metadata.groups import CommittedOffset, GroupMember, GroupRecord
from tidelog_core.metadata.image import ClusterView
from tidelog_core.metadata.records import (
    Broker,
    BrokerLease,
    Cluster,
    Partition,
    SegmentMeta,
    SegmentState,
    Topic,
)
from tidelog_core.metadata.sqlite import SqliteMetadataStore
from tidelog_core.metadata.store import Check
from tidelog_core.metadata.transactions import TransactionRecord
from tidelog_core.model import TopicPartition
from tidelog_core.objects.folder import FolderObjectStore
from tidelog_core.records.batch import Record, build_batch
from tidelog_core.replication.change import ChangeReason, PartitionChange
from tidelog_core.replication.election import ElectionClerk
from tidelog_core.replication.leases import LeaseTimes, PeerLeases
from tidelog_core.replication.partition_writer import write_changes
from tidelog_core.tier.index_build import SegmentSource
from tidelog_core.tier.integrity import NO_HASH
from tidelog_core.tier.keys import SegmentKey, segment_keys
from tidelog_functions.cluster_reader import ClusterReader
from tidelog_functions.invocation import TimeLimit
from tidelog_functions.retention.handler import apply_retention
from tidelog_functions.scrub.handler import scrub
from tidelog_functions.scrub.settings import parse_scrub_settings
from tidelog_node.coordinator.storage import GroupStorage, OffsetPages
from tidelog_node.membership.lease_keeper import LeaseKeeper
from tidelog_node.membership.membership import Membership
from tidelog_node.membership.peer_watch import PeerWatch
from tidelog_node.tier.protocol import UploadRequest, UploadResult
from tidelog_node.tier.segment_catalog import Leadership, SegmentCatalog
from tidelog_node.tier.upload import upload_segment
from tidelog_node.transactions import state as transaction_state
from tidelog_node.transactions.loaded import LoadedTransaction
from tidelog_node.transactions.producer_ids import ProducerIds

from bench.day import units
from bench.day.meter import MeteredObjects, MeteredStore, Usage
from bench.day.operations import Cost

CLUSTER = "0123456789abcdefghij01"  # as long as Kafka's ids
TOPIC = "orders-by-customer-v2"
GROUP = "billing-aggregator"
NOW_MS = 1_760_000_000_000
DAY_MS = 86_400_000
DEAD, LEADER, THIRD = 101, 201, 301
BROKERS = (DEAD, LEADER, THIRD)
PEERS = 120  # leases that one reading finds
CHANGED_TOGETHER = 25  # partitions of the topic, all led by one broker
OFFSET_FIRST = 1_000_000_000
RECORDS_PER_SEGMENT = 1_000_000
GROUP_MEMBERS, MEMBER_PARTITIONS = 15, 4
SEGMENTS = 20


def measure(folder: Path) -> dict[str, Cost]:
    """Return the cost of every operation by name. Takes a second or two."""
    return asyncio.run(_measure(folder))


def item_bytes() -> dict[str, int]:
    """Return the size of items that are read many at a time, by what they are."""
    segment = SegmentMeta(
        topic_id=UUID(int=7 << 96),
        partition=17,
        base_offset=OFFSET_FIRST,
        end_offset=OFFSET_FIRST + RECORDS_PER_SEGMENT,
        leader_epoch=18,
        segment_id=_id(1000),
        state=SegmentState.COPY_FINISHED,
        size_bytes=1_073_741_800,
        index_size_bytes=1_234_567,
        max_timestamp_ms=NOW_MS,
        leader_epochs=((17, OFFSET_FIRST - 5), (18, OFFSET_FIRST)),
        chained_hash="0" * 64,
        created_ms=NOW_MS,
    )
    lease = BrokerLease(broker_id=101, incarnation=_id(1), counter=100_000, version=100_000)
    key = records.partition_key(segment.topic_id, segment.partition)
    entries = [units.changelog_entry_size_bytes([key] * count) for count in (1, 2)]
    return {
        "segment": units.written_size_bytes(records.put(segment)),
        "lease": units.written_size_bytes(records.put(lease)),
        "changelog entry of one key": entries[0],
        "changelog entry, each further key": entries[1] - entries[0],
    }


def group_record_units(member_count: int, partitions_each: int) -> int:
    """Return the write units of a check on a classic group's record of that many members."""
    record = _group(member_count, partitions_each)
    return units.transaction_write_units(units.written_size_bytes(records.put(record)))


async def _measure(folder: Path) -> dict[str, Cost]:
    store = MeteredStore(SqliteMetadataStore(folder / "metadata.db"))
    objects = MeteredObjects(FolderObjectStore(folder / "objects"), store.usage)
    try:
        return await _Measurement(store, objects, folder).run()
    finally:
        await store.close()
        await objects.close()


class _Clock:
    """Stands still until it is moved."""

    def __init__(self, now_ms: float) -> None:
        self.now_ms = now_ms

    def __call__(self) -> float:
        return self.now_ms


class _Unlimited:
    """A Lambda context."""

    def get_remaining_time_in_millis(self) -> int:
        return 900_000


class _Measurement:
    """One run; the operations come in the order in which a cluster does them."""

    def __init__(self, store: MeteredStore, objects: MeteredObjects, folder: Path) -> None:
        self._store = store
        self._objects = objects
        self._folder = folder
        self._costs: dict[str, Cost] = {}
        self._wall = _Clock(NOW_MS)
        self._topic = Topic(
            name=TOPIC,
            topic_id=UUID(int=7 << 96),
            partition_count=CHANGED_TOGETHER,
            configs={"segment.bytes": "1073741824"},
        )

    async def run(self) -> dict[str, Cost]:
        """Return all costs."""
        await self._found_cluster()
        await self._leases()
        await self._polls()
        await self._partition_changes()
        await self._segments()
        await self._offsets()
        await self._transactions()
        return self._costs

    async def _note(self, name: str, action: Callable[[], Awaitable[object]]) -> None:
        """Carry the action out and note what it took."""
        self._store.usage = self._objects.usage = Usage()
        await action()
        used = self._store.usage
        self._costs[name] = Cost(
            write_units=dict(used.write_units),
            read_units=dict(used.read_units),
            transactions=used.transactions,
            logged_commits=used.logged_commits,
            requests=dict(used.requests),
        )

    # -- brokers

    async def _found_cluster(self) -> None:
        brokers = [
            Broker(
                broker_id=b,
                incarnation=_id(b),
                host=f"10.0.{b // 100}.17",
                port=9092,
                rack="us-east-1a",
            )
            for b in BROKERS
        ]
        partitions = [
            Partition(
                topic_id=self._topic.topic_id,
                partition=number,
                replicas=BROKERS,
                leader=DEAD,
                leader_epoch=17,
                isr=BROKERS,
                log_start_offset=OFFSET_FIRST,
            )
            for number in range(self._topic.partition_count)
        ]
        found = [Cluster(cluster_id=CLUSTER), self._topic, *brokers, *partitions]
        await self._store.commit([records.put(record) for record in found])

    async def _leases(self) -> None:
        others = [
            BrokerLease(broker_id=100 + number, incarnation=_id(number), counter=100_000)
            for number in range(PEERS)
        ]
        for lease in others:
            await self._store.commit([records.put(lease, is_logged=False)])
        clock = _Clock(0)
        membership = Membership(
            LEADER, times=LeaseTimes(), clerk=ElectionClerk(LEADER), clock=clock
        )
        keeper = LeaseKeeper(
            membership=membership,
            store=self._store,
            read_cluster=lambda: asyncio.sleep(0),
            incarnation=_id(LEADER),
            found=dataclasses.replace(others[LEADER - 100], version=1),
        )
        await keeper.acquire()
        clock.now_ms += LeaseTimes().renew_ms
        await self._note("renew a lease", keeper.step)
        view = ClusterView(self._store)
        watch = PeerWatch(membership=membership, store=self._store, view=view, poll_interval_ms=200)
        await self._note(f"read {PEERS} leases", watch.read)

    async def _polls(self) -> None:
        view = ClusterView(self._store)
        await view.refresh()
        await self._note("poll, nothing has changed", view.refresh)
        await self._write([await self._isr_change(BROKERS)])
        await self._note("poll, a partition has changed", view.refresh)

    # -- partitions

    async def _partition(self, number: int = 0) -> Partition:
        item = await self._store.get(records.partition_key(self._topic.topic_id, number))
        assert item is not None
        return Partition.from_item(item)

    async def _isr_change(self, isr: tuple[int, ...], *checks: Check) -> PartitionChange:
        after = dataclasses.replace(await self._partition(), isr=isr)
        return PartitionChange(after, ChangeReason.ALTER_ISR, checks)

    async def _write(self, changes: list[PartitionChange]) -> None:
        outcome = await write_changes(self._store, changes)
        assert len(outcome.written) == len(changes)

    async def _partition_changes(self) -> None:
        leaves = await self._isr_change(BROKERS[:2])
        await self._note("a replica leaves an ISR", lambda: self._write([leaves]))
        broker = await self._store.get(records.broker_key(THIRD))
        assert broker is not None
        check = records.check(Broker.from_item(broker))
        joins = await self._isr_change(BROKERS, check)
        await self._note("a replica joins an ISR", lambda: self._write([joins]))
        partitions = [await self._partition(n) for n in range(CHANGED_TOGETHER)]
        peers, clerk = PeerLeases(LeaseTimes()), ElectionClerk(LEADER)
        items = await self._store.list(records.BROKER_LEASE_COLLECTION)
        leases = [BrokerLease.from_item(item) for item in items]
        peers.observe(leases, started_ms=0, now_ms=0)
        others = [lease for lease in leases if lease.broker_id != DEAD]
        moved = [dataclasses.replace(lease, version=lease.version + 1) for lease in others]
        late_ms = LeaseTimes().lease_ms + 1
        dead = [lease for lease in leases if lease.broker_id == DEAD]
        peers.observe([*moved, *dead], started_ms=late_ms, now_ms=late_ms)
        taken = [
            clerk.takeover(p, peers, is_unclean_allowed=False, now_ms=late_ms) for p in partitions
        ]
        changes = [change for change in taken if change is not None]
        assert len(changes) == CHANGED_TOGETHER
        first, others = changes[:1], changes[1:]
        await self._note("take 1 partition over", lambda: self._write(first))
        await self._note(f"take {len(others)} partitions over", lambda: self._write(others))

    # -- segments

    async def _segments(self) -> None:
        catalog, leadership = SegmentCatalog(self._store), await self._leadership()
        for number in range(SEGMENTS):
            await self._copy(catalog, leadership, number)
        await self._note(
            f"list {SEGMENTS} segments",
            lambda: catalog.segments_of(self._topic.topic_id, leadership.partition),
        )
        segment = self._segment(0, await asyncio.to_thread(self._sealed, 0))
        # The first of them has expired a moment ago.
        self._wall.now_ms = segment.max_timestamp_ms + TopicConfig().retention_ms + 1
        await self._note("a function expires a segment", lambda: self._apply_retention(segment))
        self._wall.now_ms += TopicConfig().file_delete_delay_ms + 1
        await self._note("a function deletes a segment", lambda: self._apply_retention(segment))
        await self._note("a function finds nothing due", lambda: self._apply_retention(segment))
        await self._node_retention(catalog, leadership)
        await self._note(f"scrub {CHANGED_TOGETHER} partitions", self._scrub)

    async def _node_retention(self, catalog: SegmentCatalog, leadership: Leadership) -> None:
        second = (await catalog.segments_of(self._topic.topic_id, leadership.partition))[0]
        await self._note(
            "a node advances a log start",
            lambda: catalog.advance_log_start(leadership, second.end_offset),
        )
        await self._note(
            "a node begins a deletion",
            lambda: catalog.start_deletion(leadership, second, deletable_ms=NOW_MS),
        )
        doomed = dataclasses.replace(
            second,
            state=SegmentState.DELETE_STARTED,
            deletable_ms=NOW_MS,
            version=second.version + 1,
        )
        keys = segment_keys(CLUSTER, TOPIC, doomed)
        await self._objects.delete([keys.log, keys.index])
        await self._note("a node drops a segment", lambda: catalog.drop([doomed]))

    async def _leadership(self) -> Leadership:
        partition = await self._partition()
        return Leadership(
            self._topic.topic_id, 0, broker_id=partition.leader, leader_epoch=partition.leader_epoch
        )

    def _segment(self, number: int, sealed: SealedSegment) -> SegmentMeta:
        base = OFFSET_FIRST + number * RECORDS_PER_SEGMENT
        return SegmentMeta(
            topic_id=self._topic.topic_id,
            partition=0,
            base_offset=base,
            end_offset=base + RECORDS_PER_SEGMENT,
            leader_epoch=18,
            segment_id=_id(1000 + number),
            state=SegmentState.COPY_STARTED,
            size_bytes=sealed.size_bytes,
            index_size_bytes=0,
            max_timestamp_ms=NOW_MS + number * DAY_MS,
            leader_epochs=((17, OFFSET_FIRST - 5), (18, OFFSET_FIRST)),
            chained_hash="",
            created_ms=NOW_MS,
        )

    async def _copy(self, catalog: SegmentCatalog, leadership: Leadership, number: int) -> None:
        """Do what the copier does for one segment."""
        sealed = await asyncio.to_thread(self._sealed, number)
        segment = self._segment(number, sealed)
        started, results = [segment], []

        async def start() -> None:
            started[0] = await catalog.start_copy(leadership, segment)

        async def upload() -> None:
            results.append(await self._upload(started[0], sealed))

        await self._note("begin a copy", start)
        await self._note("upload a segment", upload)
        described = dataclasses.replace(
            started[0],
            index_size_bytes=results[0].index_size_bytes,
            chained_hash=results[0].chained_hash.hex(),
        )
        await self._note("finish a copy", lambda: catalog.finish_copy(leadership, described))

    async def _upload(self, meta: SegmentMeta, sealed: SealedSegment) -> UploadResult:
        source = SegmentSource(
            topic_id=meta.topic_id,
            partition=meta.partition,
            segment_id=meta.segment_id,
            leader_epoch=meta.leader_epoch,
            base_offset=sealed.base_offset,
            end_offset=sealed.end_offset,
            size_bytes=sealed.size_bytes,
            path=sealed.path,
            offset_index=sealed.offset_index,
            time_index=sealed.time_index,
            producer_snapshot=sealed.producer_snapshot,
            leader_epochs=sealed.leader_epochs,
            aborted=(),
            previous_hash=NO_HASH,
            key_filter_records_max=0,
        )
        keys = segment_keys(CLUSTER, TOPIC, meta)
        with ThreadPoolExecutor(1) as executor:
            request = UploadRequest(source, keys)
            return await upload_segment(self._objects, request, executor=executor)

    def _sealed(self, number: int) -> SealedSegment:
        """Return a sealed segment of one record, of a log of its own."""
        directory = self._folder / f"log-{number}"
        log = UnifiedLog.open(directory, TopicPartition(TOPIC, 0), config=TopicConfig())
        try:
            batch = bytearray(build_batch([Record(0, NOW_MS, None, b"value")]))
            log.append_as_leader(batch, leader_epoch=18)
            log.roll()
            sealed = log.sealed_segments()[0]
            log.make_whole(sealed)
            return sealed
        finally:
            log.close()

    async def _apply_retention(self, segment: SegmentMeta) -> None:
        """Do what the function does for the event of one index object."""
        key = SegmentKey(
            CLUSTER,
            TOPIC,
            segment.topic_id,
            segment.partition,
            segment.base_offset,
            segment.leader_epoch,
            segment.segment_id,
            is_index=True,
        )
        result = await apply_retention(
            self._store,
            self._objects,
            ClusterReader(self._store, NodeConfig()),
            keys=[key],
            is_scheduled=False,
            clock_ms=lambda: int(self._wall.now_ms),
            limit=TimeLimit(_Unlimited()),
        )
        assert not result.failed

    async def _scrub(self) -> None:
        await scrub(
            self._store,
            self._objects,
            ClusterReader(self._store, NodeConfig()),
            settings=parse_scrub_settings({}),
            clock_ms=lambda: int(self._wall.now_ms),
            limit=TimeLimit(_Unlimited()),
        )

    # -- groups, transactions, producers

    async def _offsets(self) -> None:
        record = _group(GROUP_MEMBERS, MEMBER_PARTITIONS)
        await self._store.commit([records.put(record, is_logged=False)])
        record = dataclasses.replace(record, version=1)
        storage = GroupStorage(
            self._store, OffsetPages(), shard=record.shard, group_id=GROUP, record=record
        )
        await self._note("write a group's record", lambda: storage.save(record))
        topic = (TOPIC, self._topic.topic_id)
        full = {topic: {n: _offset() for n in range(GROUP_MEMBERS * MEMBER_PARTITIONS)}}
        some = {topic: {n: _offset() for n in range(MEMBER_PARTITIONS)}}
        one = {topic: {0: _offset()}}
        await storage.commit_offsets(one)
        await self._note(
            "commit the offset of a topic's only partition", lambda: storage.commit_offsets(one)
        )
        await storage.commit_offsets(full)
        await self._note(
            "commit 4 of the 60 offsets in a page", lambda: storage.commit_offsets(some)
        )
        await storage.close()

    async def _transactions(self) -> None:
        ids = ProducerIds(self._store)
        await self._note("take a block of producer ids", ids.take)
        record = TransactionRecord(
            shard=3,
            transactional_id="billing-aggregator-3-0",
            producer_id=70_001,
            producer_epoch=5,
            timeout_ms=60_000,
            updated_ms=NOW_MS,
            client_version=2,
        )
        await self._store.commit([records.put(record, is_logged=False)])
        record = dataclasses.replace(record, version=1)
        loaded = LoadedTransaction(
            record.transactional_id,
            record,
            store=self._store,
            take_producer_id=ids.take,
            on_change=lambda _: None,
        )
        await loaded.claim()
        await self._note("carry out a transaction", lambda: _carry_out(loaded, record))


async def _carry_out(loaded: LoadedTransaction, record: TransactionRecord) -> None:
    """Begin, decide and end a transaction over four partitions."""
    producer = (record.producer_id, record.producer_epoch)
    partitions = [TopicPartition(TOPIC, number) for number in range(4)]
    version = record.client_version
    await loaded.apply(
        lambda current, _: transaction_state.add_partitions(
            current, *producer, partitions, client_version=version, now_ms=NOW_MS
        )
    )
    await loaded.apply(
        lambda current, fresh: transaction_state.end_transaction(
            current,
            *producer,
            is_commit=True,
            client_version=version,
            now_ms=NOW_MS,
            fresh_id=fresh,
        )
    )

    def complete(current: TransactionRecord | None, _: int | None) -> transaction_state.Decision:
        assert current is not None
        after = transaction_state.complete(current, now_ms=NOW_MS)
        return transaction_state.Decision(after=after)

    await loaded.apply(complete)


def _group(member_count: int, partitions_each: int) -> GroupRecord:
    """Return a classic group as Java's consumers make it, in their own encoding's lengths."""
    topic = len(TOPIC).to_bytes(2, "big") + TOPIC.encode()
    subscription = b"\x00\x03" + (1).to_bytes(4, "big") + topic + b"\xff" * 4 + b"\x00" * 8
    members = []
    for number in range(member_count):
        first = number * partitions_each
        owned = b"".join(p.to_bytes(4, "big") for p in range(first, first + partitions_each))
        assigned = b"\x00\x03" + (1).to_bytes(4, "big") + topic
        assigned += partitions_each.to_bytes(4, "big") + owned + b"\xff" * 4
        members.append(
            GroupMember(
                member_id=f"consumer-{GROUP}-{number}-{_id(number)}",
                group_instance_id=None,
                client_id=f"consumer-{GROUP}-{number}",
                client_host=f"/10.0.{number // 250}.{number % 250}",
                session_timeout_ms=45_000,
                rebalance_timeout_ms=300_000,
                protocols=(("range", subscription + owned), ("cooperative-sticky", subscription)),
                assignment=assigned,
            )
        )
    return GroupRecord(
        shard=17,
        group_id=GROUP,
        phase="Stable",
        phase_since_ms=NOW_MS,
        generation=12,
        protocol_type="consumer",
        protocol_name="range",
        leader=members[0].member_id,
        members=tuple(members),
    )


def _offset() -> CommittedOffset:
    return CommittedOffset(offset=OFFSET_FIRST, leader_epoch=18, metadata="", committed_ms=NOW_MS)


def _id(number: int) -> UUID:
    """Return an id that looks random and is the same with every run."""
    return UUID(int=(number * 0x9E3779B97F4A7C15F39CC0605CEDC835 + 0x2545F491) % (1 << 128))
