"""Each timeout passes, and what follows is what ``docs/timeouts.md`` says."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from tidelog import Admin, Consumer, Producer, SyncDelivery
from tidelog.errors import (
    BufferExhausted,
    CommitFailed,
    ConnectionFailed,
    DeliveryTimedOut,
    PartitionNotKnown,
    RequestTimedOut,
    TransactionOutcomeUnknown,
    UnknownTopicOrPartition,
)
from tidelog.options import ClientSettings
from tidelog.wire import requests

from tests.sdk.scripted_node import TOPIC, ScriptedNode, of
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually_async
from tools import timeout_reference
from tools.timeout_reference import OF_CALLS, OPTIONS, Timeout

SHORT_MS = 200
ROWS = [*(row for rows in OPTIONS.values() for row in rows), *OF_CALLS]
TIMES_OF_RECORDS = {"timestamp_ms", "timestamps_ms"}

Case = Callable[[ScriptedNode], Awaitable[object]]
cases: dict[tuple[str, str], Case] = {}  # by the page's option and error
# Those that need a cluster: of groups below, of transactions in ``test_transactions.py``.
ELSEWHERE = {
    ("max_poll_interval_ms", "CommitFailed"),
    ("session_timeout_ms", "CommitFailed"),
    ("transaction_timeout_ms", "ProducerFenced"),
    ("transaction_timeout_ms", "TransactionAborted"),
}


def ends_in(name: str, error: type[Exception]) -> Callable[[Case], Case]:
    """Note what lets the named timeout pass, and the error that comes of it."""

    def note(case: Case) -> Case:
        cases[name, error.__name__] = case
        return case

    return note


def is_time(name: str) -> bool:
    return name.endswith(("_ms", "timeout_s")) and name not in TIMES_OF_RECORDS


def producing(node: ScriptedNode, **options: Any) -> Producer:
    return Producer(node.address, retry_backoff_ms=10, **options)


def nothing(_: object) -> None:
    """Answer nothing."""


# -- the page --


def test_every_option_that_is_a_time_is_on_the_page() -> None:
    settings = {name for name in ClientSettings.__annotations__ if is_time(name)}
    for title, rows in OPTIONS.items():
        expected = settings
        if title != "All clients":
            client = {"Producer": Producer, "Consumer": Consumer, "Admin": Admin}[title]
            expected = {name for name in inspect.signature(client).parameters if is_time(name)}
        assert {row.name for row in rows} == expected, title


def test_every_argument_of_a_call_that_is_a_timeout_is_on_the_page() -> None:
    found = {
        (name, default.default)
        for client in (Producer, Consumer, Admin, SyncDelivery)
        for method, call in inspect.getmembers(client, inspect.isfunction)
        if not method.startswith("_")
        for name, default in inspect.signature(call).parameters.items()
        if name.startswith("timeout_")
    }
    assert {(row.name, row.default) for row in OF_CALLS} == found


def test_every_error_on_the_page_is_provoked() -> None:
    errors = {(row.name, error.__name__) for row in ROWS for error in row.errors}
    assert errors == cases.keys() | ELSEWHERE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_row_names_as_many_errors_as_it_has(row: Timeout) -> None:
    text = timeout_reference._follows(row)
    assert [error for error in row.errors if f"`{error.__name__}`" not in text] == []
    assert "{}" not in text


# -- what follows --


@ends_in("bootstrap_timeout_ms", ConnectionFailed)
async def _start_without_an_answer(node: ScriptedNode) -> None:
    node.is_silent = True
    async with Admin(node.address, bootstrap_timeout_ms=SHORT_MS):
        pass


@ends_in("request_timeout_ms", RequestTimedOut)
async def _commit_without_an_answer(node: ScriptedNode) -> None:
    node.set(requests.OFFSET_COMMIT, nothing)
    async with Consumer(node.address, group_id="g", request_timeout_ms=SHORT_MS) as consumer:
        consumer.assign([(TOPIC, 0)])
        await consumer.commit({(TOPIC, 0): 1})


@ends_in("max_block_ms", BufferExhausted)
async def _fill_the_buffer(node: ScriptedNode) -> None:
    node.set(requests.PRODUCE, nothing)
    async with producing(node, buffer_memory_bytes=10_000, max_block_ms=SHORT_MS) as producer:
        try:
            while True:
                await producer.send(TOPIC, b"v" * 1_000)
        finally:
            await producer.close(timeout_s=0)


@ends_in("max_block_ms", UnknownTopicOrPartition)
async def _send_to_a_topic_that_is_not_there(node: ScriptedNode) -> None:
    unknown = of(
        requests.METADATA,
        "MetadataResponseTopic",
        name="absent",
        error_code=ErrorCode.unknown_topic_or_partition,
    )
    known = node.metadata()
    node.set(
        requests.METADATA,
        lambda _: of(
            requests.METADATA,
            brokers=known.brokers,
            cluster_id=known.cluster_id,
            controller_id=known.controller_id,
            topics=(unknown,),
        ),
    )
    async with producing(node, max_block_ms=SHORT_MS) as producer:
        await producer.send("absent", b"v")


@ends_in("max_block_ms", PartitionNotKnown)
async def _send_to_a_partition_that_is_not_there(node: ScriptedNode) -> None:
    async with producing(node, max_block_ms=SHORT_MS) as producer:
        await producer.send(TOPIC, b"v", partition=7)


@ends_in("max_block_ms", RequestTimedOut)
async def _send_without_metadata(node: ScriptedNode) -> None:
    async with producing(node, max_block_ms=SHORT_MS) as producer:
        await producer.send("absent", b"v")  # No answer says anything about it.


@ends_in("max_block_ms", TransactionOutcomeUnknown)
async def _commit_a_transaction_without_an_answer(node: ScriptedNode) -> None:
    node.set(
        requests.ADD_PARTITIONS_TO_TXN,
        lambda request: of(
            requests.ADD_PARTITIONS_TO_TXN,
            results_by_topic_v3_and_below=tuple(
                of(
                    requests.ADD_PARTITIONS_TO_TXN,
                    "AddPartitionsToTxnTopicResult",
                    name=topic.name,
                    results_by_partition=tuple(
                        of(
                            requests.ADD_PARTITIONS_TO_TXN,
                            "AddPartitionsToTxnPartitionResult",
                            partition_index=int(number),
                        )
                        for number in topic.partitions
                    ),
                )
                for topic in request.v3_and_below_topics
            ),
        ),
    )
    node.set(requests.END_TXN, nothing)
    async with (
        producing(node, transactional_id="x", max_block_ms=SHORT_MS) as producer,
        producer.transaction(),
    ):
        await producer.send(TOPIC, b"v")


@ends_in("delivery_timeout_ms", DeliveryTimedOut)
async def _send_without_an_answer(node: ScriptedNode) -> None:
    node.set(requests.PRODUCE, nothing)
    async with producing(
        node, linger_ms=0, request_timeout_ms=SHORT_MS, delivery_timeout_ms=SHORT_MS
    ) as producer:
        await producer.send_and_wait(TOPIC, b"v")


@ends_in("timeout_ms", RequestTimedOut)
async def _administer_without_an_answer(node: ScriptedNode) -> None:
    node.set(requests.LIST_GROUPS, nothing)
    async with Admin(node.address, timeout_ms=SHORT_MS) as admin:
        await admin.list_groups()


@ends_in("timeout_s", TimeoutError)
async def _wait_for_a_delivery(node: ScriptedNode) -> None:
    node.set(requests.PRODUCE, nothing)

    def wait() -> None:
        producer = producing(node, request_timeout_ms=500, delivery_timeout_ms=600).sync()
        with producer:
            producer.send(TOPIC, b"v").result(SHORT_MS / 1000)

    await asyncio.to_thread(wait)


@pytest.mark.parametrize(("name", "error"), cases, ids=lambda value: value)
async def test_a_timeout_ends_in_the_error_on_the_page(name: str, error: str) -> None:
    async with ScriptedNode() as node:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - its type is compared below
            await cases[name, error](node)
    assert raised.type.__name__ == error


async def test_polls_end_without_an_error_and_so_does_a_producer_that_closes() -> None:
    async with ScriptedNode() as node:
        async with Consumer(node.address) as consumer:
            consumer.assign([(TOPIC, 0)])
            assert await consumer.poll(timeout_ms=SHORT_MS) == []
            node.is_silent = True
            assert await consumer.poll(timeout_ms=SHORT_MS) == []
        node.is_silent = False
        node.set(requests.PRODUCE, nothing)
        producer = producing(node)
        delivery = await producer.send(TOPIC, b"v")
        await producer.close(timeout_s=SHORT_MS / 1000)
        with pytest.raises(Exception, match="the producer was closed"):
            await delivery


# -- with a cluster --


@pytest.mark.parametrize(
    "options",
    [{"max_poll_interval_ms": 500}, {"session_timeout_ms": 500}],
    ids=["max_poll_interval_ms", "session_timeout_ms"],
)
async def test_a_member_that_is_late_leaves_its_group_and_cannot_commit(
    node: NodeProcess, topic: str, name: str, options: dict[str, int]
) -> None:
    async with Producer(node.address) as producer:
        await producer.send_and_wait(topic, b"v")
    async with Consumer(
        node.address,
        topics=topic,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **{"heartbeat_interval_ms": 100, **options},  # type: ignore[arg-type]
    ) as consumer:
        async with asyncio.timeout(60):
            while not await consumer.poll():
                pass
        if "session_timeout_ms" in options:
            assert consumer._membership is not None
            await consumer._membership.stop()  # As a loop that is busy for so long sends none.
        async with Admin(node.address) as admin:

            async def has_no_member() -> bool:
                (group,) = (await admin.describe_groups([name])).values()
                return not group.members

            await eventually_async(has_no_member, "the group is empty")
        with pytest.raises(CommitFailed):
            await consumer.commit()
