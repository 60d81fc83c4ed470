"""Leaders and coordinators that answer nonsense: no hot loop, no silent loss, no untyped error."""

from __future__ import annotations

import asyncio
import datetime
import itertools
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog import Admin, Consumer, Producer, RebalanceListener, TopicPartition
from tidelog.consuming.fetched import Chunk
from tidelog.consuming.group_protocol import encode_assignment
from tidelog.errors import (
    CommitFailed,
    CorruptRecordBatch,
    EntryNotAnswered,
    InvalidRequest,
    MalformedResponse,
    TidelogError,
)
from tidelog.wire.requests import (
    CONSUMER_GROUP_HEARTBEAT,
    CREATE_TOPICS,
    DELETE_RECORDS,
    DESCRIBE_GROUPS,
    FETCH_BY_NAME,
    FIND_COORDINATOR,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    PRODUCE,
    SYNC_GROUP,
    TXN_OFFSET_COMMIT,
)

from tests.sdk.scripted_node import (
    HOST,
    NODE_ID,
    TOPIC,
    TOPIC_ID,
    ScriptedNode,
    committed,
    fetched,
    listed,
    of,
    produced,
)
from tests.support.batches import batch_of

TP = TopicPartition(TOPIC, 0)
CALM_MAX = 40  # of requests in a second or two; a hot loop sends thousands


