"""Batches of a gateway that wait for a leader: in virtual time, so that every wait is counted."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import pytest
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.records.header import iter_headers
from tidelog_node.diskless.gateway import forwarder
from tidelog_node.diskless.gateway.forwarder import LEFT_SECONDS_MAX
from tidelog_node.diskless.gateway.parked_batches import RETRY_SECONDS, RETRY_SECONDS_MAX

from tests.node.diskless.gateway_world import PLACE, TOPIC, World
from tests.support import virtual_time
from tests.support.batches import batch_of
from tests.support.inline_executor import InlineExecutor

OK, MOVED = ErrorCode.none, ErrorCode.not_leader_or_follower
# Waits between tries double up to the longest one.
TRIES_IN_TEN_SECONDS_MAX = 4 + 10 / RETRY_SECONDS_MAX


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    """Run the scenario on a world without threads."""

    async def run() -> None:
        world = World(folder, objects=MemoryObjectStore(), executor=InlineExecutor())
        await world.start()
        try:
            await scenario(world)
        finally:
            await world.stop()

    virtual_time.run(run())


async def send_each(world: World, count: int, *, timeout_ms: int = 30_000) -> list[Any]:
    """Send batches of one producer, each in an object of its own; return the answers to come."""
    answers = []
    for sequence in range(count):
        data = batch_of(b"%d" % sequence, producer=(7, 0, sequence))
        answers.append(world.gateway.send(data, timeout_ms=timeout_ms))
        await asyncio.sleep(0.05)
    return answers


async def stop_leading(world: World) -> None:
    world.leader.chain.leave(world.leader.replica)
    world.leader.replicas.end_lead(world.leader.replica)


def sequences(world: World) -> list[int]:
    return [header.base_sequence for _, header in iter_headers(world.log_content())]


def test_a_leader_that_cannot_be_reached_is_tried_now_and_then(tmp_path: Path) -> None:
    """Its address may be refused at once: the gateway must not spend its loop on it."""

    async def scenario(world: World) -> None:
        world.is_leader_reachable = False
        answers = await send_each(world, 10)
        before = world.attempt_count
        await asyncio.sleep(10)
        assert 0 < world.attempt_count - before <= TRIES_IN_TEN_SECONDS_MAX
        world.is_leader_reachable = True
        assert [(await one).error_code for one in answers] == [OK] * 10
        assert sequences(world) == list(range(10))

    play(tmp_path, scenario)


def test_a_try_costs_a_leader_one_read_whatever_waits(tmp_path: Path) -> None:
    """The leader has to read an object before it can say that it does not lead."""

    async def scenario(world: World) -> None:
        await stop_leading(world)
        answers = await send_each(world, 20)
        world.forwarded.clear()
        await asyncio.sleep(10)
        assert 0 < len(world.forwarded) <= TRIES_IN_TEN_SECONDS_MAX
        assert all(len(request.slices) == 1 for request in world.forwarded)
        await world.begin_epoch()
        assert [(await one).error_code for one in answers] == [OK] * 20
        assert sequences(world) == list(range(20))

    play(tmp_path, scenario)


def test_every_batch_that_waits_ends_in_its_time(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.is_leader_reachable = False
        traffic = world.gateway.context.counters.gateway
        late = world.gateway.send(batch_of(b"late"), timeout_ms=20_000)
        answers = await send_each(world, 10, timeout_ms=5_000)
        assert traffic.waiting_count == 11
        await asyncio.sleep(5 + RETRY_SECONDS)
        assert all(one.done() and one.result().error_code is not OK for one in answers)
        assert traffic.waiting_count == 1
        await asyncio.sleep(15 + RETRY_SECONDS)
        assert (await late).error_code is not OK
        assert traffic.waiting_count == traffic.pending_bytes == 0
        world.is_leader_reachable = True
        assert [(await one).error_code for one in await send_each(world, 3)] == [OK] * 3

    play(tmp_path, scenario)


def test_a_leader_takes_nothing_before_what_it_has_taken_as_a_gateway(tmp_path: Path) -> None:
    """A node begins to lead while batches wait in it: the next one comes as to a leader."""

    async def scenario(world: World) -> None:
        leader = world.leader
        own = leader.gateway
        leader.produce.gateway = own
        await stop_leading(world)
        first = world.gateway.send(batch_of(b"0", producer=(7, 0, 0)))
        await asyncio.sleep(1)
        gateway = world.gateway.produce.gateway
        assert gateway is not None
        leader.produce.gateway = gateway  # as if both were one node
        await world.begin_epoch()
        second = batch_of(b"1", producer=(7, 0, 1))
        assert (await leader.send(second)).error_code is ErrorCode.not_leader_or_follower
        assert (await first).error_code is OK
        assert (await leader.send(second)).error_code is OK
        assert sequences(world) == [0, 1]
        leader.produce.gateway = own

    play(tmp_path, scenario)


def numbered(sequence: int) -> bytes:
    return bytes(batch_of(b"%d" % sequence, producer=(7, 0, sequence)))


async def require_order(world: World) -> None:
    """Have the producer repeat its first two batches: the log takes the second one last."""
    for sequence in (0, 1):
        assert (await world.leader.send(numbered(sequence))).error_code is OK
    assert sequences(world) == [0, 1]


def test_a_leader_takes_nothing_behind_what_it_has_lost_as_a_gateway(tmp_path: Path) -> None:
    """The log does not know the producer, and would begin with its second batch."""

    async def scenario(world: World) -> None:
        leader = world.leader
        own, leader.produce.gateway = leader.gateway, world.gateway.gateway  # as if one node
        world.is_leader_reachable = False
        first = world.gateway.send(numbered(0), timeout_ms=1_000)
        assert (await first).error_code is not OK
        await asyncio.sleep(RETRY_SECONDS_MAX)  # Then its time is up here, too.
        assert (await leader.send(numbered(1))).error_code is ErrorCode.request_timed_out
        await require_order(world)
        assert (await leader.send(numbered(2))).error_code is OK
        leader.produce.gateway = own

    play(tmp_path, scenario)


def test_a_leader_gives_up_what_the_one_before_does_not_answer(tmp_path: Path) -> None:
    """Its connection ends after 45 s: producers would be refused for so long."""

    async def scenario(world: World) -> None:
        leader = world.leader
        own, leader.produce.gateway = leader.gateway, world.gateway.gateway  # as if one node
        world.is_hanging = True
        first = world.gateway.send(numbered(0))
        await asyncio.sleep(1)
        await world.restart_leader()
        assert (await leader.send(numbered(1))).error_code is MOVED
        await asyncio.sleep(LEFT_SECONDS_MAX)
        assert (await leader.send(numbered(1))).error_code is ErrorCode.request_timed_out
        assert (await first).error_code is MOVED
        await require_order(world)
        world.break_connection()
        leader.produce.gateway = own

    play(tmp_path, scenario)


def test_a_gateway_takes_nothing_behind_what_it_has_lost_as_a_leader(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        leader = world.leader
        own, leader.produce.gateway = leader.gateway, world.gateway.gateway  # as if one node
        world.store.held.clear()
        first = leader.send(numbered(0))
        await asyncio.sleep(1)
        await world.kill_leader("the next process")
        assert (await first).error_code is MOVED
        world.store.held.set()
        assert (await world.gateway.send(numbered(1))).error_code is MOVED
        await require_order(world)
        leader.produce.gateway = own

    play(tmp_path, scenario)


def test_a_gateway_takes_nothing_behind_what_it_has_refused_as_a_leader(tmp_path: Path) -> None:
    """It was about to hand the partition over."""

    async def scenario(world: World) -> None:
        leader = world.leader
        own, leader.produce.gateway = leader.gateway, world.gateway.gateway  # as if one node
        role = leader.replica.role
        assert role is not None
        assert role.leader is not None
        role.leader.is_deposed = True
        assert (await leader.send(numbered(0))).error_code is MOVED
        role.leader.is_deposed = False
        assert (await world.gateway.send(numbered(1))).error_code is MOVED
        await require_order(world)
        leader.produce.gateway = own

    play(tmp_path, scenario)


@pytest.mark.parametrize("change", ["replicated", "compacted"])
def test_what_waits_ends_once_no_leader_takes_it_from_a_gateway(
    tmp_path: Path, change: str
) -> None:
    """Its producers can go on at once, with the partition's leader."""

    async def scenario(world: World) -> None:
        await stop_leading(world)
        answers = await send_each(world, 5)
        answers += [world.gateway.send(batch_of(b"of nobody")) for _ in range(5)]
        await asyncio.sleep(1)
        assert not any(one.done() for one in answers)
        image = world.gateway.view.image
        topic, item = image.topics[TOPIC], image.partition(PLACE)
        assert item is not None
        compacted = {**topic.configs, "cleanup.policy": "compact"}
        changed: records.Topic | records.Partition = (
            dataclasses.replace(item, acked_by=records.AckedBy.REPLICAS, leader_epoch=1)
            if change == "replicated"
            else dataclasses.replace(topic, configs=compacted)
        )
        await world.metadata.commit([records.put(changed)])
        for node in (world.leader, world.gateway):
            await node.view.refresh()
        await asyncio.sleep(2 * RETRY_SECONDS_MAX)
        assert [one.result().error_code for one in answers if one.done()] == [MOVED] * 10
        traffic = world.gateway.context.counters.gateway
        assert traffic.waiting_count == traffic.pending_bytes == 0

    play(tmp_path, scenario)


