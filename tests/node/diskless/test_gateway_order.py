"""A producer's batches reach the log in order or not at all, whichever of them gets lost on the way.

A log that does not know a producer takes any sequence as its first one. If the first batch is lost and
the second one appended, librdkafka takes both for delivered: it knows that a log takes no batch
without those before.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tidelog_core.diskless.wal.keys import wal_key
from tidelog_core.errors import ErrorCode
from tidelog_core.metadata import records
from tidelog_core.model import Principal
from tidelog_core.objects.memory import MemoryObjectStore
from tidelog_core.security.authorization import Authorizer
from tidelog_node.authorization.access import Access
from tidelog_node.diskless.gateway import unknown_producers
from tidelog_node.diskless.gateway.missed_batches import MISSED_SECONDS
from tidelog_node.handlers.produce.handler import ProduceHandler

from tests.node.diskless.gateway_world import (
    CHAIN_OF,
    GATEWAY,
    PLACE,
    World,
    gateway_world,
    refused,
)
from tests.support import virtual_time
from tests.support.batches import batch
from tests.support.inline_executor import InlineExecutor
from tests.support.request_contexts import a_session
from tests.support.waiting import eventually_async

OK, MOVED = ErrorCode.none, ErrorCode.not_leader_or_follower


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as world:
        yield world


def numbered(sequence: int, *, epoch: int = 0) -> bytearray:
    """Return a batch of an idempotent producer."""
    return batch(1, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


async def committed(world: World, end: int) -> None:
    """Wait until the gateway's chain has so many objects."""
    await eventually_async(lambda: world.gateway.chain.committed_end >= end)


async def require_order(world: World, *, offset: int = 0) -> None:
    """Have the producer repeat its first two batches: they are appended in order."""
    for sequence in (0, 1):
        answer = await world.gateway.send(numbered(sequence))
        assert (answer.error_code, answer.base_offset) == (OK, offset + sequence)
    assert world.leader.replica.log.log_end_offset == offset + 2


async def codes(*answers: Any) -> list[ErrorCode]:
    return [(await answer).error_code for answer in answers]


async def test_a_leader_that_cannot_read_the_first_batch_takes_no_later_one(world: World) -> None:
    world.is_leader_reachable = False
    first = world.gateway.send(numbered(0))
    await committed(world, 1)
    key = wal_key(world.gateway.view.image.cluster_id, CHAIN_OF[GATEWAY], 0)
    data = bytearray(await world.store.get(key))
    data[150] ^= 1
    await world.store.replace(key, bytes(data))
    second = world.gateway.send(numbered(1))
    await committed(world, 2)
    world.is_leader_reachable = True
    assert (await first).error_code is not OK
    assert (await second).error_code is MOVED
    assert world.leader.replica.log.log_end_offset == 0
    await require_order(world)


async def test_a_batch_in_the_gateways_chain_fails_with_the_lost_one_before(world: World) -> None:
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.store.held.clear()
    second = world.gateway.send(numbered(1))
    other = world.gateway.send(batch(1, producer_id=8, producer_epoch=0, base_sequence=0))
    world.break_connection()
    assert (await first).error_code is MOVED
    world.store.held.set()
    assert await codes(second, other) == [MOVED, OK]
    assert world.leader.replica.log.log_end_offset == 1
    await require_order(world, offset=1)


async def test_a_batch_that_comes_after_a_lost_one_waits_for_its_repetition(world: World) -> None:
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.break_connection()
    assert await codes(first) == [MOVED]
    assert await codes(world.gateway.send(numbered(1))) == [MOVED]
    assert world.gateway.chain.next_sequence == 1
    await require_order(world)


async def test_a_producer_in_its_next_epoch_needs_no_repetition(world: World) -> None:
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.break_connection()
    assert await codes(first) == [MOVED]
    answers = [world.gateway.send(numbered(n, epoch=1)) for n in range(3)]
    assert await codes(*answers) == [OK, OK, OK]
    assert (await world.gateway.send(numbered(1))).error_code is ErrorCode.invalid_producer_epoch


async def test_no_batch_goes_to_the_next_leader_before_the_last_one_has_answered(
    world: World,
) -> None:
    """If it does not, nobody knows whether it has appended the batch: the producer repeats it."""
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    await world.restart_leader()
    world.is_hanging = False
    second = world.gateway.send(numbered(1))
    assert await codes(first, second) == [MOVED, MOVED]
    assert len(world.forwarded) == 1
    await require_order(world)


