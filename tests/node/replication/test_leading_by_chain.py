"""What a node answers on a diskless partition, whose chain commits instead of followers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.delete_records.v2 import request as delete_request
from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v11 import request as list_request
from tidelog_core.errors import OutcomeUnknown
from tidelog_core.metadata.records import delete
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build
from tidelog_node.replicas.replica import Replica
from tidelog_node.transactions.marker_writer import MarkerWriter
from tidelog_node.transactions.markers import Marker
from tidelog_node.transactions.uncommitted_markers import (
    SWEPT_MAX,
    MarkerName,
    UncommittedMarkers,
)

from tests.node.replication.led_node import TOPIC, LedNode, led_node
from tests.support.batches import batch, batch_of
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.log_building import open_log
from tests.support.request_contexts import context_of
from tests.support.waiting import eventually_async

LATEST, EARLIEST = -1, -2
READ_COMMITTED = 1


class NoOffsets:
    """The offsets of groups in a test without any."""

    async def complete_transaction(self, *_: int, **__: object) -> None:
        raise AssertionError


@asynccontextmanager
async def diskless_leader(folder: Path) -> AsyncIterator[tuple[LedNode, Replica, HandChain]]:
    """A node that leads one diskless partition in epoch 0."""
    async with led_node(folder) as node:
        replica = await node.create_topic(replicas=(1,), **DISKLESS)
        chain = HandChain()
        chain.enter(node.replicas, replica, 0)
        yield node, replica, chain


def send_idempotent(node: LedNode, sequence: int, *values: bytes) -> Any:
    """Produce one batch of an idempotent producer; return the future of the answer."""
    return node.send_batch(batch_of(*values, producer=(7, 0, sequence)), timeout_ms=50)


async def list_offset(node: LedNode, name: int, *, replica_id: int = -1) -> Any:
    wanted = build(
        list_request.ListOffsetsPartition,
        partition_index=0,
        current_leader_epoch=-1,
        timestamp=name,
    )
    topic = build(list_request.ListOffsetsTopic, name=TOPIC, partitions=(wanted,))
    request = build(list_request.ListOffsetsRequest, replica_id=replica_id, topics=(topic,))
    response: Any = await node.list_offsets.handle(request, context_of(11, api_key=2))
    return response.topics[0].partitions[0]


async def test_a_node_does_not_lead_before_the_partition_is_in_a_chain(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        asked: list[int] = []
        node.replicas.roles.unentered_lead.subscribe(lambda one: asked.append(one.leader_epoch))
        replica = await node.create_topic(replicas=(1,), **DISKLESS)
        assert asked == [0]
        assert not replica.is_leader
        assert node.send(b"a").error_code is ErrorCode.not_leader_or_follower
        assert node.read(0).error_code is ErrorCode.not_leader_or_follower
        chain = HandChain()
        chain.enter(node.replicas, replica, 1)  # The write is known here before the image shows it.
        assert not replica.is_leader
        assert asked == [0]
        await node.change_partition(leader_epoch=1)
        assert replica.is_leader
        assert asked == [0]
        assert node.send(b"a", acks=0) is None
        assert chain.noted == [(0, 1)]


async def test_acks_and_consumers_wait_for_the_chain(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, chain):
        everything, one = node.send(b"a"), node.send(b"b", acks=1)
        assert node.send(b"c", acks=0) is None
        held = node.read(0, max_wait_ms=120_000)
        await asyncio.sleep(0)
        assert chain.noted == [(0, 1), (1, 2), (2, 3)]
        assert not any(waiting.done() for waiting in (everything, one, held))
        assert (await list_offset(node, LATEST)).offset == 0
        replica.on_chain_committed(1)
        assert (await everything).base_offset == 0
        answer = await asyncio.wait_for(held, 60)
        assert answer.high_watermark == 1
        assert answer.records
        assert not one.done()
        replica.on_chain_committed(3)
        assert (await one).base_offset == 1
        assert node.read(3).high_watermark == 3
        assert (await list_offset(node, LATEST)).offset == 3


async def test_followers_and_min_insync_replicas_count_for_nothing(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        replica = await node.create_topic(**DISKLESS, **{"min.insync.replicas": "3"})
        HandChain().enter(node.replicas, replica, 0)
        await node.change_partition(isr=(1, 2))
        pending = node.send(b"a")
        node.read(1, replica_id=2)
        await asyncio.sleep(0)
        assert not pending.done()
        replica.on_chain_committed(1)
        assert (await pending).error_code is ErrorCode.none


async def test_a_batch_sent_again_after_a_timeout_gets_its_offset(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, chain):
        late = await send_idempotent(node, 0, b"a")
        assert late.error_code is ErrorCode.request_timed_out
        again = send_idempotent(node, 0, b"a")
        behind = send_idempotent(node, 1, b"b")
        assert chain.noted == [(0, 1), (1, 2)]
        replica.on_chain_committed(2)
        assert (await again).base_offset == 0
        assert (await behind).base_offset == 1
        assert send_idempotent(node, 0, b"a").base_offset == 0
        assert replica.log.log_end_offset == 2


async def test_a_deposed_chain_ends_the_lead_until_the_partition_is_entered_again(
    tmp_path: Path,
) -> None:
    async with diskless_leader(tmp_path) as (node, replica, chain):
        asked: list[int] = []
        node.replicas.roles.unentered_lead.subscribe(lambda one: asked.append(one.leader_epoch))
        pending, held = node.send(b"a"), node.read(0, max_wait_ms=120_000)
        node.replicas.end_lead(replica)
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        assert (await held).error_code is ErrorCode.not_leader_or_follower
        assert node.send(b"b").error_code is ErrorCode.not_leader_or_follower
        assert replica.chain is None
        assert asked == [0]
        replica.on_chain_committed(1)  # Late: it changes nothing.
        assert replica.log.high_watermark == 0
        replica.log.truncate_to(0)
        chain.enter(node.replicas, replica, 1)
        await node.change_partition(leader_epoch=1)
        again = node.send(b"b")
        replica.on_chain_committed(1)
        assert (await again).base_offset == 0


async def test_what_the_log_has_when_it_is_entered_is_committed(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, chain):
        pending = node.send(b"a")
        replica.on_chain_committed(1)
        await pending
        node.replicas.end_lead(replica)
        chain.enter(node.replicas, replica, 1)
        await node.change_partition(leader_epoch=1)
        assert node.read(0, leader_epoch=1).high_watermark == 1


async def test_an_epoch_that_others_began_takes_the_partition_out_of_the_chain(
    tmp_path: Path,
) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        asked: list[int] = []
        node.replicas.roles.unentered_lead.subscribe(lambda one: asked.append(one.leader_epoch))
        pending = node.send(b"a")
        await node.change_partition(leader_epoch=1)
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        assert (replica.chain, asked) == (None, [1])


async def test_a_partition_that_moved_away_leaves_the_chain(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        pending = node.send(b"a")
        await node.change_partition(leader=2, leader_epoch=1, replicas=(2,), isr=(2,))
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        assert replica.chain is None


async def test_a_deleted_partition_leaves_the_chain(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        await node.store.commit([delete(node.view.image.topics[TOPIC])])
        await node.view.refresh()
        assert replica.chain is None


async def test_a_lost_lease_stops_neither_acks_nor_reads(tmp_path: Path) -> None:
    """The chain proves who leads: a PUT of a deposed leader fails."""
    async with diskless_leader(tmp_path) as (node, replica, _):
        before = node.send(b"a")
        node.may_serve = False
        after = node.send(b"b")
        held = node.read(0, max_wait_ms=120_000)
        replica.on_chain_committed(2)
        assert [(await before).base_offset, (await after).base_offset] == [0, 1]
        assert (await held).records
        assert node.read(2).high_watermark == 2
        # The end of the partition may be another one for all that this node knows.
        assert (await list_offset(node, LATEST)).error_code is ErrorCode.not_leader_or_follower


async def test_no_record_is_deleted_that_the_chain_has_not(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        for value in (b"a", b"b", b"c"):
            node.send(value, acks=0)
        replica.on_chain_committed(2)
        assert (await delete_up_to(node, 3)).error_code is ErrorCode.offset_out_of_range
        assert (await delete_up_to(node, -1)).low_watermark == 2
        assert (await list_offset(node, EARLIEST)).offset == 2


async def delete_up_to(node: LedNode, offset: int) -> Any:
    wanted = build(delete_request.DeleteRecordsPartition, partition_index=0, offset=offset)
    topic = build(delete_request.DeleteRecordsTopic, name=TOPIC, partitions=(wanted,))
    request = build(delete_request.DeleteRecordsRequest, topics=(topic,))
    response: Any = await node.delete_records.handle(request, context_of(2, api_key=21))
    return response.topics[0].partitions[0]


async def test_a_transaction_ends_when_the_chain_has_its_marker(tmp_path: Path) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        data = batch_of(b"a", producer=(7, 0, 0), is_transactional=True)
        replica.append(bytearray(data))
        replica.on_chain_committed(1)
        assert replica.log.last_stable_offset == 0
        writer = MarkerWriter(
            node.context, replicas=node.replicas, flusher=node.flusher, offsets=NoOffsets()
        )
        marker = Marker(7, 0, True, 0, frozenset([replica.partition]))
        ending = asyncio.create_task(writer.write([marker]))
        await asyncio.sleep(0.01)
        assert replica.log.log_end_offset == 2
        assert not ending.done()
        assert replica.log.last_stable_offset == 0
        assert not node.read(0, isolation_level=READ_COMMITTED).records
        replica.on_chain_committed(2)
        assert set((await ending).values()) == {ErrorCode.none}
        assert node.read(0, isolation_level=READ_COMMITTED).records


async def test_a_marker_that_is_sent_again_is_not_appended_again_while_the_chain_is_away(
    tmp_path: Path,
) -> None:
    async with diskless_leader(tmp_path) as (node, replica, _):
        replica.append(bytearray(batch_of(b"a", producer=(7, 0, 0), is_transactional=True)))
        writer = MarkerWriter(
            node.context, replicas=node.replicas, flusher=node.flusher, offsets=NoOffsets()
        )
        marker = Marker(7, 0, True, 0, frozenset([replica.partition]))
        ending = [asyncio.create_task(writer.write([marker])) for _ in range(20)]
        await eventually_async(lambda: replica.log.log_end_offset == 2)
        ending.append(asyncio.create_task(writer.write([marker])))
        # Another coordinator's marker is another one.
        other = asyncio.create_task(writer.write([replace(marker, coordinator_epoch=1)]))
        await eventually_async(lambda: replica.log.log_end_offset == 3)
        replica.on_chain_committed(3)
        for task in (*ending, other):
            assert set((await task).values()) == {ErrorCode.none}
        assert replica.log.log_end_offset == 3


def test_markers_that_wait_are_bounded_and_forgotten_once_they_are_committed(
    tmp_path: Path,
) -> None:
    log = open_log(tmp_path)
    log.append_as_leader(batch(1), leader_epoch=0)
    replica: Any = SimpleNamespace(
        partition=TopicPartition("t", 0),
        is_dropped=False,
        is_leader=True,
        leader_epoch=3,
        opened_log=log,
    )
    markers = UncommittedMarkers(count_max=2_000)
    names = [MarkerName(number, 0, True, 0) for number in range(2_001)]
    for name in names[:2_000]:
        markers.require_room()
        markers.add(replica, name, 1)
    assert markers.end_of(replica, names[5]) == 1
    with pytest.raises(OutcomeUnknown, match="2000 markers wait"):
        markers.require_room()
    log.advance_high_watermark(1)
    markers.require_room()
    assert len(markers) == 2_000 - SWEPT_MAX
    count = len(markers)
    assert markers.end_of(replica, names[-2]) is None
    assert len(markers) == count - 1
    log.close()


def test_a_marker_that_finds_no_room_looks_at_few_of_those_that_wait(tmp_path: Path) -> None:
    """Committed ones make room, also behind others that wait for another chain."""
    log = open_log(tmp_path)
    log.append_as_leader(batch(1), leader_epoch=0)
    looks = 0

    def opened(number: int) -> Any:
        def look(_: Any) -> Any:
            nonlocal looks
            looks += 1
            return log if number < 1_500 else None  # The others wait for nothing.

        kind = type("Led", (), {"opened_log": property(look)})
        one: Any = kind()
        one.partition, one.is_dropped, one.is_leader, one.leader_epoch = number, False, True, 0
        return one

    markers = UncommittedMarkers(count_max=2_000)
    name = MarkerName(0, 0, True, 0)
    for number in range(2_000):
        markers.require_room()
        markers.add(opened(number), name, 1)
    refused = 0
    while True:
        looks = 0
        try:
            markers.require_room()
        except OutcomeUnknown:
            refused += 1
            assert looks == SWEPT_MAX
        else:
            break
    assert refused == 1_500 // SWEPT_MAX
    log.close()


async def test_what_was_never_committed_is_cut_before_another_leader_is_followed(
    tmp_path: Path,
) -> None:
    """The next leader gives its offsets to other records, and says that they are committed."""
    async with diskless_leader(tmp_path) as (node, replica, chain):
        committed = node.send(b"committed")
        replica.on_chain_committed(1)
        assert (await committed).base_offset == 0
        pending = node.send(b"never")
        assert replica.log.log_end_offset == 2
        await node.change_partition(leader=2, replicas=(2, 1), isr=(2,), leader_epoch=1)
        assert replica.is_follower
        assert replica.log.log_end_offset == replica.log.high_watermark == 1
        assert (await pending).error_code is ErrorCode.not_leader_or_follower
        assert replica.chain is None
        assert chain.noted