async def poll_for(consumer: Consumer, seconds: float) -> None:
    """Poll, through errors of the SDK."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while loop.time() < until:
        try:
            await consumer.poll(timeout_ms=(until - loop.time()) * 1000)
        except TidelogError:
            await asyncio.sleep(0.05)


def assigned(node: ScriptedNode, **options: Any) -> Consumer:
    consumer = Consumer(node.address, auto_offset_reset="earliest", **options)
    consumer.assign([TP])
    return consumer


# -- fetching --


@pytest.mark.parametrize("base_offset", [2**63 - 1, 2**63 - 2, 2**63 - 3])
def test_offsets_beyond_64_bits_are_no_batches(base_offset: int) -> None:
    data = batch_of(b"a", b"b", b"c", base_offset=base_offset)
    with pytest.raises(CorruptRecordBatch):
        Chunk(TP, data)


def test_the_last_offset_that_a_request_can_name_is_read() -> None:
    chunk = Chunk(TP, batch_of(b"a", b"b", base_offset=2**63 - 3))
    assert [one.offset for one in chunk.next_batch(0)[0]] == [2**63 - 3, 2**63 - 2]
    assert chunk.next_offset == 2**63 - 1


async def test_a_batch_at_the_end_of_all_offsets_does_not_heat_up_the_fetcher() -> None:
    data = batch_of(b"a", base_offset=2**63 - 1)
    async with (
        ScriptedNode(fetch_by_name=lambda r: fetched(r, data, high_watermark=9)) as node,
        assigned(node) as consumer,
    ):
        with pytest.raises(CorruptRecordBatch):
            await consumer.poll(timeout_ms=10_000)


@pytest.mark.parametrize("replica", [NODE_ID, 2, 77])
async def test_replicas_that_name_each_other_are_not_followed(replica: int) -> None:
    """Nor one that names itself, or no node at all: they would be asked in turns for ever."""
    other = 1 if replica == 2 else replica

    def fetch(request: Any) -> Any:
        return fetched(request, preferred_read_replica=replica, high_watermark=5)

    async with (
        ScriptedNode(fetch_by_name=fetch) as node,
        ScriptedNode(
            fetch_by_name=lambda r: fetched(r, preferred_read_replica=other, high_watermark=5)
        ) as second,
    ):
        brokers = {NODE_ID: (HOST, node.port), 2: (HOST, second.port)}
        for one in (node, second):
            one.set(_metadata_api(), lambda _: node.metadata(brokers))
        async with assigned(node, rack="r") as consumer:
            await poll_for(consumer, 1)
            assert node.count(FETCH_BY_NAME) + second.count(FETCH_BY_NAME) < 2 * CALM_MAX


async def test_a_replica_that_is_not_known_yet_is_looked_up_and_read() -> None:
    """A node that joined lately: the metadata would come only once they are old."""
    async with ScriptedNode() as node, ScriptedNode() as second:
        brokers = {NODE_ID: (HOST, node.port)}

        def name_second(request: Any) -> Any:
            brokers[2] = (HOST, second.port)
            return fetched(request, preferred_read_replica=2, high_watermark=1)

        node.set(FETCH_BY_NAME, name_second)
        node.set(_metadata_api(), lambda _: node.metadata(brokers))
        second.set(FETCH_BY_NAME, lambda r: fetched(r, batch_of(b"v"), high_watermark=1))
        async with assigned(node, rack="r") as consumer:
            (record,) = await consumer.poll(timeout_ms=20_000)
            assert record.value == b"v"


async def test_a_wait_that_is_shorter_than_a_retrys_is_no_answer_at_once() -> None:
    """A consumer that asks for short waits got its records a tenth of a second late."""
    times: list[float] = []

    async def fetch(request: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(request.max_wait.total_seconds())
        return fetched(request)

    async with (
        ScriptedNode(fetch_by_name=fetch) as node,
        assigned(node, fetch_max_wait_ms=10) as consumer,
    ):
        async with asyncio.timeout(60):
            while len(times) < 40:
                await consumer.poll(timeout_ms=50)
        # The first ones are sent at once in any case.
        assert min(later - sooner for sooner, later in itertools.pairwise(times[10:])) < 0.05


def _metadata_api() -> Any:
    from tidelog.wire.requests import METADATA

    return METADATA


async def test_offsets_that_are_always_out_of_range_are_reset_at_leisure() -> None:
    def fetch(request: Any) -> Any:
        return fetched(request, error=ErrorCode.offset_out_of_range)

    async with ScriptedNode(fetch_by_name=fetch) as node, assigned(node) as consumer:
        await poll_for(consumer, 1.5)
        assert 1 < node.count(FETCH_BY_NAME) < CALM_MAX
        assert node.count(LIST_OFFSETS) < 8


@pytest.mark.parametrize("offset", [-1, -5, -(2**63)])
async def test_an_end_below_zero_is_no_offset(offset: int) -> None:
    async with (
        ScriptedNode(list_offsets=lambda r: listed(r, offset)) as node,
        assigned(node, request_timeout_ms=1_000) as consumer,
    ):
        await poll_for(consumer, 1)
        assert 1 < node.count(LIST_OFFSETS) < CALM_MAX
        assert node.count(FETCH_BY_NAME) == 0
        with pytest.raises(MalformedResponse, match=r"lacks t-0$"):
            await consumer.end_offsets([TP])


async def test_an_answer_without_the_partition_is_asked_for_again_at_leisure() -> None:
    async with (
        ScriptedNode(list_offsets=lambda _: of(LIST_OFFSETS)) as node,
        assigned(node, request_timeout_ms=1_000) as consumer,
    ):
        await poll_for(consumer, 1)
        assert 1 < node.count(LIST_OFFSETS) < CALM_MAX
        with pytest.raises(MalformedResponse):
            await consumer.beginning_offsets([TP])


@pytest.mark.parametrize("offset", [2**63, 2**70, -1, 1.5, True])
async def test_an_offset_that_cannot_be_is_refused_where_it_is_given(offset: Any) -> None:
    async with ScriptedNode() as node, assigned(node, group_id="g") as consumer:
        with pytest.raises(InvalidRequest, match="offset"):
            consumer.seek(TP, offset)
        with pytest.raises(InvalidRequest, match="offset"):
            await consumer.commit({TP: offset})


@pytest.mark.parametrize("number", [2**31, 2**40, True])
async def test_a_partition_that_cannot_be_is_refused_where_it_is_given(number: Any) -> None:
    async with ScriptedNode() as node, Consumer(node.address) as consumer:
        with pytest.raises(InvalidRequest, match="partition"):
            consumer.assign([(TOPIC, number)])


@pytest.mark.parametrize("time_ms", [2**63, -1, 1.5])
async def test_a_time_that_cannot_be_is_refused_where_it_is_given(time_ms: Any) -> None:
    async with ScriptedNode() as node, Consumer(node.address) as consumer:
        with pytest.raises(InvalidRequest, match="a time must be"):
            await consumer.offsets_for_times({TP: time_ms})


# -- producing --


async def test_a_producer_id_below_zero_is_none_and_asked_for_at_leisure() -> None:
    strange = of(INIT_PRODUCER_ID, producer_id=-1, producer_epoch=0)
    async with (
        ScriptedNode(init_producer_id=lambda _: strange) as node,
        Producer(node.address) as producer,
    ):
        delivery = await producer.send(TOPIC, b"v")
        await asyncio.sleep(1)
        assert 1 < node.count(INIT_PRODUCER_ID) < CALM_MAX
        node.set(INIT_PRODUCER_ID, lambda _: of(INIT_PRODUCER_ID, producer_id=5))
        async with asyncio.timeout(20):
            await delivery


async def test_a_leader_that_refuses_every_sequence_gets_them_at_leisure() -> None:
    def produce(request: Any) -> Any:
        return produced(request, ErrorCode.out_of_order_sequence_number)

    async with ScriptedNode(produce=produce) as node, Producer(node.address) as producer:
        delivery = await producer.send(TOPIC, b"v")
        await asyncio.sleep(1)
        assert 1 < node.count(PRODUCE) < CALM_MAX
        node.set(PRODUCE, produced)
        async with asyncio.timeout(20):
            await delivery


# -- coordinators --


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_coordinator_that_no_answer_names_is_looked_for_at_leisure(protocol: Any) -> None:
    async with (
        ScriptedNode(find_coordinator=lambda _: of(FIND_COORDINATOR)) as node,
        Consumer(node.address, group_id="g", group_protocol=protocol) as consumer,
    ):
        consumer.subscribe(TOPIC)
        await poll_for(consumer, 1)
        assert 0 < node.count(FIND_COORDINATOR) < CALM_MAX
        other = Consumer(node.address, group_id="g", request_timeout_ms=500)
        async with other:
            with pytest.raises(MalformedResponse, match="group 'g'"):
                await other.committed([TP])


async def test_committed_offsets_that_an_answer_leaves_out_are_not_taken_for_none() -> None:
    """The partition would be read from its end: what was not processed would be left out."""

    def fetch(_: Any) -> Any:
        return of(
            OFFSET_FETCH, groups=(of(OFFSET_FETCH, "OffsetFetchResponseGroup", group_id="g"),)
        )

    async with ScriptedNode(offset_fetch=fetch) as node:
        consumer = Consumer(node.address, group_id="g", request_timeout_ms=700)
        consumer.assign([TP])
        async with consumer:
            await poll_for(consumer, 1)
            assert node.count(LIST_OFFSETS) == node.count(FETCH_BY_NAME) == 0
            assert 1 < node.count(OFFSET_FETCH) < CALM_MAX
            with pytest.raises(MalformedResponse, match=r"lacks t-0$"):
                await consumer.committed([TP])
            node.set(OFFSET_FETCH, lambda _: of(OFFSET_FETCH))
            with pytest.raises(MalformedResponse):
                await consumer.committed([TP])


async def test_a_commit_that_an_answer_leaves_out_is_not_done() -> None:
    async with ScriptedNode(offset_commit=lambda _: of(OFFSET_COMMIT)) as node:
        consumer = Consumer(node.address, group_id="g", request_timeout_ms=500)
        consumer.assign([TP])
        async with consumer:
            with pytest.raises(MalformedResponse, match=r"lacks t-0$"):
                await consumer.commit({TP: 3})
            assert node.count(OFFSET_COMMIT) > 1


async def test_offsets_that_a_transaction_leaves_out_abort_it() -> None:
    from tidelog.consuming.records import GroupMetadata
    from tidelog.errors import TransactionAborted
    from tidelog.wire.requests import ADD_OFFSETS_TO_TXN, END_TXN

    async with ScriptedNode() as node:
        node.set(ADD_OFFSETS_TO_TXN, lambda _: of(ADD_OFFSETS_TO_TXN))
        node.set(TXN_OFFSET_COMMIT, lambda _: of(TXN_OFFSET_COMMIT))
        node.set(END_TXN, lambda _: of(END_TXN, producer_id=-1, producer_epoch=-1))
        async with Producer(node.address, transactional_id="x", max_block_ms=700) as producer:
            with pytest.raises(TransactionAborted, match=r"lacks t-0$"):
                async with producer.transaction() as transaction:
                    await transaction.send_offsets({TP: 3}, GroupMetadata("g"))


async def test_records_of_a_partition_that_was_not_added_to_a_transaction_are_not_sent() -> None:
    """They would not be part of it: readers of committed records would see them at once."""
    from tidelog.errors import DeliveryTimedOut
    from tidelog.wire.requests import ADD_PARTITIONS_TO_TXN, END_TXN

    async with ScriptedNode() as node:
        node.set(ADD_PARTITIONS_TO_TXN, lambda _: of(ADD_PARTITIONS_TO_TXN))
        node.set(END_TXN, lambda _: of(END_TXN, producer_id=-1, producer_epoch=-1))
        options: dict[str, Any] = {"request_timeout_ms": 300, "delivery_timeout_ms": 900}
        async with Producer(node.address, transactional_id="x", **options) as producer:
            with pytest.raises(DeliveryTimedOut):
                async with producer.transaction():
                    await producer.send_and_wait(TOPIC, b"v")
            assert 1 < node.count(ADD_PARTITIONS_TO_TXN) < CALM_MAX
            assert node.count(PRODUCE) == 0


@pytest.mark.parametrize("interval_ms", [0, -1, -(2**31)])
async def test_a_heartbeat_interval_of_nothing_is_a_pace_still(interval_ms: int) -> None:
    def beat(request: Any) -> Any:
        return of(
            CONSUMER_GROUP_HEARTBEAT,
            member_id=request.member_id,
            member_epoch=1,
            heartbeat_interval=datetime.timedelta(milliseconds=interval_ms),
        )

    async with (
        ScriptedNode(consumer_group_heartbeat=beat) as node,
        Consumer(node.address, group_id="g", group_protocol="consumer") as consumer,
    ):
        consumer.subscribe(TOPIC)
        await poll_for(consumer, 1)
        assert 1 < node.count(CONSUMER_GROUP_HEARTBEAT) < CALM_MAX


async def test_a_heartbeat_interval_of_weeks_does_not_lose_the_membership() -> None:
    def beat(request: Any) -> Any:
        return of(
            CONSUMER_GROUP_HEARTBEAT,
            member_id=request.member_id,
            member_epoch=1,
            heartbeat_interval=datetime.timedelta(milliseconds=2**31 - 1),
        )

    async with (
        ScriptedNode(consumer_group_heartbeat=beat) as node,
        Consumer(node.address, group_id="g", group_protocol="consumer") as consumer,
    ):
        consumer.subscribe(TOPIC)
        await poll_for(consumer, 0.5)
        assert consumer._membership is not None
        assert consumer._membership._interval_s <= 300


async def test_a_commit_whose_epoch_is_always_stale_fails_in_the_end() -> None:
    epoch = itertools.count(1)

    def beat(request: Any) -> Any:
        return of(
            CONSUMER_GROUP_HEARTBEAT,
            member_id=request.member_id,
            member_epoch=next(epoch),
            heartbeat_interval=datetime.timedelta(milliseconds=100),
        )

    def commit(request: Any) -> Any:
        return committed(request, ErrorCode.stale_member_epoch)

    async with (
        ScriptedNode(consumer_group_heartbeat=beat, offset_commit=commit) as node,
        Consumer(node.address, group_id="g", group_protocol="consumer") as consumer,
    ):
        consumer.subscribe(TOPIC)
        await poll_for(consumer, 0.5)
        assert consumer._membership is not None
        # Of a partition that it has: another member's offsets are not committed again.
        consumer._positions.replace([TP])
        with pytest.raises(CommitFailed, match="another epoch"):
            await consumer.commit({TP: 3})
        assert node.count(OFFSET_COMMIT) == 10


class Group:
    """Answers for a classic group of one member, whose assignment the test says."""

    def __init__(self, assignment: bytes) -> None:
        self.assignment = assignment
        self.generation = 0

    def answer_in(self, node: ScriptedNode) -> None:
        node.set(JOIN_GROUP, self.join)
        node.set(SYNC_GROUP, lambda _: of(SYNC_GROUP, assignment=self.assignment))
        node.set(HEARTBEAT, lambda _: of(HEARTBEAT))
        node.set(LEAVE_GROUP, lambda _: of(LEAVE_GROUP))
        node.set(OFFSET_FETCH, _nothing_committed)

    def join(self, request: Any) -> Any:
        self.generation += 1
        return of(
            JOIN_GROUP,
            generation_id=self.generation,
            protocol_type="consumer",
            protocol_name=request.protocols[0].name,
            leader="another",
            member_id="m",
        )


def _nothing_committed(request: Any) -> Any:
    api = OFFSET_FETCH
    return of(
        api,
        groups=tuple(
            of(
                api,
                "OffsetFetchResponseGroup",
                group_id=group.group_id,
                topics=tuple(
                    of(
                        api,
                        "OffsetFetchResponseTopics",
                        name=topic.name,
                        partitions=tuple(
                            of(
                                api,
                                "OffsetFetchResponsePartitions",
                                partition_index=int(number),
                                committed_offset=-1,
                                committed_leader_epoch=-1,
                                metadata="",
                            )
                            for number in topic.partition_indexes
                        ),
                    )
                    for topic in group.topics
                ),
            )
            for group in request.groups
        ),
    )


@pytest.mark.parametrize(
    "assignment", [b"\0", b"\0\3\xff\xff\xff\xff", b"x" * 100, encode_assignment([(TOPIC, -3)])]
)
async def test_an_assignment_of_nonsense_is_an_error_of_the_poll(assignment: bytes) -> None:
    async with ScriptedNode() as node:
        Group(assignment).answer_in(node)
        async with Consumer(node.address, group_id="g") as consumer:
            consumer.subscribe(TOPIC)
            with pytest.raises(MalformedResponse):
                await consumer.poll(timeout_ms=20_000)


async def test_an_assignment_that_changes_each_time_is_joined_at_leisure() -> None:
    async with ScriptedNode() as node:
        group = Group(b"")
        group.answer_in(node)
        leaders = {0: NODE_ID, 1: NODE_ID}
        node.set(_metadata_api(), lambda _: node.metadata(partitions=leaders))

        def sync(_: Any) -> Any:
            mine = encode_assignment([TopicPartition(TOPIC, group.generation % 2)])
            return of(SYNC_GROUP, assignment=mine)

        node.set(SYNC_GROUP, sync)
        rebalances = of(HEARTBEAT, error_code=ErrorCode.rebalance_in_progress)
        node.set(HEARTBEAT, lambda _: rebalances)
        options: dict[str, Any] = {"heartbeat_interval_ms": 200, "retry_backoff_ms": 200}
        async with Consumer(node.address, group_id="g", **options) as consumer:
            consumer.subscribe(TOPIC)
            await poll_for(consumer, 1.5)
            assert 1 < node.count(JOIN_GROUP) < CALM_MAX


async def test_a_target_with_a_partition_below_zero_is_not_read() -> None:
    api = CONSUMER_GROUP_HEARTBEAT
    target = of(
        api,
        "Assignment",
        topic_partitions=(of(api, "TopicPartitions", topic_id=TOPIC_ID, partitions=(-3,)),),
    )

    def beat(request: Any) -> Any:
        return of(
            api,
            member_id=request.member_id,
            member_epoch=1,
            heartbeat_interval=datetime.timedelta(milliseconds=100),
            assignment=target,
        )

    async with (
        ScriptedNode(consumer_group_heartbeat=beat) as node,
        Consumer(node.address, group_id="g", group_protocol="consumer") as consumer,
    ):
        consumer.subscribe(TOPIC)
        await poll_for(consumer, 1)
        assert not consumer.assignment()
        assert node.count(api) < CALM_MAX


# -- callbacks --


async def test_a_listener_that_polls_is_told_so_instead_of_waiting_for_itself() -> None:
    async with ScriptedNode() as node:
        Group(encode_assignment([TP])).answer_in(node)
        async with Consumer(node.address, group_id="g") as consumer:

            class Polls(RebalanceListener):
                async def on_partitions_assigned(self, partitions: Any) -> None:
                    async for _ in consumer:
                        break

            consumer.subscribe(TOPIC, listener=Polls())
            with pytest.raises(InvalidRequest, match="poll is running already"):
                await consumer.poll(timeout_ms=20_000)


async def test_two_polls_at_once_are_refused() -> None:
    """The second would count the records of the first as processed."""
    async with ScriptedNode() as node, assigned(node) as consumer:
        first = asyncio.create_task(consumer.poll(timeout_ms=300))
        await asyncio.sleep(0.05)
        with pytest.raises(InvalidRequest, match="poll is running already"):
            await consumer.poll()
        assert await first == []
        assert await consumer.poll(timeout_ms=1) == []


# -- administering --


async def test_answers_without_the_entries_that_were_asked_for_are_no_success() -> None:
    async with ScriptedNode() as node:
        node.set(CREATE_TOPICS, lambda _: of(CREATE_TOPICS))
        node.set(DELETE_RECORDS, lambda _: of(DELETE_RECORDS))
        node.set(DESCRIBE_GROUPS, lambda _: of(DESCRIBE_GROUPS))
        async with Admin(node.address, timeout_ms=700) as admin:
            with pytest.raises(EntryNotAnswered, match=r"lacks new$"):
                await admin.create_topic("new")
            with pytest.raises(MalformedResponse, match=r"lacks t-0$"):
                await admin.delete_records({TP: 1})
            with pytest.raises(MalformedResponse, match="group 'g'"):
                await admin.describe_groups(["g"])