async def test_a_batch_behind_one_that_waits_for_its_leader_waits_as_well(world: World) -> None:
    """The leader has refused the first one, and leads again when it gets the second one."""
    replica = world.leader.replica
    world.leader.chain.leave(replica)
    world.leader.replicas.end_lead(replica)
    world.tickets = asyncio.Semaphore(0)
    answers = []
    for sequence in (0, 1):
        answers.append(world.gateway.send(numbered(sequence)))
        await eventually_async(lambda: len(world.forwarded) == len(answers))
    world.tickets.release()
    traffic = world.gateway.context.counters.gateway
    await eventually_async(lambda: traffic.waiting_count == 1)
    await world.begin_epoch()
    for _ in range(20):  # The second one, then both in order, as often as the gateway tries.
        world.tickets.release()
    assert await codes(*answers) == [OK, OK]
    assert [(await answer).base_offset for answer in answers] == [0, 1]


async def test_a_batch_in_the_gateways_next_chain_waits_for_one_in_its_former_chain(
    world: World,
) -> None:
    """The leader reads the first one slowly, and is sent the second one meanwhile."""
    world.leader.hang_next_read()
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: world.leader.hung_count == 1)
    world.gateway.chain.abandon("sealed")
    second = world.gateway.send(numbered(1))
    assert await codes(first, second) == [OK, OK]
    assert [one.chain_id for one in world.forwarded[:1]] == [CHAIN_OF[GATEWAY].chain_id]
    assert len({one.chain_id for one in world.forwarded}) == 2
    assert [(await one).base_offset for one in (first, second)] == [0, 1]


@pytest.mark.parametrize("where", ["gateway", "leader"])
async def test_no_batch_is_taken_behind_one_that_was_not_admitted(world: World, where: str) -> None:
    """Its producer sends the next one while the first one waits to be sent again."""
    node = getattr(world, where)
    answer = await refused(node, numbered(0))
    assert answer.error_code is ErrorCode.request_timed_out
    (code,) = await codes(node.send(numbered(1)))
    assert code in (MOVED, ErrorCode.request_timed_out)
    assert (
        await codes(node.send(batch(1)), node.send(numbered(0)), node.send(numbered(1))) == [OK] * 3
    )
    (code,) = await codes(node.send(numbered(5)))
    assert code is (MOVED if where == "gateway" else ErrorCode.out_of_order_sequence_number)


async def test_a_gap_is_repeated_since_the_batch_before_may_come_by_another_way(
    world: World,
) -> None:
    """librdkafka gives up for good if it has the other answer before that of the gap."""
    assert await codes(world.gateway.send(numbered(0))) == [OK]
    assert await codes(world.gateway.send(numbered(2))) == [MOVED]
    assert await codes(world.leader.send(numbered(1))) == [OK]
    assert await codes(world.gateway.send(numbered(2)), world.gateway.send(numbered(3))) == [OK, OK]


async def test_a_producer_goes_on_that_has_repeated_a_batch_before_it_was_lost(
    world: World,
) -> None:
    """Its request has timed out before anyone knew."""
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.store.held.clear()
    repeated = [world.gateway.send(numbered(sequence)) for sequence in (0, 1)]
    world.break_connection()
    assert await codes(first) == [MOVED]
    world.store.held.set()
    assert await codes(*repeated, world.gateway.send(numbered(2))) == [OK, OK, OK]


async def test_a_producer_goes_on_whose_later_batch_was_acknowledged(world: World) -> None:
    """It takes the lost one for delivered, and does not repeat it."""
    world.tickets = asyncio.Semaphore(0)
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    second = world.gateway.send(numbered(1))
    await eventually_async(lambda: len(world.forwarded) == 2)
    world.is_answer_lost = True
    world.tickets.release()
    assert await codes(first) == [MOVED]
    world.is_answer_lost = False
    world.tickets.release()
    assert await codes(second) == [OK]
    world.tickets.release()
    assert await codes(world.gateway.send(numbered(2))) == [OK]