def test_news_of_other_topics_cause_no_try(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        world.is_leader_reachable = False
        answers = await send_each(world, 5)
        before = world.attempt_count
        image = world.gateway.view.image
        for number in range(200):
            topic = records.Topic(
                name=f"other-{number}",
                topic_id=uuid5(NAMESPACE_OID, f"other-{number}"),
                partition_count=0,
                configs={},
            )
            await world.metadata.commit([records.put(topic)])
            await world.gateway.view.refresh()
        assert world.gateway.view.image is not image
        assert world.attempt_count - before <= 1
        world.is_leader_reachable = True
        assert [(await one).error_code for one in answers] == [OK] * 5

    play(tmp_path, scenario)


def test_a_gateway_sends_no_more_requests_than_its_leader_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that stalls would close the connection, and all of their outcomes be unknown."""
    monkeypatch.setattr(forwarder, "UNDER_WAY_MAX", 8)

    async def scenario(world: World) -> None:
        world.tickets = asyncio.Semaphore(0)
        answers = await send_each(world, 40)
        await asyncio.sleep(5)
        assert len(world.forwarded) == 8
        for _ in range(100):
            world.tickets.release()
        assert [(await one).error_code for one in answers] == [OK] * 40
        assert sequences(world) == list(range(40))
        assert not world.gateway.context.counters.gateway.waiting_count

    play(tmp_path, scenario)
