"""Transactions that are cancelled wherever they wait, as by ``asyncio.timeout``."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from tidelog import Consumer, GroupMetadata, Producer
from tidelog.wire.requests import PRODUCE

from tests.sdk.cancelling import Cancelled, Place, places
from tests.sdk.committed_records import make_topic, make_topics, read_all, values
from tests.support.flaky_proxy import FlakyProxy
from tests.support.transactional import QUICK, ProxiedBroker, TransactionalBroker, on_every_broker
from tests.support.waiting import eventually_async

SECONDS_MAX = 30.0
PAIRS = 40


@pytest.fixture
def broker(transactional_broker: TransactionalBroker) -> TransactionalBroker:
    return transactional_broker


@pytest.fixture
async def topic(broker: TransactionalBroker, name: str) -> str:
    """A topic of two partitions."""
    return await make_topic(broker, f"{name}-topic")


class Turns:
    """Transactions of one producer, one after the other, some of them cancelled."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._number = 0
        self.whole: set[str] = set()  # those that were committed for certain

    async def _transact(self, number: int) -> None:
        async with self._producer.transaction() as transaction:
            await transaction.send_offsets({(self._topic, 0): number}, GroupMetadata(self._topic))
            for record in range(4):
                await self._producer.send(self._topic, b"%d" % number, partition=record % 2)

    async def take(self, where: Sequence[Place] = ()) -> int:
        """Do one, cancelled at the places; return at how many places it has waited."""
        self._number += 1
        cancelled = Cancelled(self._transact(self._number), where)

        async def run() -> None:
            await cancelled

        task = asyncio.create_task(run())
        await asyncio.wait([task], timeout=SECONDS_MAX)
        told = ", then ".join(map(str, where)) or "no place"
        assert task.done(), f"turn {self._number}, cancelled at {told}, does not end"
        if task.cancelled():
            assert where
        else:
            task.result()
            self.whole.add(str(self._number))
        return cancelled.suspension_count

    async def check(self, broker: TransactionalBroker) -> None:
        """Hold what readers see against what is known, the last turn not having been cancelled."""
        counts = Counter(values(await read_all(broker, self._topic)))
        assert set(counts.values()) == {4}
        assert counts.keys() >= self.whole
        async with Consumer(broker.address, group_id=self._topic) as consumer:
            (committed,) = (await consumer.committed([(self._topic, 0)])).values()
        assert committed is not None
        assert committed.offset == self._number


@on_every_broker
async def test_transaction_cancelled_wherever_it_waits_is_whole_or_nothing_and_the_next_goes_on(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:
        turns = Turns(producer, topic)
        await turns.take()
        suspension_count = await turns.take()
        print(f"{suspension_count} suspensions")
        for place in places(suspension_count):
            await turns.take([place])
            await turns.take()
    await turns.check(broker)


async def test_producer_whose_first_transaction_is_cancelled_wherever_it_waits_goes_on(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """Starting included: nothing is known yet, and there are no connections."""
    async with Producer(broker.address, transactional_id=name) as producer:
        suspension_count = await Turns(producer, topic).take()
    print(f"{suspension_count} suspensions")
    for number, place in enumerate(places(suspension_count)):
        print(place)
        producer = Producer(broker.address, transactional_id=f"{name}-{number}")
        turns = Turns(producer, topic)
        await turns.take([place])
        await turns.take()
        await producer.close()


@on_every_broker
async def test_transaction_cancelled_twice_is_whole_or_nothing_and_the_next_goes_on(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """The second time while it is being aborted, or while the one after it begins."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    async with Producer(broker.address, transactional_id=name) as producer:
        turns = Turns(producer, topic)
        suspension_count = await turns.take()
        every = list(places(suspension_count))
        for _ in range(PAIRS):
            first, second = chance.choice(every), chance.choice(every)
            await turns.take([first, dataclasses.replace(second, suspension=first.suspension + 1)])
            await turns.take([second])
        await turns.take()
    await turns.check(broker)


@on_every_broker
async def test_record_under_way_when_an_abort_is_cancelled_is_not_sent_in_the_next_transaction(
    proxied_broker: ProxiedBroker, name: str
) -> None:
    broker = proxied_broker
    async with (
        FlakyProxy(broker.port, port=broker.proxy_port) as proxy,
        Producer(broker.address, transactional_id=name, linger_ms=0, **QUICK) as producer,
    ):
        (topic,) = await make_topics(broker, name)

        async def leave_under_way() -> None:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aborted", partition=0)
                proxy.keeps_back = PRODUCE.key
                await producer.send(topic, b"aborted", partition=0)
                await asyncio.sleep(60)

        async def go_on() -> None:
            async with producer.transaction():
                await producer.send(topic, b"next", partition=1)

        left = asyncio.create_task(leave_under_way())
        await eventually_async(lambda: proxy.kept_back_count > 0, "the record is under way")
        left.cancel()
        await asyncio.sleep(0.05)  # It waits for the answer, to abort then.
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        following = asyncio.create_task(go_on())
        await asyncio.sleep(0.2)  # It has come as far as it does before the failure is known.
        proxy.keeps_back = None
        proxy.cut()
        async with asyncio.timeout(SECONDS_MAX):
            await following
        assert values(await read_all(broker, topic)) == ["next"]
