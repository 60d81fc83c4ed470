"""Coordinators that crash or stall at any step, the logs that they write to, and a client.

Node 1 coordinates groups and transactions until it is struck: at one of its writes to the
store or one of its markers, before it takes effect or after. Then node 2 takes over. A node
that stalled goes on later, as if nothing had happened, where it had stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from tidelog_core.config import NodeConfig, TopicConfig
from tidelog_core.errors import StoreUnavailable, TidelogError
from tidelog_core.log.local_log import LocalLog
from tidelog_core.log.values import AppendOrigin
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.coordination.transactions import (
    TransactionRecord,
    TransactionState,
    pending_offsets_collection,
)
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import put
from tidelog_core.metadata.store import Check, ItemKey, Write
from tidelog_core.model import (
    CONSUMER_OFFSETS_TOPIC,
    TRANSACTION_STATE_TOPIC,
    TopicPartition,
)
from tidelog_core.records.batch import decode_records, parse_header
from tidelog_core.records.control import (
    ControlType,
    EndTransactionMarker,
    build_end_transaction_marker,
    parse_end_transaction_marker,
)
from tidelog_core.records.encode import build_batch
from tidelog_core.records.record import Record
from tidelog_node.coordinator.coordinator import GroupCoordinator
from tidelog_node.coordinator.hosted_groups import HostedGroups
from tidelog_node.dialing.peers import Peers
from tidelog_node.groups.classic_messages import GroupCaller
from tidelog_node.transactions.coordinator import TransactionCoordinator
from tidelog_node.transactions.markers import Marker, MarkerResults, MarkerSender
from tidelog_node.transactions.pending_group_offsets import TransactionalOffsets
from tidelog_node.transactions.producer_ids import ProducerIds
from tidelog_node.transactions.verifier import TransactionVerifier

from tests.support.coordinator_node import create_topic, delete_topic, topic_id
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context
from tests.support.virtual_time import run

T = TypeVar("T")

TXN = "txn"
GROUP = "g"
PARTITIONS = tuple(TopicPartition("t", index) for index in range(3))
REQUEST_SECONDS = 2.0  # a client gives up a request then, and looks for another coordinator
SETTLE_SECONDS = 120.0


class Strike(Enum):
    """How the first node meets its end at the chosen step."""

    BEFORE = "dies before it"
    AFTER = "dies after it"
    STALL = "stalls before it, and does it when others have gone on"


class Fate:
    """Counts a node's steps and strikes at one of them."""

    def __init__(self, step: int | None, strike: Strike) -> None:
        self.step = step
        self.strike = strike
        self.step_count = 0
        self.struck = asyncio.Event()
        self.is_over = False  # whoever hangs gives up
        self.may_go_on = asyncio.Event()

    async def pass_through(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do the step, unless it is the one."""
        await self.hang_if_struck()
        index, self.step_count = self.step_count, self.step_count + 1
        if index != self.step:
            return await act()
        if self.strike is Strike.AFTER:
            await act()
        self.struck.set()
        await self.hang_if_struck()
        return await act()

    async def hang_if_struck(self) -> None:
        """Never return on a node that is dead; on one that stalls, when it goes on."""
        if self.struck.is_set() and not self.may_go_on.is_set():
            await self.may_go_on.wait()
        if self.struck.is_set() and (self.is_over or self.strike is not Strike.STALL):
            raise StoreUnavailable("this node is dead")


class FatefulStore:
    """The shared store, as one node reaches it."""

    def __init__(self, store: MemoryMetadataStore, fate: Fate) -> None:
        self._store = store
        self._fate = fate

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        await self._fate.pass_through(lambda: self._store.commit(writes, checks=checks))

    async def increment(self, id: ItemKey, by: int) -> int:
        return await self._fate.pass_through(lambda: self._store.increment(id, by))

    async def close(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        async def call(*arguments: Any, **options: Any) -> Any:
            await self._fate.hang_if_struck()
            return await getattr(self._store, name)(*arguments, **options)

        return call


@dataclass
class Node:
    """One node's coordinators."""

    broker_id: int
    fate: Fate
    view: ClusterView
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    offsets: TransactionalOffsets
    verifier: TransactionVerifier


@dataclass
class TransactionWorld:
    """What is outside of the nodes: the store, the logs, time."""

    folder: Path
    store: MemoryMetadataStore = field(default_factory=MemoryMetadataStore)
    logs: dict[TopicPartition, LocalLog] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)  # topics that were deleted
    is_clock_trusted: bool = True
    config: NodeConfig = field(
        default_factory=lambda: NodeConfig(
            group_initial_rebalance_delay_ms=0,
            transaction_abort_timed_out_transaction_cleanup_interval_ms=1000,
        )
    )

    def now_ms(self) -> int:
        """Return the wall clock, which goes with the loop's time."""
        return int(asyncio.get_running_loop().time() * 1000) + 5_000_000

    async def begin(self) -> None:
        await create_topic(self.store, TRANSACTION_STATE_TOPIC, 1)
        await create_topic(self.store, CONSUMER_OFFSETS_TOPIC, 1)
        await create_topic(self.store, "t", len(PARTITIONS))
        for partition in PARTITIONS:
            self.logs[partition] = LocalLog.open(
                self.folder / str(partition), partition, config=TopicConfig(), clock_ms=self.now_ms
            )

    async def start_node(self, broker_id: int, fate: Fate) -> Node:
        store: Any = FatefulStore(self.store, fate)
        view = ClusterView(self.store)
        await view.refresh()

        context = node_context(
            store,
            view,
            broker_id=broker_id,
            config=lambda: self.config,
            clock_ms=self.now_ms,
            may_expire=lambda: self.is_clock_trusted,
        )
        hosted = HostedGroups(context, clock=asyncio.get_running_loop().time)
        groups = GroupCoordinator(context, hosted)
        transactions = TransactionCoordinator(
            context,
            take_producer_id=ProducerIds(store).take,
            markers=MarkerSender(view=view, target=Leaders(self, fate)),
        )
        offsets = TransactionalOffsets(context, groups=groups)
        verifier = TransactionVerifier(
            context, coordinator=transactions, peers=Peers(context.view, context.dialer)
        )
        node = Node(broker_id, fate, view, groups, transactions, offsets, verifier)
        self.nodes.append(node)
        await groups.start()
        await transactions.start()
        return node

    @property
    def node(self) -> Node:
        """Whoever coordinates now."""
        return self.nodes[-1]

    async def take_over(self) -> None:
        """Have another node coordinate everything. The one before does not hear of it."""
        view = ClusterView(self.store)
        await view.refresh()
        broker_id = self.node.broker_id + 1
        moved = [
            dataclasses.replace(p, leader=broker_id, leader_epoch=p.leader_epoch + 1)
            for topic in (TRANSACTION_STATE_TOPIC, CONSUMER_OFFSETS_TOPIC)
            for p in view.image.partitions(topic)
        ]
        await self.store.commit([put(partition) for partition in moved])
        await self.start_node(broker_id, Fate(None, Strike.BEFORE))

    async def delete_topic(self, name: str) -> None:
        """Delete the topic from the metadata; its leaders answer nobody any more."""
        view = ClusterView(self.store)
        await view.refresh()
        await delete_topic(self.store, view, name)
        self.gone.add(name)

    async def ask(
        self, request: Callable[[Node], Awaitable[ErrorCode]], *, tries_again: bool = True
    ) -> ErrorCode:
        """Ask as a client does: again while that may help, and someone else if nobody answers.

        One that does not try again gets REQUEST_TIMED_OUT where nobody answers.
        """
        while True:
            node = self.node
            if node.fate.struck.is_set():
                await self.take_over()
                continue
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    error = await request(node)
            except (TidelogError, TimeoutError):
                if not tries_again:
                    return ErrorCode.request_timed_out
                await asyncio.sleep(0.05)
                continue
            if node.fate.struck.is_set():
                continue  # Its answer is lost with it.
            if error is not ErrorCode.concurrent_transactions and not error.retriable:
                return error
            await asyncio.sleep(0.05)

    async def record(self) -> TransactionRecord | None:
        """Return the transactional id's record as it is stored."""
        item = await self.store.get(ItemKey("transaction:0", TXN))
        return None if item is None else TransactionRecord.from_item(item)

    async def settle(self) -> None:
        """Wait until no transaction is open or being ended."""
        async with asyncio.timeout(SETTLE_SECONDS):
            while True:
                if self.node.fate.struck.is_set():
                    await self.take_over()
                record = await self.record()
                if record is None or record.state in (
                    TransactionState.EMPTY,
                    TransactionState.COMPLETE_COMMIT,
                    TransactionState.COMPLETE_ABORT,
                ):
                    return
                await asyncio.sleep(0.1)

    def outcomes(self) -> dict[str, set[str]]:
        """Return what became of the records of each transaction: committed, aborted, open."""
        found: dict[str, set[str]] = {}
        for log in self.logs.values():
            open_values: dict[int, list[str]] = {}
            for header, records in _batches(log):
                if not header.is_control:
                    values = [str(record.value, "ascii") for record in records]
                    open_values.setdefault(header.producer_id, []).extend(values)
                    continue
                marker = parse_end_transaction_marker(records[0])
                assert marker is not None
                outcome = "committed" if marker.is_commit else "aborted"
                for value in open_values.pop(header.producer_id, []):
                    found.setdefault(value, set()).add(outcome)
            for values in open_values.values():
                for value in values:
                    found.setdefault(value, set()).add("open")
        return found

    async def offset(self) -> int | None:
        """Return the group's committed offset of the first partition."""
        found = await self.node.groups.fetch_offsets(GROUP, {"t": [0]})
        return next((value.offset for value in found.values()), None)

    async def pending_offsets(self) -> list[str]:
        """Return the keys of what still waits for a transaction's end, in the store."""
        items = await self.store.list(pending_offsets_collection(0))
        return [item.id.key for item in items]

    async def end(self) -> None:
        for node in self.nodes:
            node.fate.is_over = True
            node.fate.may_go_on.set()
        for node in self.nodes:
            await node.transactions.close()
            await node.groups.close()
        for log in self.logs.values():
            log.close()


