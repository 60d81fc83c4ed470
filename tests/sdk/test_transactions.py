"""Transactions of the SDK's producer, and what consumers of committed records see of them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tidelog import (
    Consumer,
    ConsumerRecord,
    Delivery,
    EncodedRecords,
    GroupMetadata,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from tidelog.errors import (
    ClientClosed,
    CommitFailed,
    InvalidConfig,
    InvalidRequest,
    InvalidTransactionTimeout,
    MessageTooLarge,
    ProducerFenced,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from tidelog_core.records.codecs import CompressionType

from tests.sdk.committed_records import (
    await_markers,
    make_topic,
    make_topics,
    read_all,
    read_to_end,
    values,
)
from tests.support.flaky_proxy import FlakyProxy
from tests.support.transactional import QUICK, ProxiedBroker, TransactionalBroker, on_every_broker


@pytest.fixture
def broker(transactional_broker: TransactionalBroker) -> TransactionalBroker:
    return transactional_broker


@pytest.fixture
async def topic(broker: TransactionalBroker, name: str) -> str:
    """A topic of two partitions."""
    return await make_topic(broker, f"{name}-topic")


@pytest.fixture
async def other_topic(broker: TransactionalBroker, name: str) -> str:
    return await make_topic(broker, f"{name}-other")


# -- committing and aborting --


@on_every_broker
async def test_records_of_a_transaction_are_seen_once_it_commits(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:
        async with producer.transaction():
            deliveries = [await producer.send(topic, b"%d" % n, partition=n % 2) for n in range(10)]
            await producer.flush()
            assert [d.result().offset for d in deliveries] == [n // 2 for n in range(10)]
            assert await read_to_end(broker, topic) == []
            assert len(await read_to_end(broker, topic, is_committed=False)) == 10
        assert values(await read_all(broker, topic)) == [str(n) for n in range(10)]


@on_every_broker
async def test_exception_aborts_the_transaction_and_passes_on(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:

        async def attempt() -> None:
            async with producer.transaction():
                await producer.send(topic, b"aborted", partition=0)
                await producer.flush()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
        async with producer.transaction():
            await producer.send(topic, b"committed", partition=0)
        assert values(await read_all(broker, topic)) == ["committed"]
        seen = await read_to_end(broker, topic, is_committed=False)
        assert values(seen) == ["aborted", "committed"]


async def test_records_that_were_not_sent_when_the_transaction_aborts_never_are(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name, linger_ms=10_000) as producer:
        deliveries: list[Delivery] = []

        async def attempt() -> None:
            async with producer.transaction():
                deliveries.append(await producer.send(topic, b"v", partition=0))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
        with pytest.raises(TransactionAborted):
            await deliveries[0]
        async with producer.transaction():
            pass
        assert await read_to_end(broker, topic, is_committed=False) == []


@on_every_broker
async def test_transactions_follow_each_other_whatever_was_in_flight_when_one_aborted(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """Each is left at another moment, with batches queued, under way and acknowledged."""
    expected = []
    async with Producer(
        broker.address, transactional_id=name, batch_size_bytes=200, linger_ms=0, **QUICK
    ) as producer:
        for turn in range(12):
            is_aborted = turn % 3 != 2
            try:
                async with producer.transaction():
                    for n in range(40):
                        value = f"{turn}-{n}"
                        await producer.send(topic, value.encode(), partition=n % 2)
                        if is_aborted and n == turn * 3:
                            raise ZeroDivisionError
                        if not is_aborted:
                            expected.append(value)
            except ZeroDivisionError:
                pass
    got = await read_all(broker, topic)
    assert values(got) == sorted(expected)
    for partition in range(2):
        numbers = [
            tuple(map(int, (r.value or b"").split(b"-"))) for r in got if r.partition == partition
        ]
        assert numbers == sorted(numbers)


async def test_transaction_without_records_is_no_transaction(
    broker: TransactionalBroker, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:
        async with producer.transaction():
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                raise ZeroDivisionError


@on_every_broker
async def test_record_that_cannot_be_written_dooms_the_transaction(
    broker: TransactionalBroker, name: str
) -> None:
    topic = await make_topic(broker, f"{name}-small", **{"max.message.bytes": "1000"})

    async with Producer(broker.address, transactional_id=name) as producer:
        deliveries: list[Delivery] = []

        async def attempt() -> None:
            async with producer.transaction():
                for partition, value in enumerate((b"good", b"x" * 5_000)):
                    deliveries.append(await producer.send(topic, value, partition=partition))

        with pytest.raises(TransactionAborted) as aborted:
            await attempt()
        assert isinstance(aborted.value.cause, MessageTooLarge)
        await asyncio.gather(*(delivery.wait() for delivery in deliveries))
        assert isinstance(deliveries[1].exception(), MessageTooLarge)

        async def attempt() -> None:
            async with producer.transaction():
                bad = await producer.send(topic, b"x" * 5_000, partition=1)
                await bad.wait()
                await producer.send(topic, b"refused at once", partition=0)

        with pytest.raises(TransactionAborted):
            await attempt()
        async with producer.transaction():
            for partition in (0, 1):
                await producer.send(topic, b"after", partition=partition)
    assert values(await read_all(broker, topic)) == ["after", "after"]


async def test_cancelled_transaction_is_aborted(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:

        async def attempt() -> None:
            async with asyncio.timeout(0.2):
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"cancelled", partition=0)
                    await asyncio.sleep(60)

        with pytest.raises(TimeoutError):
            await attempt()
        async with producer.transaction():
            await producer.send(topic, b"v", partition=0)
    assert values(await read_all(broker, topic)) == ["v"]


async def test_closing_the_producer_aborts_what_is_open(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    producer = Producer(broker.address, transactional_id=name)

    async def attempt() -> None:
        async with producer.transaction():
            await producer.send_and_wait(topic, b"open", partition=0)
            await producer.close()
            await producer.send(topic, b"late", partition=0)

    with pytest.raises(ClientClosed):
        await attempt()
    async with Consumer(broker.address, isolation_level="read_committed") as consumer:
        ends = await consumer.end_offsets([(topic, 0)])
    assert ends == {(topic, 0): 2}  # The record and the marker: nothing is open.
    assert await read_all(broker, topic) == []


# -- what is refused --


async def test_send_needs_a_transaction_and_there_is_one_at_a_time(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:
        with pytest.raises(InvalidRequest, match="within a transaction"):
            await producer.send(topic, b"v")
        async with producer.transaction() as transaction:
            with pytest.raises(InvalidRequest, match="has an open transaction"):
                async with producer.transaction():
                    pass
            await producer.send(topic, b"v")
        with pytest.raises(InvalidRequest, match="within a transaction"):
            await transaction.send_offsets({(topic, 0): 1}, GroupMetadata(name))
    assert values(await read_all(broker, topic)) == ["v"]
    async with Producer(broker.address) as plain:
        with pytest.raises(InvalidRequest, match="transactional_id"):
            plain.transaction()


def test_transactions_need_idempotence_and_a_name_and_time() -> None:
    with pytest.raises(InvalidConfig) as problems:
        Producer(
            "localhost:1", transactional_id="", enable_idempotence=False, transaction_timeout_ms=0
        )
    for words in ("must not be empty", "need idempotence", "transaction_timeout_ms"):
        assert words in str(problems.value)


async def test_transaction_timeout_that_the_node_does_not_allow_is_an_error_at_the_start(
    broker: TransactionalBroker, name: str
) -> None:
    producer = Producer(broker.address, transactional_id=name, transaction_timeout_ms=2_000_000_000)
    with pytest.raises(InvalidTransactionTimeout):
        await producer.start()
    await producer.close()


# -- fencing --


async def test_later_producer_of_the_same_id_aborts_and_fences_the_earlier(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with (
        Producer(broker.address, transactional_id=name) as earlier,
        Producer(broker.address, transactional_id=name) as later,
    ):
        # Starting was enough to fence what started before.
        with pytest.raises(ProducerFenced):
            async with earlier.transaction():
                await earlier.send(topic, b"fenced", partition=0)
        with pytest.raises(ProducerFenced):
            async with earlier.transaction():
                pytest.fail("it must not begin")
        async with later.transaction():
            await later.send(topic, b"good", partition=0)
    assert values(await read_all(broker, topic)) == ["good"]


@on_every_broker
async def test_open_transaction_is_aborted_by_the_start_of_a_later_producer(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as earlier:

        async def attempt() -> None:
            async with earlier.transaction() as transaction:
                await earlier.send_and_wait(topic, b"fenced", partition=0)
                async with (
                    Producer(broker.address, transactional_id=name) as later,
                    later.transaction(),
                ):
                    await later.send(topic, b"good", partition=0)
                with pytest.raises((ProducerFenced, TransactionAborted)):
                    await transaction.send_offsets({(topic, 0): 1}, GroupMetadata(name))

        with pytest.raises(ProducerFenced):
            await attempt()
    assert values(await read_all(broker, topic)) == ["good"]


@on_every_broker
async def test_transaction_that_takes_too_long_is_aborted(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """And its producer fenced, unless each transaction has an epoch of its own (KIP-890)."""
    async with Producer(
        broker.address, transactional_id=name, transaction_timeout_ms=300
    ) as producer:

        async def attempt() -> None:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"late", partition=0)
                await await_markers(broker, topic)

        with pytest.raises((TransactionAborted, ProducerFenced)) as ended:
            await attempt()
        expected = []
        if ended.type is TransactionAborted:
            async with producer.transaction():
                await producer.send(topic, b"next", partition=0)
            expected = ["next"]
    assert values(await read_all(broker, topic)) == expected


@on_every_broker
async def test_transaction_of_a_producer_that_fails_within_it_is_not_committed(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """The records that were written before were committed, without the others."""
    impossible = EncodedRecords(b"", CompressionType.NONE, 1 << 40, 0, 0)

    async def attempt() -> None:
        async with (
            Producer(broker.address, transactional_id=name) as producer,
            producer.transaction(),
        ):
            await producer.send_and_wait(topic, b"before", partition=0)
            await producer.send_encoded((topic, 0), impossible)

    with pytest.raises((TransactionAborted, ClientClosed)):
        await attempt()
    await await_markers(broker, topic)
    assert values(await read_all(broker, topic)) == []


# -- consuming, transforming, producing --


async def seed(broker: TransactionalBroker, topic: str, count: int) -> None:
    async with Producer(broker.address) as producer:
        for n in range(count):
            await producer.send(topic, b"%d" % n, partition=n % 2)


def reader(broker: TransactionalBroker, topic: str, group: str, **options: Any) -> Consumer:
    return Consumer(
        broker.address,
        topics=topic,
        group_id=group,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        heartbeat_interval_ms=100,
        fetch_max_wait_ms=100,
        **{**QUICK, **options},
    )


@on_every_broker
async def test_every_record_is_transformed_once_whatever_interrupts(
    broker: TransactionalBroker, topic: str, other_topic: str, name: str
) -> None:
    """Exceptions at any step; the consumer goes back to what is committed."""
    draw = random.Random(7)

    await seed(broker, topic, 200)
    attempt_count = 0
    async with (
        reader(broker, topic, name) as consumer,
        Producer(broker.address, transactional_id=name, **QUICK) as producer,
    ):
        done = 0
        while done < 200:
            records = await consumer.poll(max_records=17, timeout_ms=5_000)
            attempt_count += 1
            try:
                async with producer.transaction() as transaction:
                    fails_at = draw.randrange(40)
                    for n, record in enumerate(records):
                        if n == fails_at:
                            raise ZeroDivisionError
                        await producer.send(other_topic, record.value, partition=n % 2)
                    await transaction.send_offsets(consumer.positions(), consumer.group_metadata())
                    if draw.random() < 0.2:
                        raise ZeroDivisionError
                done += len(records)
            except ZeroDivisionError:
                consumer.seek_to_committed()
        committed = await consumer.committed([(topic, 0), (topic, 1)])
        assert all(each is not None and each.offset == 100 for each in committed.values())
    assert attempt_count > 13
    got = [int(record.value or b"") for record in await read_all(broker, other_topic)]
    assert sorted(got) == list(range(200))


@on_every_broker
async def test_offsets_alone_make_a_transaction(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with (
        Producer(broker.address, transactional_id=name) as producer,
        Consumer(broker.address, group_id=name) as consumer,
    ):
        partitions = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        group = consumer.group_metadata()
        assert group == GroupMetadata(name)
        async with producer.transaction() as transaction:
            await transaction.send_offsets(
                {(topic, 0): OffsetAndMetadata(5), (topic, 1): OffsetAndMetadata(6, 0, "why")},
                group,
            )

        async def attempt() -> None:
            async with producer.transaction() as transaction:
                await transaction.send_offsets({(topic, 0): 7}, group)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
        async with producer.transaction() as transaction:
            await transaction.send_offsets({}, group)
        assert await consumer.committed(partitions) == {
            partitions[0]: OffsetAndMetadata(5),
            partitions[1]: OffsetAndMetadata(6, 0, "why"),
        }


async def test_offsets_of_a_member_that_the_group_has_left_behind_abort_the_transaction(
    broker: TransactionalBroker, topic: str, other_topic: str, name: str
) -> None:
    await seed(broker, topic, 10)
    async with Producer(broker.address, transactional_id=name) as producer:
        async with reader(broker, topic, name) as consumer:
            await consumer.poll(timeout_ms=5_000)
            positions, left_behind = consumer.positions(), consumer.group_metadata()
        async with reader(broker, topic, name) as consumer:
            await consumer.poll(timeout_ms=5_000)

            async def attempt() -> None:
                async with producer.transaction() as transaction:
                    await producer.send(other_topic, b"v")
                    await transaction.send_offsets(positions, left_behind)

            with pytest.raises(TransactionAborted) as aborted:
                await attempt()
            assert isinstance(aborted.value.cause, CommitFailed)
            async with producer.transaction() as transaction:
                await producer.send(other_topic, b"w")
                await transaction.send_offsets(positions, consumer.group_metadata())
    assert values(await read_all(broker, other_topic)) == ["w"]


async def test_a_member_goes_on_behind_what_was_pending_while_its_group_changed(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """Twice, so that an answer about the membership before comes when it has the partition again."""
    partitions = {TopicPartition(topic, 0), TopicPartition(topic, 1)}

    def member() -> Consumer:
        return reader(broker, topic, name, assignors=("range",))

    await seed(broker, topic, 20)
    async with (
        Producer(broker.address, transactional_id=name) as producer,
        member() as consumer,
    ):
        got: list[ConsumerRecord] = []

        async def read_until(is_so: Callable[[], bool], *others: Consumer) -> None:
            async with asyncio.timeout(30):
                while not is_so():
                    got.extend(await consumer.poll(timeout_ms=20))
                    for other in others:
                        assert await other.poll(timeout_ms=20) == []

        await read_until(lambda: len(got) == 20)
        async with producer.transaction() as transaction:
            positions, group = consumer.positions(), consumer.group_metadata()
            await transaction.send_offsets(positions, group)
            async with member() as other:
                await read_until(lambda: len(consumer.assignment()) == 1, other)
            await read_until(lambda: consumer.assignment() == partitions)
            got.extend(await consumer.poll(timeout_ms=300))
            assert len(got) == 20
        await seed(broker, topic, 2)
        await read_until(lambda: len(got) == 22)
        assert {record.offset for record in got[20:]} == {10}


async def test_group_metadata_needs_a_group_and_a_membership(broker: TransactionalBroker) -> None:
    async with Consumer(broker.address) as consumer:
        with pytest.raises(InvalidRequest, match="group_id"):
            consumer.group_metadata()
    async with Consumer(broker.address, group_id="g", topics="t") as consumer:
        with pytest.raises(CommitFailed):
            consumer.group_metadata()


# -- reading committed records --


async def test_reader_of_committed_records_waits_before_an_open_transaction(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    level: Any = "read_committed"
    async with (
        Producer(broker.address) as plain,
        Producer(broker.address, transactional_id=name) as producer,
        Consumer(broker.address, isolation_level=level, fetch_max_wait_ms=50) as consumer,
    ):
        await plain.send_and_wait(topic, b"before", partition=0)
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"in", partition=0)
            await plain.send_and_wait(topic, b"behind", partition=0)
            assert await consumer.end_offsets([(topic, 0)]) == {(topic, 0): 1}
            assert values(await consumer.poll(timeout_ms=3_000)) == ["before"]
            assert await consumer.poll(timeout_ms=200) == []
            assert await consumer.position((topic, 0)) == 1
            consumer.seek_to_end()
            assert await consumer.position((topic, 0)) == 1
        got: list[ConsumerRecord] = []
        while len(got) < 2:
            got += await consumer.poll(timeout_ms=3_000)
        assert [r.value for r in got] == [b"in", b"behind"]
        assert await consumer.end_offsets([(topic, 0)]) == {(topic, 0): 4}


async def test_position_passes_aborted_records_and_markers(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    async with Producer(broker.address, transactional_id=name) as producer:

        async def attempt() -> None:
            async with producer.transaction():
                await producer.send_and_wait(topic, b"aborted", partition=0)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
    async with Consumer(
        broker.address, isolation_level="read_committed", fetch_max_wait_ms=50
    ) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        assert await consumer.end_offsets([(topic, 0)]) == {(topic, 0): 2}
        async with asyncio.timeout(60):
            while await consumer.position((topic, 0)) < 2:
                assert await consumer.poll(timeout_ms=200) == []


@pytest.mark.parametrize("fetch_bytes", [300, 1024 * 1024])
async def test_readers_get_exactly_what_was_committed_of_transactions_side_by_side(
    broker: TransactionalBroker, topic: str, name: str, fetch_bytes: int
) -> None:
    """Also in small fetches, where aborted transactions reach over many of them."""
    draw = random.Random(fetch_bytes)
    expected: list[str] = []

    async def transact(producer: Producer, who: int) -> None:
        for turn in range(8):
            written = []
            is_aborted = draw.random() < 0.5
            try:
                async with producer.transaction():
                    for n in range(draw.randrange(1, 12)):
                        value = f"{who}-{turn}-{n}"
                        await producer.send(topic, value.encode(), partition=draw.randrange(2))
                        written.append(value)
                        if draw.random() < 0.3:
                            await producer.flush()
                    if is_aborted:
                        raise ZeroDivisionError
                expected.extend(written)
            except ZeroDivisionError:
                pass

    producers = [
        Producer(broker.address, transactional_id=f"{name}-{who}", linger_ms=0, **QUICK)
        for who in range(3)
    ]
    async with producers[0], producers[1], producers[2], Producer(broker.address) as plain:

        async def write_plainly() -> None:
            for n in range(30):
                await plain.send_and_wait(topic, f"plain-{n}".encode(), partition=n % 2)
                expected.append(f"plain-{n}")

        await asyncio.gather(
            write_plainly(), *(transact(p, who) for who, p in enumerate(producers))
        )
    got = await read_all(broker, topic, max_partition_fetch_bytes=fetch_bytes)
    assert values(got) == sorted(expected)


# -- lost answers --


@on_every_broker
@pytest.mark.parametrize("share_lost", [0.05, 0.2])
async def test_transactions_are_whole_though_answers_are_lost(
    proxied_broker: ProxiedBroker, name: str, share_lost: float
) -> None:
    """Of any request, the coordinator's among them, when the broker has acted on it."""
    seed_number = random.randrange(1 << 30)
    print("seed", seed_number)
    chance = random.Random(seed_number)
    outcomes: dict[int, str] = {}
    broker = proxied_broker
    async with (
        FlakyProxy(broker.port, port=broker.proxy_port) as proxy,
        Producer(
            broker.address,
            transactional_id=name,
            batch_size_bytes=300,
            linger_ms=0,
            **QUICK,
        ) as producer,
    ):
        topic, other_topic = await make_topics(broker, f"{name}-a", f"{name}-b")
        # The first is lost for sure, whatever the seed.
        proxy.loses_answer = lambda *_: not proxy.lost_count or chance.random() < share_lost
        for turn in range(25):
            outcomes[turn] = "committed"
            try:
                async with producer.transaction() as transaction:
                    for n in range(12):
                        partition = n % 2
                        await producer.send(topic, b"%d" % turn, partition=partition)
                    await transaction.send_offsets({(topic, 0): turn}, GroupMetadata(name))
                    if chance.random() < 0.3:
                        outcomes[turn] = "aborted"
                        raise ZeroDivisionError
            except (ZeroDivisionError, TransactionAborted):
                outcomes[turn] = "aborted"
            except TransactionOutcomeUnknown:
                outcomes[turn] = "unknown"
        proxy.loses_answer = lambda *_: False
        assert proxy.lost_count > 0
        async with producer.transaction():
            await producer.send(other_topic, b"end")
        async with Consumer(broker.address, group_id=name) as consumer:
            (committed,) = (await consumer.committed([(topic, 0)])).values()
        counts = Counter(int(v) for v in values(await read_all(broker, topic)))
    for turn, outcome in outcomes.items():
        assert counts[turn] in {"committed": {12}, "aborted": {0}, "unknown": {0, 12}}[outcome]
    whole = [turn for turn in outcomes if counts[turn]]
    assert committed is not None
    assert committed.offset == whole[-1]


