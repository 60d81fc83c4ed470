"""Measures the units of groups, transactions and producers."""

from __future__ import annotations

import dataclasses

from tidelog_core.metadata import records
from tidelog_core.metadata.coordination.groups import CommittedOffset, GroupMember, GroupRecord
from tidelog_core.metadata.coordination.transactions import TransactionRecord
from tidelog_core.model import TopicPartition
from tidelog_node.coordinator.group_items import DEFAULT_PAGE_LIMITS
from tidelog_node.coordinator.group_storage import GroupStorage
from tidelog_node.coordinator.offset_page_cache import OffsetPageCache
from tidelog_node.transactions import state as transaction_state
from tidelog_node.transactions.loaded_transaction import LoadedTransaction
from tidelog_node.transactions.producer_ids import ProducerIds

from bench.day.measure_world import (
    GROUP,
    GROUP_MEMBERS,
    MEMBER_PARTITIONS,
    NOW_MS,
    OFFSET_FIRST,
    TOPIC,
    MeasuredCluster,
    identity,
)


class Clients:
    """Measures groups, transactions and producers."""

    def __init__(self, world: MeasuredCluster) -> None:
        self._world = world

    async def offsets(self) -> None:
        """Measure the assignment of a group, and its members' commits."""
        record = group_of(GROUP_MEMBERS, MEMBER_PARTITIONS)
        before = [dataclasses.replace(member, assignment=b"") for member in record.members]
        storage = GroupStorage(
            self._world.store,
            OffsetPageCache(),
            shard=record.shard,
            group_id=GROUP,
            stored=None,
            limits=DEFAULT_PAGE_LIMITS,
        )
        await storage.save(
            dataclasses.replace(record, phase="CompletingRebalance", members=tuple(before))
        )
        await self._world.note("assign partitions to 15 members", lambda: storage.save(record))
        topic = (TOPIC, self._world.topic.topic_id)
        full = {topic: {n: _offset() for n in range(GROUP_MEMBERS * MEMBER_PARTITIONS)}}
        some = {topic: {n: _offset() for n in range(MEMBER_PARTITIONS)}}
        one = {topic: {0: _offset()}}
        await storage.commit_offsets(one)
        await self._world.note(
            "commit the offset of a topic's only partition", lambda: storage.commit_offsets(one)
        )
        await storage.commit_offsets(full)
        await self._world.note(
            "commit 4 of the 60 offsets in a page", lambda: storage.commit_offsets(some)
        )
        await storage.close()

    async def transactions(self) -> None:
        """Measure the allocation of producer ids, and a transaction."""
        ids = ProducerIds(self._world.store)
        await self._world.note("take a block of producer ids", ids.take)
        record = TransactionRecord(
            shard=3,
            transactional_id="billing-aggregator-3-0",
            producer_id=70_001,
            producer_epoch=5,
            timeout_ms=60_000,
            updated_ms=NOW_MS,
            client_version=2,
        )
        await self._world.store.commit([records.put(record, is_logged=False)])
        record = dataclasses.replace(record, version=1)
        loaded = LoadedTransaction(
            record.item_id,
            record,
            store=self._world.store,
            take_producer_id=ids.take,
            on_change=lambda _: None,
        )
        await loaded.claim()
        await self._world.note("carry out a transaction", lambda: _carry_out(loaded, record))


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


def group_of(member_count: int, partitions_each: int) -> GroupRecord:
    """Return a classic group like Java consumers', with entries of the same lengths."""
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
                member_id=f"consumer-{GROUP}-{number}-{identity(number)}",
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
