"""A leader stores references to a gateway's batches while it reads them.

Nothing is acknowledged or served before its records are in the log, whatever becomes of the read.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from tidelog_core.diskless.collection.collection import UnneededEnds
from tidelog_core.diskless.wal.epoch_chains import PartitionName
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import ErrorCode
from tidelog_core.model import NO_LEADER_EPOCH
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.header import HEADER_SIZE, iter_headers, patch
from tidelog_node.diskless.chain.chain_partition import ChainPartition
from tidelog_node.diskless.gateway import (
    gateway_objects,
    gateway_reads,
    trusted_gateways,
    unread_batches,
)
from tidelog_node.diskless.gateway.unread_batches import UnreadBatch
from tidelog_node.diskless.recovery.slice_reads import SlicePlace
from tidelog_node.handlers.produce.gateway_acks import GatewayAck
from tidelog_node.upkeep.scrubber import _next_sealed
from tidelog_node.wire.gateway_append import GatewayAppend, GatewayResult, GatewaySlice, header_rest

from tests.node.diskless.gateway_world import CHAIN_OF, GATEWAY, TOPIC_ID, World, gateway_world
from tests.support import virtual_time
from tests.support.batches import batch
from tests.support.inline_executor import InlineExecutor
from tests.support.waiting import eventually_async

OK, MOVED = ErrorCode.none, ErrorCode.not_leader_or_follower


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have leaders trust gateways from their first object on."""
    monkeypatch.setattr(trusted_gateways, "OBJECTS_MIN", 0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, overlaps=True) as world:
        yield world


def numbered(sequence: int, count: int = 1, *, producer_id: int = 7) -> bytearray:
    """Return a batch of an idempotent producer."""
    return batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def given(answer: Any) -> tuple[ErrorCode, int]:
    return answer.error_code, answer.base_offset


def records_of(content: bytes) -> list[bytes]:
    """Return the bytes of batches from their CRC on: offsets and epochs are the leader's."""
    return [
        content[position + 17 : position + header.size_bytes]
        for position, header in iter_headers(content)
    ]


def end_of(world: World) -> int:
    return world.leader.replica.log.log_end_offset


async def appended(world: World, end_offset: int) -> None:
    """Wait until the log has so many records, and the leader's chain all of them."""
    chain = world.leader.chain
    await eventually_async(lambda: end_of(world) == end_offset)
    await eventually_async(
        lambda: chain.committed_end == chain.next_sequence and not chain.buffered_bytes
    )


async def test_the_reference_is_stored_while_the_object_is_read(world: World) -> None:
    held = world.leader.hold_reads()
    sent = numbered(0, 3)
    answer = world.gateway.send(sent)
    await appended(world, 3)
    log = world.leader.replica.log
    assert (world.leader.chain.committed_end, log.high_watermark) == (1, 0)
    assert not answer.done()
    held.set()
    assert given(await answer) == (OK, 0)
    assert log.high_watermark == 3
    assert records_of(world.log_content()) == records_of(bytes(sent))


async def test_later_batches_are_appended_and_wait_for_the_read(world: World) -> None:
    """Those of clients of the leader as well: what is below them is not known to be whole."""
    held = world.leader.hold_reads()
    sent = [numbered(0, 2), numbered(2), numbered(0, producer_id=8), numbered(3)]
    answers = [world.gateway.send(sent[0])]
    await appended(world, 2)
    answers += [world.gateway.send(sent[1])]
    await appended(world, 3)
    answers += [world.leader.send(sent[2])]
    await appended(world, 4)
    answers += [world.gateway.send(sent[3])]
    await appended(world, 5)
    assert not any(answer.done() for answer in answers)
    assert world.leader.replica.log.high_watermark == 0
    held.set()
    assert [given(await answer) for answer in answers] == [(OK, 0), (OK, 2), (OK, 3), (OK, 4)]
    assert records_of(world.log_content()) == [records_of(bytes(one))[0] for one in sent]


async def test_a_retry_of_an_unread_batch_waits_as_well(world: World) -> None:
    held = world.leader.hold_reads()
    answer = world.gateway.send(numbered(0, 2))
    await appended(world, 2)
    again = world.leader.send(numbered(0, 2))
    assert not again.done()
    held.set()
    assert given(await answer) == given(await again) == (OK, 0)


