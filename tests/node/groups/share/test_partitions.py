"""Share partitions and their items: who may write, what failures do, when they are read anew."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.errors import (
    GroupIdNotFound,
    NotLeaderOrFollower,
    OutcomeUnknown,
    StoreUnavailable,
)
from tidelog_core.metadata.coordination.consumer_groups import HASH_OF_NO_TOPICS
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.coordination.groups import GroupRecord, shard_of_group
from tidelog_core.metadata.coordination.share_groups import ShareGroupState
from tidelog_core.metadata.coordination.share_partitions import (
    RecordState,
    SharePartitionRecord,
    StateBatch,
    share_partition_key,
)
from tidelog_core.metadata.records import Partition, Topic, delete, put
from tidelog_core.metadata.store import Check, ItemKey, Write
from tidelog_core.model import CONSUMER_OFFSETS_TOPIC
from tidelog_node.groups.share.partition import SharePartition
from tidelog_node.groups.share.partitions import SharePartitions
from tidelog_node.groups.share.state import ACCEPT, RELEASE, AcquireLimits, LogBatch
from tidelog_node.wire.share_fetch import Acknowledgement, Acquired

from tests.node.replication.led_node import LedNode, led_node
from tests.support.memory_store import MemoryMetadataStore
from tests.support.node_context import node_context

GROUP = "g"
SHARDS = 2
LIMITS = AcquireLimits(records_max=500, batch_size=500, in_flight_max=2000)
OFFSETS_ID = UUID(int=1)
FAR_MS = 4_102_444_800_000  # in the year 2100


class LossyStore(MemoryMetadataStore):
    """A store that a request may not reach."""

    loses_next = False

    async def commit(self, writes: Sequence[Write], *, checks: Sequence[Check] = ()) -> None:
        if self.loses_next:
            self.loses_next = False
            raise OutcomeUnknown("the request is lost")
        await super().commit(writes, checks=checks)


class LedSharePartitions:
    """One node that leads a partition of ten records; share partitions lie in another store."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.store = LossyStore()
        self.partitions = self.registry()

    def registry(self) -> SharePartitions:
        return SharePartitions(
            node_context(self.store, self.node.view),
            replicas=self.node.replicas,
            inspector=self.node.inspector,
        )

    async def load(self) -> SharePartition:
        """Return the share partition, as if a member had fetched."""
        share = await self.partitions.load(GROUP, self.node.replica())
        share.members.add("a")
        return share

    async def record(self) -> SharePartitionRecord:
        """Return what is stored."""
        item = await self.store.get(self.key)
        assert item is not None
        return SharePartitionRecord.from_item(item)

    @property
    def key(self) -> ItemKey:
        return share_partition_key(GROUP, self.node.replica().topic_id, 0)

    async def begin_at(self, offset: int, **fields: int) -> None:
        """Have the item as a leader of before left it, or an administrator."""
        record = SharePartitionRecord(
            group_id=GROUP, topic_id=self.node.replica().topic_id, partition=0
        )
        item = await self.store.get(record.item_id)
        version = 0 if item is None else item.version
        record = dataclasses.replace(record, start_offset=offset, version=version, **fields)
        await self.store.commit([put(record)])


@asynccontextmanager
async def new_world(folder: Path) -> AsyncIterator[LedSharePartitions]:
    async with led_node(folder) as node:
        topic = Topic(
            name=CONSUMER_OFFSETS_TOPIC, topic_id=OFFSETS_ID, partition_count=SHARDS, configs={}
        )
        shards = [
            Partition(
                topic_id=OFFSETS_ID, partition=n, replicas=(1,), leader=1, leader_epoch=0, isr=(1,)
            )
            for n in range(SHARDS)
        ]
        await node.store.commit([*(put(shard) for shard in shards), put(topic)])
        await node.create_topic(replicas=(1,))
        node.send(*(b"%d" % n for n in range(10)), acks=1)
        made = LedSharePartitions(node)
        group = GroupRecord(
            shard=shard_of_group(GROUP, SHARDS),
            group_id=GROUP,
            phase="Empty",
            phase_since_ms=0,
            generation=1,
            protocol_type="share",
            protocol_name=None,
            leader=None,
            members=(),
            share=ShareGroupState(assignment_epoch=1, topics_hash=HASH_OF_NO_TOPICS, members=()),
        )
        await made.store.commit([put(group)])
        made.partitions.start()
        try:
            yield made
        finally:
            await made.partitions.close()


