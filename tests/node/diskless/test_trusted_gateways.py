"""A leader refers to unread batches only of gateways whose last objects were whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.diskless.wal.keys import chain_prefix, wal_key
from tidelog_core.errors import ErrorCode, ObjectNotFound
from tidelog_node.diskless.gateway.trusted_gateways import OBJECTS_MIN

from tests.node.diskless.gateway_world import CHAIN_OF, GATEWAY, World, gateway_world
from tests.support.batches import batch
from tests.support.waiting import eventually_async

OK = ErrorCode.none


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, overlaps=True) as world:
        yield world


def numbered(sequence: int, producer_id: int = 7) -> bytearray:
    """Return a batch of an idempotent producer."""
    return batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def end_of(world: World) -> int:
    return world.leader.replica.log.log_end_offset


async def become_trusted(world: World) -> None:
    """Have the leader read as many whole objects of the gateway as it takes."""
    for sequence in range(OBJECTS_MIN):
        assert (await world.gateway.send(numbered(sequence))).error_code is OK


async def in_the_bucket(world: World, end: int) -> None:
    """Wait until the gateway's chain has so many objects."""
    await eventually_async(lambda: world.gateway.chain.committed_end >= end)


async def is_read_first(world: World, data: bytearray) -> bool:
    """Send the batch; return whether the log gets it only once it has been read."""
    held, end_offset = world.leader.hold_reads(), end_of(world)
    forwarded_count = len(world.forwarded)
    answer = world.gateway.send(data)
    await eventually_async(lambda: len(world.forwarded) > forwarded_count)
    for _ in range(20):  # turns of the loop: nothing else is under way
        await asyncio.sleep(0)
    is_first = end_of(world) == end_offset
    held.set()
    assert (await answer).error_code is OK
    return is_first


async def test_objects_of_a_new_gateway_are_read_first(world: World) -> None:
    first = [await is_read_first(world, numbered(n)) for n in range(OBJECTS_MIN + 2)]
    assert first == [True] * OBJECTS_MIN + [False] * 2


async def test_so_are_those_of_its_next_chain(world: World) -> None:
    await become_trusted(world)
    world.gateway.chain.abandon("sealed")
    first = [await is_read_first(world, numbered(n, 8)) for n in range(OBJECTS_MIN + 1)]
    assert first == [True] * OBJECTS_MIN + [False]


async def test_a_gateway_whose_objects_nobody_can_read_stops_no_partition(world: World) -> None:
    """Such as one whose objects a rule of the bucket deletes, or this node may not read."""
    read: Any = world.leader.worker.get_range
    prefix = chain_prefix(world.leader.view.image.cluster_id, CHAIN_OF[GATEWAY])

    async def get_range(key: str, start: int, end: int) -> bytes:
        if key.startswith(prefix):
            raise ObjectNotFound(key)
        found: bytes = await read(key, start, end)
        return found

    world.leader.worker.get_range = get_range  # type: ignore[method-assign]
    assert (await world.gateway.send(numbered(0))).error_code is not OK
    assert (await world.leader.send(numbered(0, 8))).error_code is OK
    assert world.leader.replica.log.high_watermark == end_of(world) == 1
    world.leader.worker.get_range = read  # type: ignore[method-assign]
    assert (await world.gateway.send(numbered(0))).error_code is OK


async def test_after_a_damaged_object_a_gateway_is_read_first_again(world: World) -> None:
    await become_trusted(world)
    world.is_leader_reachable = False
    answer = world.gateway.send(numbered(OBJECTS_MIN))
    await in_the_bucket(world, OBJECTS_MIN + 1)
    key = wal_key(world.gateway.view.image.cluster_id, CHAIN_OF[GATEWAY], OBJECTS_MIN)
    whole = await world.store.get(key)
    damaged = bytearray(whole)
    damaged[112 + 70] ^= 1  # in the records of the first slice
    await world.store.replace(key, bytes(damaged))
    world.is_leader_reachable = True
    assert (await answer).error_code is ErrorCode.request_timed_out
    # The reference is stored: the partition waits for the object, and nothing is lost.
    log = world.leader.replica.log
    assert (log.log_end_offset, log.high_watermark) == (OBJECTS_MIN + 1, OBJECTS_MIN)
    await world.store.replace(key, whole)
    await eventually_async(lambda: log.high_watermark == OBJECTS_MIN + 1)
    assert await is_read_first(world, numbered(0, 8))


async def test_the_whole_batches_of_a_damaged_object_are_no_reason_to_trust(world: World) -> None:
    await become_trusted(world)
    held, count = world.leader.hold_reads(), OBJECTS_MIN + 4
    forwarded_count = len(world.forwarded)
    answers = [world.gateway.send(numbered(0, 100 + n)) for n in range(count)]
    await eventually_async(lambda: len(world.forwarded) > forwarded_count)
    (request,) = world.forwarded[forwarded_count:]
    assert len(request.slices) == count
    key = wal_key(world.gateway.view.image.cluster_id, CHAIN_OF[GATEWAY], request.sequence)
    whole = await world.store.get(key)
    damaged = bytearray(whole)
    damaged[112 + 70] ^= 1  # in the records of the first slice
    await world.store.replace(key, bytes(damaged))
    held.set()
    await eventually_async(lambda: world.leader.context.counters.gateway.late_count == 1)
    await world.store.replace(key, whole)
    log = world.leader.replica.log
    await eventually_async(lambda: log.high_watermark == OBJECTS_MIN + count)
    await asyncio.gather(*answers)
    assert await is_read_first(world, numbered(0, 8))