async def test_a_segment_may_be_sealed_before_the_read(world: World) -> None:
    held = world.leader.hold_reads()
    sent = [numbered(0, 2), numbered(2, 2)]
    answers = [world.gateway.send(sent[0])]
    await appended(world, 2)
    log = world.leader.replica.log
    log.roll()
    answers.append(world.gateway.send(sent[1]))
    await appended(world, 4)
    assert log.active_segment_base_offset == 2
    assert _next_sealed(world.leader.replica, -1) is None, "it is not whole"
    held.set()
    assert [given(await answer) for answer in answers] == [(OK, 0), (OK, 2)]
    assert records_of(world.log_content()) == [records_of(bytes(one))[0] for one in sent]
    sealed = _next_sealed(world.leader.replica, -1)
    assert sealed is not None
    assert sealed.end_offset == 2


async def test_the_records_come_after_a_flush(world: World) -> None:
    held = world.leader.hold_reads()
    sent = numbered(0, 2)
    answer = world.gateway.send(sent)
    await appended(world, 2)
    log = world.leader.replica.log
    log.flush()
    assert log.recovery_point == 2
    held.set()
    assert given(await answer) == (OK, 0)
    assert records_of(world.log_content()) == records_of(bytes(sent))


async def test_a_log_keeps_no_zeros_when_the_lead_ends(world: World) -> None:
    """Who follows afterwards would serve them once the next leader has committed the batch."""
    first = await world.gateway.send(numbered(0))
    assert given(first) == (OK, 0)
    held = world.leader.hold_reads()
    answers = [world.gateway.send(numbered(1, 2))]
    await appended(world, 3)
    answers.append(world.leader.send(numbered(0, producer_id=8)))
    await appended(world, 4)
    replica = world.leader.replica
    world.leader.replicas.end_lead(replica)
    assert replica.log.log_end_offset == replica.log.high_watermark == 1
    assert (await answers[1]).error_code is MOVED
    held.set()
    assert (await answers[0]).error_code is MOVED
    assert end_of(world) == 1


async def test_nor_if_another_read_finds_that_its_own_batches_are_there(world: World) -> None:
    """A read that broke off is tried again with all of its batches."""
    sent = numbered(0)
    assert given(await world.gateway.send(sent)) == (OK, 0)
    held = world.leader.hold_reads()
    answer = world.gateway.send(numbered(1, 2))
    await appended(world, 3)
    replica, place = world.leader.replica, SlicePlace(112, len(sent), crc32c(sent))
    ack = GatewayAck(GatewayResult(0, 0, is_referenced=True))
    chain = replica.chain
    assert isinstance(chain, ChainPartition)
    done = UnreadBatch(chain, 0, bytes(sent[:HEADER_SIZE]), place, ack)
    assert await world.leader.appends._unread._try(CHAIN_OF[GATEWAY], "read before", [done]) == []
    world.leader.replicas.end_lead(replica)
    assert end_of(world) == 1
    held.set()
    assert (await answer).error_code is MOVED


async def test_a_log_keeps_no_zeros_though_the_chain_ends_before_the_lead(world: World) -> None:
    """As when the node stops: a read may be tried again in between."""
    world.leader.hold_reads()
    answer = world.gateway.send(numbered(0, 2))
    await appended(world, 2)
    await world.leader.chain.close(1.0)
    for task in tuple(world._tasks):
        task.cancel()  # So the batch is left to a task of its own.
    assert (await answer).error_code is MOVED
    unread = world.leader.appends._unread
    await eventually_async(lambda: not unread._late)
    world.leader.replicas.end_lead(world.leader.replica)
    assert end_of(world) == 0


async def test_a_read_that_ends_after_the_lead_writes_nothing(world: World) -> None:
    """The next leader has read the batch by the reference."""
    held = world.leader.hold_reads()
    sent = numbered(0, 2)
    answer = world.gateway.send(sent)
    await appended(world, 2)
    await world.kill_leader("the next one")
    assert given(await world.leader.send(numbered(0, 2, producer_id=8))) == (OK, 2)
    content = world.log_content()
    assert records_of(content)[0] == records_of(bytes(sent))[0]
    held.set()
    assert (await answer).error_code is MOVED
    assert given(await world.gateway.send(sent)) == (OK, 0)
    assert world.log_content() == content