async def test_a_producer_goes_on_that_has_sent_a_lost_batch_to_its_leader(world: World) -> None:
    """It comes back to its gateway with the next one."""
    world.is_hanging = True
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    world.break_connection()
    assert await codes(first) == [MOVED]
    assert await codes(world.leader.send(numbered(0))) == [OK]
    log = world.gateway.replica.log
    log.append_as_follower(bytearray(world.log_content()))
    assert await codes(world.gateway.send(numbered(1))) == [MOVED], "it is not committed here"
    log.advance_high_watermark(1)
    answer = await world.gateway.send(numbered(1))
    assert (answer.error_code, answer.base_offset) == (OK, 1)


async def test_a_producer_goes_on_whose_refused_batch_another_leader_took(world: World) -> None:
    leader = world.leader
    answer = await refused(leader, numbered(0))
    assert answer.error_code is ErrorCode.request_timed_out
    assert await codes(leader.send(numbered(1))) == [ErrorCode.request_timed_out]
    leader.replica.append(memoryview(numbered(0)))
    assert await codes(leader.send(numbered(1))) == [OK]


async def test_a_client_without_the_right_has_no_batches_of_others_refused(world: World) -> None:
    """It says that it is their producer, in an epoch that comes never."""
    leader = world.leader
    access = Access(Authorizer(frozenset({"User:alice"})), leader.view)
    leader.produce = ProduceHandler(
        leader.context,
        replicas=leader.replicas,
        flusher=leader.flusher,
        inspector=leader.inspector,
        admission=leader.admission,
        access=access,
    )
    mallory, alice = a_session(), a_session()
    mallory.become(Principal("User", "mallory"))
    alice.become(Principal("User", "alice"))
    answer = await refused(leader, numbered(0, epoch=32_000), mallory)
    assert answer.error_code is ErrorCode.topic_authorization_failed
    assert await codes(leader.send(numbered(0), session=alice)) == [OK]
    answer = await refused(leader, numbered(5), alice)
    assert answer.error_code is ErrorCode.request_timed_out


@pytest.mark.parametrize("where", ["gateway", "leader"])
async def test_a_batch_of_an_impossible_length_is_refused_as_any_other(
    world: World, where: str
) -> None:
    node = getattr(world, where)
    wrong = numbered(0)
    wrong[8:12] = b"\0\0\0\1"
    assert (await refused(node, wrong)).error_code is ErrorCode.request_timed_out
    assert await codes(node.send(wrong)) == [ErrorCode.corrupt_message]
    assert await codes(node.send(numbered(0))) == [OK]


@pytest.mark.parametrize("where", ["gateway", "leader"])
async def test_a_damaged_batch_says_nothing_about_the_producer_in_its_header(
    world: World, where: str
) -> None:
    node = getattr(world, where)
    wrong = numbered(0, epoch=32_000)
    wrong[-1] ^= 1
    assert await codes(node.send(wrong)) == [ErrorCode.corrupt_message]
    assert await codes(node.send(numbered(1))) == [ErrorCode.request_timed_out]
    assert await codes(node.send(numbered(0)), node.send(numbered(1))) == [OK, OK]


async def test_a_leader_takes_no_batch_before_one_that_is_with_a_gateway(world: World) -> None:
    """Metadata has named a gateway first, and then the leader."""
    world.tickets = asyncio.Semaphore(0)
    first = world.gateway.send(numbered(0))
    await eventually_async(lambda: len(world.forwarded) == 1)
    assert await codes(world.leader.send(numbered(1))) == [ErrorCode.request_timed_out]
    world.tickets.release()
    assert ((await first).error_code, (await first).base_offset) == (OK, 0)
    assert await codes(world.leader.send(numbered(1))) == [OK]


async def test_nor_once_the_partition_is_replicated_again(world: World) -> None:
    """The producer may go to the leader while the gateway still has its first batch."""
    item = world.leader.view.image.partition(PLACE)
    assert item is not None
    back = dataclasses.replace(item, acked_by=records.AckedBy.REPLICAS, leader_epoch=1)
    await world.metadata.commit([records.put(back)])
    await world.leader.view.refresh()
    assert not world.leader.replica.is_diskless
    too_early = await world.leader.send(numbered(1), acks=1)
    assert too_early.error_code is ErrorCode.request_timed_out
    assert [await codes(world.leader.send(numbered(n), acks=1)) for n in (0, 1)] == [[OK], [OK]]