@on_every_broker
async def test_coordinator_that_cannot_be_reached_leaves_the_outcome_to_the_next_transaction(
    proxied_broker: ProxiedBroker, name: str
) -> None:
    broker = proxied_broker
    async with (
        FlakyProxy(broker.port, port=broker.proxy_port) as proxy,
        Producer(broker.address, transactional_id=name, max_block_ms=700, **QUICK) as producer,
    ):
        (topic,) = await make_topics(broker, name)
        for is_commit in (True, False):

            async def attempt(is_commit: bool = is_commit) -> None:
                async with producer.transaction():
                    await producer.send_and_wait(topic, b"%d" % is_commit, partition=0)
                    proxy.is_down = True
                    proxy.cut()
                    if not is_commit:
                        raise ZeroDivisionError

            with pytest.raises(TransactionOutcomeUnknown if is_commit else ZeroDivisionError):
                await attempt()
            proxy.is_down = False
            async with producer.transaction():
                await producer.send(topic, b"next", partition=0)
        counts = Counter(values(await read_all(broker, topic)))
    assert counts["next"] == 2
    assert counts["0"] == 0
    assert counts["1"] == 0  # It never got to the coordinator, which aborted it.


# -- without an event loop --


def test_transactions_without_an_event_loop(
    broker: TransactionalBroker, topic: str, other_topic: str, name: str
) -> None:
    asyncio.run(seed(broker, topic, 20))
    with (
        reader(broker, topic, name).sync() as consumer,
        Producer(broker.address, transactional_id=name).sync() as producer,
    ):
        done = 0
        is_first = True
        while done < 20:
            records = consumer.poll(max_records=7, timeout_ms=5_000)
            try:
                with producer.transaction() as transaction:
                    for record in records:
                        producer.send(other_topic, record.value)
                    transaction.send_offsets(consumer.positions(), consumer.group_metadata())
                    if is_first:
                        is_first = False
                        raise ZeroDivisionError
                done += len(records)
            except ZeroDivisionError:
                consumer.seek_to_committed()
        committed = consumer.committed([(topic, 0), (topic, 1)])
        assert [each and each.offset for each in committed.values()] == [10, 10]
    got = [int(record.value or b"") for record in asyncio.run(read_all(broker, other_topic))]
    assert sorted(got) == list(range(20))