async def test_a_batch_is_read_though_its_gateway_is_gone(world: World) -> None:
    held = world.leader.hold_reads()
    sent = numbered(0, 2)
    answer = world.gateway.send(sent)
    await appended(world, 2)
    for task in tuple(world._tasks):
        task.cancel()  # As with its connection.
    assert (await answer).error_code is MOVED
    held.set()
    log = world.leader.replica.log
    await eventually_async(lambda: log.high_watermark == 2)
    assert records_of(world.log_content()) == records_of(bytes(sent))
    assert given(await world.gateway.send(sent)) == (OK, 0)


async def test_an_unread_batch_keeps_its_object_though_its_answer_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tier has all below the high watermark, which stays below the reference."""
    monkeypatch.setattr(gateway_objects, "REFERENCE_SECONDS_MAX", 0.0)
    world = World(tmp_path, overlaps=True)
    world.config = dataclasses.replace(world.config, diskless_wal_max_age_ms=1)
    await world.start()
    try:
        assert given(await world.gateway.send(numbered(0))) == (OK, 0)
        held = world.leader.hold_reads()
        answer = world.gateway.send(numbered(1, 2))
        await appended(world, 3)
        for task in tuple(world._tasks):
            task.cancel()  # As with its connection.
        assert (await answer).error_code is MOVED
        objects, committed = world.gateway.gateway._objects, world.gateway.chain.committed
        await eventually_async(lambda: not objects._unknown)
        later = world.gateway.send(numbered(0, producer_id=8))  # The last object stays anyway.
        await appended(world, 4)
        assert world.leader.replica.log.high_watermark == 1
        name = PartitionName(TOPIC_ID, 0)
        assert committed.collectable(UnneededEnds({name: 1})) == [0]
        held.set()
        assert given(await later) == (OK, 3)
        assert committed.collectable(UnneededEnds({name: 3})) == [0, 1]
    finally:
        await world.stop()


async def test_a_log_that_has_lost_the_batch_is_led_no_longer(world: World) -> None:
    """As if its disk had failed meanwhile: logs and chains are compared then."""
    held = world.leader.hold_reads()
    answer = world.gateway.send(numbered(0, 2))
    await appended(world, 2)
    replica = world.leader.replica
    replica.log.truncate_to(0)
    held.set()
    await eventually_async(lambda: replica.role is not None and replica.role.leader is None)
    assert replica.log.high_watermark == 0
    assert (await answer).error_code is MOVED


async def damage(world: World) -> tuple[str, bytes]:
    """Damage the records of the gateway's first object; return its key, and what it had."""
    key = wal_key(world.gateway.view.image.cluster_id, CHAIN_OF[GATEWAY], 0)
    whole = await world.store.get(key)
    data = bytearray(whole)
    data[112 + 70] ^= 1
    await world.store.replace(key, bytes(data))
    return key, whole


async def with_damage(folder: Path) -> None:
    world = World(folder, objects=MemoryObjectStore(), executor=InlineExecutor(), overlaps=True)
    await world.start()
    try:
        world.is_leader_reachable = False
        sent = numbered(0, 2)
        answer = world.gateway.send(sent)
        await eventually_async(lambda: world.gateway.chain.committed_end > 0)
        key, whole = await damage(world)
        world.is_leader_reachable = True
        assert (await answer).error_code is ErrorCode.request_timed_out
        log = world.leader.replica.log
        assert (log.log_end_offset, log.high_watermark) == (2, 0)
        await asyncio.sleep(gateway_reads.READ_SECONDS_MAX)
        refused = await world.gateway.send(numbered(0, producer_id=8))
        assert refused.error_code is ErrorCode.request_timed_out
        assert log.log_end_offset == 2, "nothing more is appended that would wait"
        await world.store.replace(key, whole)
        await eventually_async(lambda: log.high_watermark == 2)
        assert given(await world.gateway.send(sent)) == (OK, 0)
        assert given(await world.gateway.send(numbered(0, producer_id=8))) == (OK, 2)
        assert records_of(world.log_content())[:1] == records_of(bytes(sent))
    finally:
        await world.stop()


