"""A consumer's fetch sessions, as nodes see them: what it names, and what it makes of faults."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from kio.index import load_request_schema
from tidelog import Admin, Consumer, Producer, TopicPartition
from tidelog_core.message_reader import read_message

from tests.support.flaky_proxy import FlakyProxy, Rule
from tests.support.transactional import QUICK, ProxiedBroker

FETCH = 1
PARTITION_COUNT = 40

on_both_brokers = pytest.mark.parametrize(
    "transactional_broker", ["tidelog", "kafka"], indirect=True, scope="session"
)


class FetchLog:
    """The fetches of one consumer."""

    def __init__(self) -> None:
        self.fetches: list[Any] = []

    def note(self, frame: bytes) -> None:
        key, version, _, client_size = struct.unpack_from(">hhih", frame)
        if key == FETCH:
            self.fetches.append(read_message(_schema(version), frame, 10 + client_size + 1))

    @property
    def incremental(self) -> list[Any]:
        return [fetch for fetch in self.fetches if fetch.session_epoch > 0]

    @property
    def is_idle(self) -> bool:
        """Whether the last fetches of a session had nothing to say."""
        last = self.fetches[-3:]
        return len(last) == 3 and not any(named(one) or one.session_epoch <= 0 for one in last)

    @property
    def full(self) -> list[Any]:
        return [fetch for fetch in self.fetches if fetch.session_epoch == 0]


def _schema(version: int) -> Any:
    return load_request_schema(FETCH, version)


def named(fetch: Any) -> list[int]:
    return [int(one.partition) for topic in fetch.topics for one in topic.partitions]


@pytest.fixture
def broker(proxied_broker: ProxiedBroker) -> ProxiedBroker:
    return proxied_broker


async def read(consumer: Consumer, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += await consumer.poll(timeout_ms=500)
    return found


async def eventually(holds: Callable[[], bool], consumer: Consumer) -> None:
    async with asyncio.timeout(30):
        while not holds():
            assert not await consumer.poll(timeout_ms=20)


@asynccontextmanager
async def consuming(
    broker: ProxiedBroker, topic: str, log: FetchLog, *, loses_answer: Rule = lambda *_: False
) -> AsyncIterator[tuple[Consumer, Producer]]:
    """A consumer of all partitions of a new topic that waits for records, and a producer."""
    options = {"fetch_max_wait_ms": 50, "auto_offset_reset": "earliest", **QUICK}
    proxy = FlakyProxy(
        broker.port, port=broker.proxy_port, loses_answer=loses_answer, on_request=log.note
    )
    async with proxy:
        async with Admin(f"127.0.0.1:{broker.port}") as admin:
            await admin.create_topic(topic, partition_count=PARTITION_COUNT)
        async with (
            Consumer(broker.address, **options) as consumer,
            Producer(f"127.0.0.1:{broker.port}") as producer,
        ):
            consumer.assign([TopicPartition(topic, index) for index in range(PARTITION_COUNT)])
            await eventually(lambda: log.is_idle, consumer)
            yield consumer, producer


@on_both_brokers
async def test_who_waits_names_only_what_has_moved(broker: ProxiedBroker, name: str) -> None:
    log = FetchLog()

    async with consuming(broker, name, log) as (consumer, producer):
        begun_count = len(log.full)
        known = {index for fetch in log.fetches for index in named(fetch)}
        assert known == set(range(PARTITION_COUNT))
        for count in range(3):
            before = len(log.fetches)
            await producer.send(name, b"%d" % count, partition=7)
            (record,) = await read(consumer, 1)
            assert (record.partition, record.value) == (7, b"%d" % count)
            await eventually(
                lambda: any(named(one) == [7] for one in log.fetches[before:]),  # noqa: B023
                consumer,
            )
            since = log.fetches[before:]
            assert {index for one in since for index in named(one)} == {7}
        consumer.pause([TopicPartition(name, 9)])
        await eventually(
            lambda: any(
                list(topic.partitions) == [9]
                for one in log.incremental
                for topic in one.forgotten_topics_data
            ),
            consumer,
        )
        assert len(log.full) == begun_count


@on_both_brokers
async def test_nothing_is_lost_or_doubled_when_answers_are_lost(
    broker: ProxiedBroker, name: str
) -> None:
    """The node has counted the fetch; its next one must be of another session."""
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    random, log = Random(seed), FetchLog()
    has_begun = False

    losing = consuming(
        broker, name, log, loses_answer=lambda *_: has_begun and random.random() < 0.1
    )
    async with losing as (consumer, producer):
        has_begun = True
        sent: dict[int, list[bytes]] = {}
        found: dict[int, list[bytes]] = {}
        for number in range(120):
            partition, value = random.randrange(PARTITION_COUNT), b"%d" % number
            sent.setdefault(partition, []).append(value)
            await producer.send(name, value, partition=partition)
            for record in await consumer.poll(timeout_ms=5):
                found.setdefault(record.partition, []).append(record.value)
        async with asyncio.timeout(60):
            while sum(map(len, found.values())) < 120:
                for record in await consumer.poll(timeout_ms=100):
                    found.setdefault(record.partition, []).append(record.value)
        assert found == sent
        assert len(log.full) > 1


@on_both_brokers
async def test_who_closes_ends_the_session(broker: ProxiedBroker, name: str) -> None:
    """The node would keep its place and its partitions for two minutes or more."""
    log = FetchLog()

    async with consuming(broker, name, log):
        session_id = log.incremental[-1].session_id
    assert session_id != 0
    last = log.fetches[-1]
    assert (last.session_id, last.session_epoch, named(last)) == (session_id, -1, [])


@on_both_brokers
async def test_a_session_that_someone_else_moves_on_is_begun_again(
    broker: ProxiedBroker, name: str
) -> None:
    log = FetchLog()

    async with consuming(broker, name, log) as (consumer, producer):
        begun_count = len(log.full)
        (fetches,) = consumer._fetcher._fetches.values()
        fetches._session._epoch += 5  # than the node expects
        await eventually(lambda: len(log.full) > begun_count, consumer)
        await producer.send(name, b"v", partition=3)
        (record,) = await read(consumer, 1)
        assert record.value == b"v"