@pytest.mark.parametrize("where", ["gateway", "leader"])
async def test_a_producer_that_the_log_has_forgotten_is_taken_in_the_end(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = getattr(world, where)
    for _ in range(2):
        assert await codes(node.send(numbered(5))) == [ErrorCode.request_timed_out]
    assert await codes(node.send(batch(1, producer_id=8, producer_epoch=0, base_sequence=0))) == [
        OK
    ]
    monkeypatch.setattr(unknown_producers, "UNKNOWN_SECONDS", 0.0)
    # The one before it was refused just before the time was over, and comes again.
    behind = MOVED if where == "gateway" else ErrorCode.request_timed_out
    assert await codes(node.send(numbered(6))) == [behind]
    assert await codes(node.send(numbered(5)), node.send(numbered(6))) == [OK, OK]


@pytest.mark.parametrize("first", ["gateway", "leader"])
async def test_a_producer_that_changes_its_way_is_forgotten_but_once(
    world: World, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was refused on one way comes before its later batches on the other one."""
    ways = [world.gateway, world.leader]
    before, then = ways if first == "gateway" else ways[::-1]
    assert await codes(before.send(numbered(5))) == [ErrorCode.request_timed_out]
    monkeypatch.setattr(unknown_producers, "UNKNOWN_SECONDS", 0.0)
    (code,) = await codes(then.send(numbered(6)))
    assert code in (MOVED, ErrorCode.request_timed_out)
    assert world.leader.replica.log.log_end_offset == 0
    assert await codes(then.send(numbered(5)), then.send(numbered(6))) == [OK, OK]


async def lose_by_others(world: World, where: str) -> None:
    """Have a batch of another producer refused whose log does not take it."""
    other = batch(1, producer_id=9, producer_epoch=0, base_sequence=5)
    if where == "leader":
        other[-1] ^= 1  # It is damaged.
    code = (await getattr(world, where).send(other)).error_code
    assert code in (MOVED, ErrorCode.corrupt_message)


async def wait_as_unknown(folder: Path, where: str) -> float:
    """Return for how long a forgotten producer is kept out while others lose batches."""
    world = World(folder, objects=MemoryObjectStore(), executor=InlineExecutor())
    await world.start()
    node, now_s = getattr(world, where), asyncio.get_running_loop().time
    try:
        begin = batch(1, producer_id=9, producer_epoch=0, base_sequence=0)
        assert await codes(world.leader.send(begin)) == [OK]
        began_s, tries = now_s(), 0
        while now_s() < began_s + 2 * MISSED_SECONDS:
            await lose_by_others(world, where)
            if (await node.send(numbered(5))).error_code is OK:
                break
            tries += 1
            await asyncio.sleep(20.0)
        assert tries > 1
        return now_s() - began_s
    finally:
        await world.stop()


@pytest.mark.parametrize("where", ["gateway", "leader"])
def test_a_forgotten_producer_is_not_kept_out_for_ever_by_what_others_lose(
    tmp_path: Path, where: str
) -> None:
    """One batch in ten minutes would be enough, of anyone who may write to the partition."""
    waited_s = virtual_time.run(wait_as_unknown(tmp_path, where))
    assert MISSED_SECONDS <= waited_s < MISSED_SECONDS + 30


async def test_an_inventor_of_producers_does_not_keep_those_of_others_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unknown_producers, "PRODUCERS_MAX", 6)
    async with gateway_world(tmp_path) as world:
        leader, inventor = world.leader, a_session()
        inventor.become(Principal("User", "mallory"))
        assert await codes(leader.send(numbered(5))) == [ErrorCode.request_timed_out]
        for producer_id in range(100, 150):
            made_up = batch(1, producer_id=producer_id, producer_epoch=0, base_sequence=1)
            (code,) = await codes(leader.send(made_up, session=inventor))
            assert code is ErrorCode.request_timed_out
        monkeypatch.setattr(unknown_producers, "UNKNOWN_SECONDS", 0.0)
        assert await codes(leader.send(numbered(6))) == [ErrorCode.request_timed_out]
        assert await codes(leader.send(numbered(5)), leader.send(numbered(6))) == [OK, OK]