def test_record_that_a_plain_producer_does_not_take_dooms_the_transaction(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """Its ``send`` does not raise, so the end of the block has to."""
    with Producer(
        broker.address, transactional_id=name, request_size_bytes_max=10_000
    ).sync() as producer:

        def attempt() -> None:
            with producer.transaction():
                producer.send(topic, b"good", partition=0)
                producer.send(topic, b"x" * 20_000, partition=0)

        with pytest.raises(TransactionAborted) as aborted:
            attempt()
        assert isinstance(aborted.value.cause, MessageTooLarge)
        outside = producer.send(topic, b"outside")
        assert isinstance(outside.exception(5), InvalidRequest)
        with producer.transaction():
            delivery = producer.send(topic, b"after", partition=0)
        assert delivery.done()
    assert values(asyncio.run(read_all(broker, topic))) == ["after"]


async def test_fetches_of_what_was_aborted_end(
    broker: TransactionalBroker, topic: str, name: str
) -> None:
    """A consumer that iterates is given what comes after, not the aborted records before."""
    async with (
        Producer(broker.address, transactional_id=name) as producer,
        Consumer(
            broker.address, isolation_level="read_committed", fetch_max_wait_ms=50
        ) as consumer,
    ):
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()

        async def attempt() -> None:
            async with producer.transaction():
                for _ in range(20):
                    await producer.send(topic, b"aborted", partition=0)
                await producer.flush()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await attempt()
        async with producer.transaction():
            await producer.send(topic, b"committed", partition=0)
        async for record in consumer:
            assert (record.value, record.offset) == (b"committed", 21)
            break