def acquire(share: SharePartition, member: str = "a") -> list[Acquired]:
    offset = share.state.next_fetch_offset
    given = share.state.acquire(
        member,
        [LogBatch(0, 9)],
        LIMITS,
        read_offset=offset,
        deadline_ms=share.now_ms() + 60_000,
    )
    share.changed(wakes=False)
    return given


def say(share: SharePartition, first: int, last: int, kind: int) -> None:
    share.state.acknowledge("a", [Acknowledgement(first, last, bytes([kind]))], deadline_ms=0)
    share.changed()


async def test_acknowledgements_that_come_during_a_write_share_the_next(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        before = len(world.store.commits)
        saves = []
        for offset in range(10):
            say(share, offset, offset, ACCEPT)
            saves.append(asyncio.ensure_future(share.saved()))
            await asyncio.sleep(0)
        await asyncio.gather(*saves)
        assert 1 <= len(world.store.commits) - before <= 3
        assert (await world.record()).start_offset == 10


async def test_an_acquisition_alone_is_not_written(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        before = len(world.store.commits)
        assert acquire(share) == [Acquired(0, 9, 1)]
        await share.saved()
        assert len(world.store.commits) == before
        say(share, 3, 4, RELEASE)
        await share.saved()
        assert (await world.record()).batches == (StateBatch(3, 4, RecordState.AVAILABLE, 1),)


async def test_a_leader_that_was_replaced_can_store_nothing_more(tmp_path: Path) -> None:
    """Not even what it had under way when the next leader read the item."""
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        await world.begin_at(0, leader_epoch=7)  # the next leader's claim
        say(share, 0, 9, ACCEPT)
        with pytest.raises(NotLeaderOrFollower):
            await share.saved()
        assert (await world.record()).start_offset == 0
        assert world.partitions.get(GROUP, world.node.replica()) is None
        with pytest.raises(NotLeaderOrFollower):
            await world.load()  # of an epoch before the one that has it
        assert (await world.record()).leader_epoch == 7


@pytest.mark.parametrize("head_start", range(6))
async def test_what_a_leader_acknowledges_the_next_does_not_deliver(
    tmp_path: Path, head_start: int
) -> None:
    """However the write of the one and the reading of the other fall together."""
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        first = await world.load()
        acquire(first)
        later = world.registry()  # as of another process that leads from now on
        loading = asyncio.ensure_future(later.load(GROUP, world.node.replica()))
        for _ in range(head_start):
            await asyncio.sleep(world.store.latency / 2)
        say(first, 0, 1, ACCEPT)
        try:
            await first.saved()
            is_acknowledged = True
        except NotLeaderOrFollower:
            is_acknowledged = False
        second = await loading
        given = acquire(second)
        assert given == [Acquired(2 if is_acknowledged else 0, 9, 1)]
        await later.close()


async def test_a_store_that_is_away_delays_the_answer(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        failures = [StoreUnavailable("away"), StoreUnavailable("still away")]
        world.store.on_commit = lambda _: failures.pop() if failures else None
        say(share, 0, 9, ACCEPT)
        await share.saved()
        assert failures == []
        assert (await world.record()).start_offset == 10


@pytest.mark.parametrize("happened", [True, False])
async def test_a_write_of_unknown_outcome_is_looked_up(tmp_path: Path, happened: bool) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        if happened:
            failures = [OutcomeUnknown("the answer is lost")]
            world.store.on_commit = lambda _: failures.pop() if failures else None
        else:
            world.store.loses_next = True
        say(share, 0, 3, ACCEPT)
        await share.saved()
        assert (await world.record()).start_offset == 4
        say(share, 4, 9, ACCEPT)
        await share.saved()
        assert (await world.record()).start_offset == 10


async def test_what_an_administrator_changes_is_read_again(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        await world.begin_at(6, state_epoch=1)
        say(share, 0, 9, ACCEPT)
        with pytest.raises(NotLeaderOrFollower):
            await share.saved()
        again = await world.load()
        assert again is not share
        assert again.state.start_offset == 6
        assert (await world.record()).state_epoch == 1
        acquire(again)
        say(again, 6, 9, ACCEPT)
        await again.saved()
        assert (await world.record()).start_offset == 10


async def test_what_is_deleted_starts_again(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        await world.store.commit([delete(await world.record())])
        say(share, 0, 4, ACCEPT)
        with pytest.raises(NotLeaderOrFollower):
            await share.saved()
        again = await world.load()
        assert again.state.start_offset == 10  # latest, for the group says nothing else


async def test_a_new_leader_term_reads_the_item_again(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        say(share, 0, 4, ACCEPT)
        await share.saved()
        await world.node.change_partition(leader_epoch=3)
        again = await world.load()
        assert again is not share
        assert isinstance(share.problem, NotLeaderOrFollower)
        assert (again.state.start_offset, again.state.next_fetch_offset) == (5, 5)
        assert (await world.record()).leader_epoch == 3


async def test_a_log_that_has_lost_its_end_is_delivered_from_there(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(25)
        share = await world.load()
        assert share.state.start_offset == 10


async def test_what_nobody_uses_is_let_go(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        await world.begin_at(0)
        share = await world.load()
        acquire(share)
        share.leave("a")
        assert share.problem is None  # Some is acquired.
        say(share, 0, 9, ACCEPT)
        await share.saved()
        await asyncio.sleep(0)
        assert share.problem is not None
        assert world.partitions.get(GROUP, world.node.replica()) is None


async def test_nothing_is_made_for_a_group_that_is_not_there(tmp_path: Path) -> None:
    async with new_world(tmp_path) as world:
        with pytest.raises(GroupIdNotFound):
            await world.partitions.load("nobody", world.node.replica())
        assert await world.store.list("share:nobody") == []
        share = await world.load()
        assert share.state.start_offset == 10  # latest, unless the group says otherwise


@pytest.mark.parametrize(("resets", "expected"), [(("earliest",), 0), (("earliest", "latest"), 10)])
async def test_a_group_begins_by_the_settings_that_any_node_has_acknowledged(
    tmp_path: Path, resets: tuple[str, ...], expected: int
) -> None:
    """Also if this node has not heard of them yet: where a group begins is stored for good."""
    async with new_world(tmp_path) as made:
        store = made.node.store
        for version, reset in enumerate(resets):
            await made.node.view.refresh()
            configs = {"share.auto.offset.reset": reset}
            setting = GroupConfigOverrides(group_id=GROUP, configs=configs, version=version)
            await store.commit([put(setting)])
        share = await made.load()
        assert share.state.start_offset == expected
        assert (await made.record()).start_offset == expected


async def test_what_is_committed_while_the_first_offset_is_searched_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No record was young enough until then. The next one is."""
    async with new_world(tmp_path) as made:
        configs = {"share.auto.offset.reset": "by_duration:PT1H"}
        await made.node.store.commit([put(GroupConfigOverrides(group_id=GROUP, configs=configs))])
        inspector = made.node.inspector
        search = inspector.search

        async def search_meanwhile(*args: Any, **kwargs: Any) -> Any:
            found = await search(*args, **kwargs)
            made.node.send(b"10", acks=1)
            return found

        monkeypatch.setattr(inspector, "search", search_meanwhile)
        context = node_context(made.store, made.node.view, clock_ms=lambda: FAR_MS)
        await made.partitions.close()
        made.partitions = SharePartitions(context, replicas=made.node.replicas, inspector=inspector)
        made.partitions.start()
        share = await made.load()
        assert made.node.replica().log.high_watermark == 11
        assert share.state.start_offset == 10