class Leaders:
    """The leaders of all partitions, as one node reaches them."""

    def __init__(self, world: TransactionWorld, fate: Fate) -> None:
        self._world = world
        self._fate = fate

    async def write_markers(self, broker_id: int, markers: Sequence[Marker]) -> MarkerResults:
        results: dict[tuple[int, TopicPartition], ErrorCode] = {}
        for marker in markers:
            for partition in sorted(marker.partitions):
                code = await self._fate.pass_through(
                    lambda m=marker, p=partition: self._write(m, p)  # type: ignore[misc]
                )
                results[marker.producer_id, partition] = code
        return results

    async def _write(self, marker: Marker, partition: TopicPartition) -> ErrorCode:
        await asyncio.sleep(0.001)
        if partition.topic in self._world.gone:
            return ErrorCode.unknown_topic_or_partition
        try:
            if partition.topic == CONSUMER_OFFSETS_TOPIC:
                await self._world.node.offsets.complete_transaction(
                    partition.partition,
                    marker.producer_id,
                    marker.producer_epoch,
                    is_commit=marker.is_commit,
                    coordinator_epoch=marker.coordinator_epoch,
                )
                return ErrorCode.none
            batch = build_end_transaction_marker(
                EndTransactionMarker(
                    ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                    marker.coordinator_epoch,
                ),
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                timestamp_ms=self._world.now_ms(),
            )
            self._world.logs[partition].append_as_leader(
                bytearray(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR
            )
        except TidelogError as error:
            return error.code
        return ErrorCode.none


class Client:
    """A transactional producer, of transaction version 2 or of before."""

    def __init__(self, world: TransactionWorld, *, version: int) -> None:
        self._world = world
        self._version = version
        self.producer_id = -1
        self.epoch = -1
        self._sequences: dict[TopicPartition, int] = {}

    @classmethod
    async def begin(cls, world: TransactionWorld, *, version: int) -> Client:
        """Return a client that has a producer id."""
        client = cls(world, version=version)
        assert await client.init() is ErrorCode.none
        return client

    async def init(self) -> ErrorCode:
        async def ask(node: Node) -> ErrorCode:
            decision = await node.transactions.init_producer_id(TXN, 10_000, None)
            if decision.error is ErrorCode.none:
                self._adopt(decision.producer_id, decision.producer_epoch)
            return decision.error

        return await self._world.ask(ask)

    async def write(self, value: str, partitions: Sequence[TopicPartition]) -> ErrorCode:
        """Add the partitions and write a record with this value to each."""
        for partition in partitions:
            error = await self._world.ask(
                lambda node, p=partition: node.transactions.add_partitions(  # type: ignore[misc]
                    TXN, self.producer_id, self.epoch, [p], client_version=self._version
                )
            )
            if error is not ErrorCode.none:
                return error
            sequence = self._sequences.get(partition, 0)
            batch = build_batch(
                [Record(0, self._world.now_ms(), None, value.encode())],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
            self._world.logs[partition].append_as_leader(bytearray(batch), leader_epoch=0)
            self._sequences[partition] = sequence + 1
        return ErrorCode.none

    async def commit_offset(self, offset: int, *, tries_again: bool = True) -> ErrorCode:
        value = CommittedOffset(offset, -1, "", self._world.now_ms())
        return await self._world.ask(
            lambda node: node.offsets.commit(
                GROUP,
                {("t", topic_id("t")): {0: value}},
                GroupCaller(),
                transactional_id=TXN,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                api_version=5,
                verifier=node.verifier,
            ),
            tries_again=tries_again,
        )

    async def end(self, *, is_commit: bool) -> ErrorCode:
        producer_id, epoch = self.producer_id, self.epoch

        async def ask(node: Node) -> ErrorCode:
            decision = await node.transactions.end_transaction(
                TXN, producer_id, epoch, is_commit=is_commit, client_version=self._version
            )
            if decision.error is ErrorCode.none and self._version >= 2:
                self._adopt(decision.producer_id, decision.producer_epoch)
            return decision.error

        return await self._world.ask(ask)

    def _adopt(self, producer_id: int, epoch: int) -> None:
        self.producer_id, self.epoch = producer_id, epoch
        self._sequences.clear()


@contextlib.asynccontextmanager
async def a_world(
    folder: Path, *, step: int | None, strike: Strike
) -> AsyncIterator[TransactionWorld]:
    """Give a world whose first node is struck at its ``step``-th step."""
    world = TransactionWorld(folder)
    await world.begin()
    await world.start_node(1, Fate(step, strike))
    try:
        yield world
    finally:
        await world.end()


def play(folder: Path, scene: Callable[[TransactionWorld], Awaitable[None]]) -> None:
    """Run the scene in virtual time, in a world whose first node is never struck."""

    async def main() -> None:
        async with a_world(folder, step=None, strike=Strike.BEFORE) as world:
            await scene(world)

    run(main())


def _batches(log: LocalLog) -> list[tuple[Any, Sequence[Record]]]:
    found = []
    offset = 0
    while offset < log.log_end_offset:
        read = log.read(offset, max_bytes=1 << 20, up_to=log.log_end_offset)
        assert read.slice is not None
        data = os.pread(read.slice.file.fileno(), read.slice.size_bytes, read.slice.position)
        position = 0
        while position < len(data):
            header = parse_header(data, position)
            found.append((header, decode_records(data, position)))
            position += header.size_bytes
            offset = header.next_offset
    return found
