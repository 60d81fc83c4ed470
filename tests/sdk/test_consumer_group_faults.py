"""Groups where answers are lost or late, members come and go, and a node dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection
from pathlib import Path

import pytest
from tidelog import RebalanceListener, SubscriptionPattern, TopicPartition
from tidelog.errors import CommitFailed
from tidelog.wire.requests import JOIN_GROUP

from tests.sdk.conftest import make_topic
from tests.sdk.group_readers import CONSUMER, Log, Reader, create, is_divided, writing
from tests.support.flaky_proxy import FlakyProxy
from tests.support.node_process import NodeProcess
from tests.support.transactional import QUICK_CONSUMER_GROUPS, TransactionalBroker
from tests.support.waiting import eventually_async


async def test_answers_that_are_lost_cost_no_member_its_place(
    tidelog: TransactionalBroker, name: str
) -> None:
    """Heartbeats among them: the next one tells everything, in the epoch that was known."""
    broker = tidelog.proxied
    async with FlakyProxy(broker.port, port=broker.proxy_port) as proxy:
        topic = await create(broker.address, name, 4)
        log = Log()
        first = Reader(broker.address, topic, name, **CONSUMER)
        first.consumer.subscribe([topic], listener=log)
        async with first, writing(broker.address, topic, 4) as written:
            await eventually_async(is_divided(4, first), "alone")
            proxy.loses_answer = lambda count, _: count % 11 == 0
            for _ in range(2):
                async with Reader(broker.address, topic, name, **CONSUMER) as second:
                    await eventually_async(is_divided(4, first, second), "two share")
                await eventually_async(is_divided(4, first), "alone again")
            proxy.loses_answer = lambda *_: False
            await asyncio.sleep(0.2)
        assert proxy.lost_count > 5
        assert "lost" not in {event for event, _ in log.told}
        await_all = Reader(broker.address, topic, f"{name}-all", **CONSUMER)
        async with await_all:
            await eventually_async(lambda: len(await_all.got) >= len(written), "all was written")


async def test_a_commit_between_a_join_and_its_answer_costs_no_member_its_place(
    tidelog: TransactionalBroker, name: str
) -> None:
    """The group has its next generation by then, of which the member has not heard."""
    broker = tidelog.proxied
    async with FlakyProxy(broker.port, port=broker.proxy_port) as proxy:
        topic = await create(broker.address, name, 4)
        log = Log()
        first = Reader(broker.address, topic, name, enable_auto_commit=False)
        first.consumer.subscribe([topic], listener=log)
        async with first:
            await eventually_async(is_divided(4, first), "alone")
            kept = next(iter(first.consumer.assignment()))
            proxy.hold(JOIN_GROUP.key)
            async with Reader(broker.address, topic, name) as second:
                await eventually_async(lambda: proxy.held_count > 0, "both have joined")
                with pytest.raises(CommitFailed):
                    await first.consumer.commit({kept: 0})
                proxy.let_go()
                await eventually_async(is_divided(4, first, second), "two share")
            assert "lost" not in {event for event, _ in log.told}


class Owners:
    """Who has which partition, as the listeners are told; nobody may be told what another has."""

    def __init__(self) -> None:
        self.of: dict[TopicPartition, object] = {}
        self.problems: list[str] = []

    def listener(self) -> RebalanceListener:
        owners = self

        class Told(RebalanceListener):
            def on_partitions_assigned(self, partitions: Collection[TopicPartition]) -> None:
                for partition in partitions:
                    if partition in owners.of:
                        owners.problems.append(f"{partition} has an owner")
                    owners.of[partition] = self

            def on_partitions_revoked(self, partitions: Collection[TopicPartition]) -> None:
                for partition in partitions:
                    if owners.of.pop(partition, None) is not self:
                        owners.problems.append(f"{partition} was not the one's who gives it up")

            def on_partitions_lost(self, partitions: Collection[TopicPartition]) -> None:
                owners.problems.append(f"{partitions} were lost")

        return Told()


@pytest.mark.parametrize("loses_answers", [False, True])
async def test_no_partition_has_two_owners_whatever_members_do(
    tidelog: TransactionalBroker, name: str, loses_answers: bool
) -> None:
    """They come, go and subscribe to something else, in an order that the seed gives."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    draw = random.Random(seed)
    subscriptions = ([f"{name}-a"], [f"{name}-b"], [f"{name}-a", f"{name}-b"], None)

    broker = tidelog.proxied
    owners = Owners()
    async with FlakyProxy(broker.port, port=broker.proxy_port) as proxy:
        for topic in subscriptions[2] or ():
            await create(broker.address, topic, 5)
        readers: dict[Reader, RebalanceListener] = {}

        def subscribe(reader: Reader) -> None:
            topics = draw.choice(subscriptions)
            pattern = SubscriptionPattern(f"{name}-.") if topics is None else None
            reader.consumer.subscribe(topics, pattern=pattern, listener=readers[reader])

        async def join() -> None:
            reader = Reader(broker.address, subscriptions[0][0], name, **CONSUMER)  # type: ignore[index]
            readers[reader] = owners.listener()
            subscribe(reader)
            await reader.__aenter__()

        async def leave() -> None:
            reader = draw.choice(list(readers))
            del readers[reader]
            await reader.__aexit__()

        if loses_answers:
            proxy.loses_answer = lambda count, _: count % 13 == 0
        for _ in range(30):
            match draw.randrange(3):
                case 0 if len(readers) < 5:
                    await join()
                case 1 if len(readers) > 1:
                    await leave()
                case 2 if readers:
                    subscribe(draw.choice(list(readers)))
            await asyncio.sleep(draw.choice((0, 0.01, 0.1, 0.3)))
        proxy.loses_answer = lambda *_: False
        if not readers:
            await join()
        while len(readers) > 1:
            await leave()
        (last,) = readers
        last.consumer.subscribe(subscriptions[2], listener=readers[last])
        await eventually_async(
            lambda: len(last.consumer.assignment()) == 10, "the last one has all"
        )
        assert set(owners.of) == last.consumer.assignment()
        await leave()
        assert owners.of == {}
    assert owners.problems == []


async def test_a_coordinator_that_was_killed_keeps_the_group(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "node", config=QUICK_CONSUMER_GROUPS) as own:

        async def main() -> None:
            topic = await asyncio.to_thread(make_topic, own, "kept", 4)
            log = Log()
            first = Reader(own.address, topic, "g", **CONSUMER)
            first.consumer.subscribe([topic], listener=log)
            async with first, Reader(own.address, topic, "g", **CONSUMER) as second:
                async with writing(own.address, topic, 4) as written:
                    await eventually_async(is_divided(4, first, second), "two share")
                    told = len(log.told)
                    await asyncio.sleep(0.3)
                    await asyncio.to_thread(own.kill)
                    await asyncio.to_thread(own.start)
                    await asyncio.sleep(0.5)
                await eventually_async(
                    lambda: len(set(first.got + second.got)) == len(written), "everything is read"
                )
                assert is_divided(4, first, second)()
                assert len(log.told) == told

        await main()
