"""One batch comes to its leader by two gateways: it is in the log once, whoever knows its producer.

A producer whose gateway does not answer repeats its batch through another one, and the first one
still has it. A leader asks neither gateway: the log knows the producer from the first append on.
Before that, nobody knows whether a later batch of a producer begins the log or has one before it.
Which of them are refused for a time is remembered by the leader alone (``UnknownProducers``).
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import NAMESPACE_OID, uuid5

import pytest
from crc32c import crc32c
from tidelog_core.diskless.wal.build import ObjectName, WalSlice
from tidelog_core.diskless.wal.footer import parse_object
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.diskless.wal.slice_bytes import foreign_batches
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata.epoch_chains import ChainName
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.gateway.unknown_producers import UNKNOWN_SECONDS
from tidelog_node.wire.gateway_append import (
    GatewayAppend,
    GatewayResult,
    GatewaySlice,
    header_rest,
)

from tests.node.diskless.gateway_world import TOPIC_ID, World
from tests.support import virtual_time
from tests.support.batches import batch
from tests.support.data_objects import build_data_object
from tests.support.inline_executor import InlineExecutor

FIRST, SECOND = 2, 3  # the gateways' broker ids
PRODUCER_ID = 7
RETRY_SECONDS = 4.0


class Copies:
    """Gateways, each with its own objects, and what they forward to the leader."""

    def __init__(self, world: World, *, overlaps: bool) -> None:
        self.world = world
        self._overlaps = overlaps
        self._ends: dict[int, int] = {}

    async def store(self, broker_id: int, sent: bytearray) -> GatewayAppend:
        """Put the batch into the gateway's next object; return what it tells the leader."""
        chain = ChainName(broker_id, uuid5(NAMESPACE_OID, f"chain {broker_id}"))
        sequence = self._ends.setdefault(broker_id, 0)
        self._ends[broker_id] += 1
        data = bytes(foreign_batches(sent))
        cluster_id = self.world.leader.view.image.cluster_id
        built = build_data_object(
            ObjectName(cluster_id, chain, sequence, sequence, 0, 0),
            [WalSlice(TOPIC_ID, 0, -1, data, is_foreign=True)],
        ).data
        await self.world.objects.put(wal_key(cluster_id, chain, sequence), built)
        (row,) = parse_object(built, key="").slices
        slices = [
            GatewaySlice(
                TOPIC_ID,
                0,
                row.position,
                len(data),
                crc32c(data),
                9,
                -1,
                30_000,
                None,
                header_rest(sent) if self._overlaps else None,
            )
        ]
        return GatewayAppend(chain.chain_id, sequence + 1, sequence, slices)

    async def forward(self, broker_id: int, sent: bytearray) -> GatewayResult:
        request = await self.store(broker_id, sent)
        (result,) = await self.world.leader.appends.append(broker_id, request)
        return result


def numbered(sequence: int, count: int = 1) -> bytearray:
    return batch(count, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)


def sequences(world: World) -> list[int]:
    """Return the first sequences of the log's batches."""
    return [header.base_sequence for _, header in iter_headers(world.log_content())]


def is_first_and_repeated(one: GatewayResult, other: GatewayResult) -> bool:
    """Whether one of them was appended, and the other one has its offset."""
    return (
        (one.error_code, other.error_code) == (0, 0)
        and one.base_offset == other.base_offset
        and [one.is_referenced, other.is_referenced].count(True) == 1
    )


async def begin(folder: Path, *, overlaps: bool) -> World:
    world = World(folder, objects=MemoryObjectStore(), executor=InlineExecutor(), overlaps=overlaps)
    await world.start()
    return world


async def both_at_once(folder: Path, *, overlaps: bool) -> None:
    world = await begin(folder, overlaps=overlaps)
    try:
        copies = Copies(world, overlaps=overlaps)
        for sequence in range(3):
            sent = numbered(sequence)
            found = await asyncio.gather(copies.forward(FIRST, sent), copies.forward(SECOND, sent))
            assert is_first_and_repeated(*found), found
            assert sequences(world) == list(range(sequence + 1))
    finally:
        await world.stop()


async def forgotten(folder: Path, *, overlaps: bool) -> None:
    """The log has forgotten the producer, which goes on with sequence 5 by two gateways."""
    world = await begin(folder, overlaps=overlaps)
    try:
        copies, loop = Copies(world, overlaps=overlaps), asyncio.get_running_loop()
        began_s, sent = loop.time(), numbered(5)
        while True:
            one, other = await asyncio.gather(
                copies.forward(FIRST, sent), copies.forward(SECOND, sent)
            )
            if loop.time() - began_s >= UNKNOWN_SECONDS:
                break
            assert one.error_code == other.error_code == ErrorCode.request_timed_out
            assert sequences(world) == []
            await asyncio.sleep(RETRY_SECONDS)
        assert is_first_and_repeated(one, other), (one, other)
        assert sequences(world) == [5]
        behind = await copies.forward(SECOND, numbered(6))
        assert (behind.error_code, behind.is_referenced) == (0, True)
        assert sequences(world) == [5, 6]
    finally:
        await world.stop()


async def late(folder: Path, *, overlaps: bool, is_killed: bool) -> None:
    """The first gateway's copy comes when the log knows the batch no more, or at the next leader.

    Of a producer a log knows the last five batches.
    """
    world = await begin(folder, overlaps=overlaps)
    try:
        copies = Copies(world, overlaps=overlaps)
        held = await copies.store(FIRST, numbered(0))
        for sequence in range(7):
            result = await copies.forward(SECOND, numbered(sequence))
            assert (result.error_code, result.is_referenced) == (0, True)
        if is_killed:
            await world.kill_leader("the next one")
        (result,) = await world.leader.appends.append(FIRST, held)
        assert result.error_code != 0
        assert not result.is_referenced
        assert sequences(world) == list(range(7))
    finally:
        await world.stop()


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_batch_that_two_gateways_forward_at_once_is_appended_once(
    tmp_path: Path, overlaps: bool
) -> None:
    virtual_time.run(both_at_once(tmp_path, overlaps=overlaps))


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_batch_of_an_unknown_producer_is_appended_once(tmp_path: Path, overlaps: bool) -> None:
    virtual_time.run(forgotten(tmp_path, overlaps=overlaps))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_copy_that_comes_late_is_refused(tmp_path: Path, overlaps: bool, is_killed: bool) -> None:
    virtual_time.run(late(tmp_path, overlaps=overlaps, is_killed=is_killed))