def test_a_damaged_object_is_not_acknowledged_until_it_is_whole_again(tmp_path: Path) -> None:
    virtual_time.run(with_damage(tmp_path))


async def test_a_whole_batch_does_not_wait_for_a_damaged_one_beside_it(tmp_path: Path) -> None:
    """They are of different partitions, in one object."""
    world = World(tmp_path, overlaps=True)
    world.partition_count = 2
    await world.start()
    try:
        world.is_leader_reachable = False
        answers = [
            world.gateway.send(numbered(0), partition=0),
            world.gateway.send(numbered(0), partition=1),
        ]
        chain = world.gateway.chain
        await eventually_async(lambda: not chain.buffered_bytes and chain.committed_end > 0)
        await damage(world)
        world.is_leader_reachable = True
        assert given(await answers[1]) == (OK, 0)
        assert (await answers[0]).error_code is ErrorCode.request_timed_out
        assert world.leader.replica.log.high_watermark == 0
    finally:
        await world.stop()


async def test_records_other_than_the_header_has_said_are_not_taken(world: World) -> None:
    """The gateway has announced another batch than its object has."""
    other, sent = numbered(0, 2, producer_id=9), numbered(0, 2)
    world.is_leader_reachable = False
    lost = world.gateway.send(sent, timeout_ms=0)
    await eventually_async(lambda: world.gateway.chain.committed_end > 0)
    await lost
    lie = _slice_of(sent)._replace(header_rest=header_rest(other))
    request = GatewayAppend(CHAIN_OF[GATEWAY].chain_id, 1, 0, [lie])
    task = asyncio.create_task(world.leader.appends.append(GATEWAY, request))
    await appended(world, 2)
    unread = world.leader.appends._unread
    await eventually_async(lambda: bool(unread._late))  # The first read has ended.
    assert world.leader.replica.log.high_watermark == 0
    world.leader.replicas.end_lead(world.leader.replica)
    assert end_of(world) == 0
    (result,) = await task
    assert result.error_code == ErrorCode.request_timed_out


def _slice_of(sent: bytearray) -> GatewaySlice:
    """Return how a gateway announces the batch, as the first one of an object."""
    stored = bytearray(sent)
    patch(stored, 0, base_offset=0, leader_epoch=NO_LEADER_EPOCH)
    return GatewaySlice(
        TOPIC_ID, 0, 112, len(sent), crc32c(stored), 9, -1, 1_000, None, header_rest(sent)
    )


async def test_a_transaction_that_is_verified_first_is_read_then(world: World) -> None:
    sent = batch(2, producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True)
    answer = await world.gateway.send(sent, transactional_id=b"tx")
    assert given(answer) == (OK, 0)
    assert world.leader.verifier.asked == [("tx", 7)]
    assert records_of(world.log_content()) == records_of(bytes(sent))


async def test_unread_batches_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unread_batches, "LATE_MAX", 0)
    refused = await world.gateway.send(numbered(0))
    assert refused.error_code is ErrorCode.request_timed_out
    assert end_of(world) == 0


async def test_what_a_leader_would_refuse_is_refused_by_its_header(world: World) -> None:
    assert given(await world.gateway.send(numbered(0))) == (OK, 0)
    held = world.leader.hold_reads()
    gap = await world.gateway.send(numbered(5))
    assert gap.error_code is MOVED
    held.set()
    assert end_of(world) == 1


async def test_a_leader_takes_requests_with_and_without_headers(world: World) -> None:
    """Its gateways may run with another setting."""
    world.gateway.gateway._overlaps = False
    assert given(await world.gateway.send(numbered(0))) == (OK, 0)
    world.gateway.gateway._overlaps = True
    assert given(await world.gateway.send(numbered(1))) == (OK, 1)
    assert [request.has_headers for request in world.forwarded] == [False, True]


def test_reads_are_bounded_before_gateways_give_up() -> None:
    """A gateway waits for 30 s: the refusals have to come before that."""
    assert gateway_reads.READ_SECONDS_MAX < 30.0
