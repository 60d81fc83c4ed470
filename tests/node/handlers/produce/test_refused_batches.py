"""A producer's later batches are not taken before its first one, whatever had that refused.

A log takes any sequence as the first one of a producer that it does not know, and librdkafka takes a
batch for delivered when a later one is. Between the two batches the reason of the refusal ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_OID, uuid5

import pytest
from kio.schema.errors import ErrorCode
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.model import TopicPartition
from tidelog_node.fairness.partition_pace import NotYet
from tidelog_node.wire.produce import ProduceRequest

from tests.node.diskless.gateway_world import gateway_world
from tests.node.replication.led_node import PRODUCE_VERSION, TOPIC, LedNode, _answer, led_node
from tests.support.batches import batch_of
from tests.support.hand_chain import DISKLESS, HandChain
from tests.support.replication_cluster import make_peers
from tests.support.request_contexts import context_of

PRODUCER = 7
MOVED, TIMED_OUT = ErrorCode.not_leader_or_follower, ErrorCode.request_timed_out


def numbered(sequence: int, *, producer_id: int = PRODUCER) -> bytes:
    return batch_of(b"%d" % sequence, producer=(producer_id, 0, sequence))


class Led:
    """A partition that this node leads, or is about to."""

    def __init__(self, node: LedNode) -> None:
        self.node = node
        self.chain = HandChain()

    @property
    def end(self) -> int:
        return self.node.replica().log.log_end_offset

    def enter(self, epoch: int = 0) -> None:
        self.chain.enter(self.node.replicas, self.node.replica(), epoch)

    async def refused(self, batch: bytes) -> ErrorCode:
        """Return the code at which the batch was refused."""
        end = self.end
        answer = self.node.send_batch(batch)
        assert self.end == end, "the batch was taken"
        return ErrorCode(answer.error_code)

    def takes(self, batch: bytes) -> bool:
        """Whether the batch is appended, as the next one."""
        end = self.end
        self.node.send_batch(batch)
        return self.end == end + 1


Refuse = Callable[[Led], Awaitable[ErrorCode]]


async def not_admitted(led: Led) -> ErrorCode:
    led.enter()
    node, records = led.node, memoryview(bytearray(numbered(0)))
    request = ProduceRequest(None, -1, 20, [(TOPIC.encode(), [(0, records)])])
    context = context_of(PRODUCE_VERSION, api_key=0)
    node.admission.set_full(True)
    while True:
        try:
            reply = node.produce.handle(request, context)
        except NotYet as held:
            turn = asyncio.Event()
            held.wait(turn.set)
            await turn.wait()
        else:
            node.admission.set_full(False)
            return ErrorCode(_answer(0, PRODUCE_VERSION, reply).error_code)


async def not_led_yet(led: Led) -> ErrorCode:
    code = await led.refused(numbered(0))
    led.enter()
    return code


async def handing_over(led: Led) -> ErrorCode:
    led.enter()
    leader = led.node.replica().leader
    assert leader is not None
    leader.begin_hand_over(2, is_leaving=False, now_ms=led.node.now_ms)
    code = await led.refused(numbered(0))
    # The successor has died.
    peers = make_peers(live=(1,), dead=(2,))
    leader.propose(led.node.view.image.brokers, peers, led.node.now_ms + 60_000)
    assert not leader.is_moving
    return code


async def lead_ended_before_the_commit(led: Led) -> ErrorCode:
    led.enter()
    node = led.node
    answer = node.send_batch(numbered(0))
    assert led.end == 1
    node.replicas.end_lead(node.replica())
    code = ErrorCode((await answer).error_code)
    node.replica().log.truncate_to(0)  # The chain does not have it.
    chain = ChainName(1, uuid5(NAMESPACE_OID, "chain"))
    await node.change_partition(leader_epoch=1, wal=(EpochChain(1, chain, 0),))
    led.enter(1)
    return code


async def disk_full(led: Led) -> ErrorCode:
    led.enter()
    led.node.replicas.disk.change(is_full=True, has_failed=False)
    code = await led.refused(numbered(0))
    led.node.replicas.disk.change(is_full=False, has_failed=False)
    return code


async def not_inspected(led: Led) -> ErrorCode:
    led.enter()
    led.node.replica().checks_schemas = True  # The topic changes while the batch is on its way.
    code = await led.refused(numbered(0))
    led.node.replica().checks_schemas = False
    return code


async def damaged(led: Led) -> ErrorCode:
    led.enter()
    wrong = bytearray(numbered(0))
    wrong[-1] ^= 1
    return await led.refused(bytes(wrong))


async def too_few_in_sync(led: Led) -> ErrorCode:
    await led.node.change_partition(isr=(1,))
    code = await led.refused(numbered(0))
    await led.node.change_partition(isr=(1, 2))
    return code


async def out_of_touch(led: Led) -> ErrorCode:
    led.node.may_serve = False
    code = await led.refused(numbered(0))
    led.node.may_serve = True
    return code


async def lead_lost_before_the_commit(led: Led) -> ErrorCode:
    node = led.node
    answer = node.send_batch(numbered(0))
    assert led.end == 1
    await node.change_partition(leader=2, leader_epoch=1)
    code = ErrorCode((await answer).error_code)
    node.replica().log.truncate_to(0)  # The other leader does not have it.
    await node.change_partition(leader=1, leader_epoch=2)
    return code


class Case(NamedTuple):
    refuse: Refuse
    code: ErrorCode
    is_diskless: bool = True


CASES = (
    Case(not_admitted, TIMED_OUT),
    Case(not_led_yet, MOVED),
    Case(handing_over, MOVED),
    Case(lead_ended_before_the_commit, MOVED),
    Case(disk_full, ErrorCode.kafka_storage_error),
    Case(not_inspected, TIMED_OUT),
    Case(damaged, ErrorCode.corrupt_message),
    Case(too_few_in_sync, ErrorCode.not_enough_replicas, is_diskless=False),
    Case(out_of_touch, MOVED, is_diskless=False),
    Case(lead_lost_before_the_commit, MOVED, is_diskless=False),
)


@pytest.mark.parametrize("case", CASES, ids=[case.refuse.__name__ for case in CASES])
async def test_no_later_batch_is_taken_before_a_refused_one(tmp_path: Path, case: Case) -> None:
    async with led_node(tmp_path) as node:
        if case.is_diskless:
            await node.create_topic(replicas=(1,), **DISKLESS)
        else:
            await node.create_topic(replicas=(1, 2), **{"min.insync.replicas": "2"})
        led = Led(node)
        assert await case.refuse(led) is case.code
        assert await led.refused(numbered(1)) is TIMED_OUT
        assert await led.refused(numbered(2)) is TIMED_OUT
        assert led.takes(numbered(0, producer_id=8)), "it has lost nothing"
        assert all(led.takes(numbered(sequence)) for sequence in range(3))
        gap = await led.refused(numbered(5))
        assert gap is ErrorCode.out_of_order_sequence_number, "the log knows the producer now"


async def test_a_refusal_that_the_producer_does_not_repeat_holds_up_nobody(tmp_path: Path) -> None:
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **DISKLESS, **{"max.message.bytes": "100"})
        led = Led(node)
        led.enter()
        large = batch_of(b"v" * 200, producer=(PRODUCER, 0, 0))
        assert await led.refused(large) is ErrorCode.message_too_large
        assert led.takes(numbered(1))


async def test_a_damaged_batch_says_nothing_about_the_producer_in_its_header(
    tmp_path: Path,
) -> None:
    """In an epoch that comes never, for example."""
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **DISKLESS)
        led = Led(node)
        led.enter()
        assert led.takes(numbered(0))
        wrong = bytearray(batch_of(b"v", producer=(PRODUCER, 32_000, 0)))
        wrong[-1] ^= 1
        assert await led.refused(bytes(wrong)) is ErrorCode.corrupt_message
        assert led.takes(numbered(1))


async def test_what_was_refused_is_taken_once_another_leader_has_it(tmp_path: Path) -> None:
    """This node did not lead yet. Its producer has sent the batch to the leader, and goes on."""
    async with led_node(tmp_path) as node:
        await node.create_topic(replicas=(1,), **DISKLESS)
        led = Led(node)
        assert await led.refused(numbered(0)) is MOVED
        node.replica().log.append_as_follower(bytearray(numbered(0)))
        led.enter()
        assert led.takes(numbered(1))


class Unwilling:
    """A coordinator that is not there for the first question."""

    def __init__(self) -> None:
        self.codes = [ErrorCode.coordinator_not_available]

    async def ask(
        self, _: str, __: int, ___: int, partitions: list[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        del adds
        code = self.codes.pop() if self.codes else ErrorCode.none
        return dict.fromkeys(partitions, code)


async def test_no_later_batch_of_a_transaction_is_taken_before_one_that_was_not_verified(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        leader = world.leader
        leader.verifier = Unwilling()

        async def send(sequence: int) -> Any:
            fields = {"producer": (PRODUCER, 0, sequence), "is_transactional": True}
            return await leader.send(batch_of(b"v", **fields), transactional_id=b"t")

        assert (await send(0)).error_code is ErrorCode.not_enough_replicas
        assert (await send(1)).error_code is TIMED_OUT
        for sequence in (0, 1):
            answer = await send(sequence)
            assert (answer.error_code, answer.base_offset) == (ErrorCode.none, sequence)
