"""Nodes whose answers are nonsense, or none: the client's tasks live on, and errors have types."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from kio.schema.metadata.v13.request import MetadataRequest
from tidelog import Consumer, Producer
from tidelog.cluster import Cluster
from tidelog.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    DeliveryTimedOut,
    InvalidRequest,
    MalformedResponse,
    RequestTimedOut,
)
from tidelog.options import ClientOptions
from tidelog.wire.answer_frames import ANSWER_SIZE_BYTES_MAX, FETCH_SIZE_BYTES_MAX
from tidelog.wire.connection import THROTTLE_S_MAX, Address
from tidelog.wire.opening import open_connection
from tidelog.wire.requests import (
    API_VERSIONS,
    FETCH_BY_NAME,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
    encode_request,
)
from tidelog.wire.sasl import SaslToken
from tidelog_core.wire_messages import build

from tests.sdk.scripted_node import HOST, NODE_ID, TOPIC, ScriptedNode, fetched, of
from tests.support.waiting import eventually_async

IMPOSSIBLE = [("a" * 64, 9092), ("a..b", 9092), ("a\0b", 9092), (HOST, 70_000), (HOST, -1)]
# All of them are 127.0.0.1.
SPELLINGS = ["127.1", "127.0.1", "0x7f.1", "0x7f.0.1", "2130706433", "0177.1", "0x7f000001"]
METADATA_REQUEST = build(MetadataRequest, topics=())


async def polled(node: ScriptedNode, seconds: float) -> Consumer:
    """A consumer that reads from the beginning, and polls for so long."""
    consumer = Consumer(node.address)
    consumer.assign([(TOPIC, 0)])
    consumer.seek((TOPIC, 0), 0)
    await consumer.poll(timeout_ms=1000 * seconds)
    return consumer


@pytest.mark.parametrize(("host", "port"), IMPOSSIBLE)
async def test_an_address_that_cannot_be_is_no_connection(host: str, port: int) -> None:
    with pytest.raises(ConnectionFailed, match="cannot connect to"):
        await open_connection(Address(host, port), client_id="test", timeout_s=5)


@pytest.mark.parametrize(("host", "port"), IMPOSSIBLE)
async def test_metadata_with_an_address_that_cannot_be_are_outlived(host: str, port: int) -> None:
    """Its task once ended with the error of another library, and nothing was known ever after."""
    async with ScriptedNode() as node:
        node.set(METADATA, lambda _: node.metadata({NODE_ID: (host, port)}))
        async with Producer(node.address, retry_backoff_ms=10) as producer:
            delivery = await producer.send(TOPIC, b"v")
            await asyncio.sleep(0.2)
            assert not delivery.done()
            node.set(METADATA, lambda _: node.metadata())
            async with asyncio.timeout(20):
                assert (await delivery).offset == 0


async def test_the_bootstrap_servers_are_asked_before_all_nodes_that_are_known() -> None:
    """All addresses of a cluster may go at once, and each attempt takes the request timeout."""
    async with ScriptedNode() as node, ScriptedNode() as gone:
        gone.is_silent = True
        addresses = {number: (name, gone.port) for number, name in enumerate(SPELLINGS)}
        node.set(METADATA, lambda _: node.metadata(addresses))
        options = ClientOptions((Address(HOST, node.port),), request_timeout_ms=300)
        cluster = Cluster(options)
        await cluster.start()
        try:
            for connection in [line.connection for line in cluster._connections.lines.values()]:
                assert connection is not None
                connection.abort()
            before, gone_before = node.connection_count, gone.connection_count
            await cluster.any_connection()
            assert node.connection_count == before + 1
            assert gone.connection_count - gone_before <= 3
        finally:
            await cluster.close()


async def test_a_partition_that_never_appears_does_not_heat_up_the_nodes() -> None:
    async with ScriptedNode() as node:
        consumer = Consumer(node.address, retry_backoff_ms=10)
        consumer.assign([(TOPIC, 99)])
        consumer.seek((TOPIC, 99), 0)
        async with consumer:
            assert not await consumer.poll(timeout_ms=3_000)
            # 20 of them in quick order, and then one a second.
            assert 2 < node.count(METADATA) < 40


async def test_a_large_answer_is_for_fetches_only() -> None:
    """What is decoded takes a multiple of its size."""

    def announce(size: int) -> Any:
        async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for api in (API_VERSIONS, METADATA):
                (length,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(length)
                if api is API_VERSIONS:
                    body = request[4:8] + struct.pack(">hb", 0, 3)
                    body += struct.pack(">hhhbhhhb", 3, 0, 12, 0, 1, 4, 12, 0) + bytes(5)
                    writer.write(struct.pack(">i", len(body)) + body)
                else:
                    for part in (struct.pack(">i", size), request[4:8], bytes(100_000)):
                        writer.write(part)
                        await writer.drain()
            await reader.read()
            writer.close()

        return script

    for size, api, error in (
        (ANSWER_SIZE_BYTES_MAX + 1, METADATA, MalformedResponse),
        (ANSWER_SIZE_BYTES_MAX, METADATA, RequestTimedOut),
        (ANSWER_SIZE_BYTES_MAX + 1, FETCH_BY_NAME, RequestTimedOut),
        (FETCH_SIZE_BYTES_MAX + 1, FETCH_BY_NAME, MalformedResponse),
    ):
        server = await asyncio.start_server(announce(size), HOST, 0)
        async with server:
            address = Address(HOST, server.sockets[0].getsockname()[1])
            connection = await open_connection(address, client_id="test", timeout_s=20)
            message = METADATA_REQUEST if api is METADATA else _fetch_request()
            timeout_s = 20 if error is MalformedResponse else 0.3
            with pytest.raises(error, match=f"{size} bytes" if timeout_s == 20 else "within"):
                await connection.request(api, message, timeout_s=timeout_s)
            await connection.close()


def _fetch_request() -> Any:
    from kio.schema.fetch.v12.request import FetchRequest

    return build(FetchRequest, topics=())


async def test_a_throttle_time_of_weeks_does_not_keep_a_call_for_weeks() -> None:
    import datetime

    async with ScriptedNode() as node:
        forever = datetime.timedelta(milliseconds=2**31 - 1)
        node.set(METADATA, lambda _: of(METADATA, throttle_time=forever, cluster_id="c"))
        connection = await open_connection(Address(HOST, node.port), client_id="test", timeout_s=20)
        loop = asyncio.get_running_loop()
        await connection.request(METADATA, METADATA_REQUEST, timeout_s=20)
        until = loop.time() + THROTTLE_S_MAX + 20
        waiting = connection.send(METADATA, METADATA_REQUEST, timeout_s=20)
        (pending,) = connection._pending.values()
        assert pending.timer.when() <= until
        await connection.close()
        with pytest.raises(ConnectionFailed):
            await waiting


@pytest.mark.parametrize("milliseconds", [-1, -(2**31)])
async def test_a_throttle_time_below_zero_changes_nothing(milliseconds: int) -> None:
    import datetime

    async with ScriptedNode() as node:
        strange = datetime.timedelta(milliseconds=milliseconds)
        node.set(METADATA, lambda _: of(METADATA, throttle_time=strange, cluster_id="c"))
        connection = await open_connection(Address(HOST, node.port), client_id="test", timeout_s=20)
        for _ in range(2):
            answer = await connection.request(METADATA, METADATA_REQUEST, timeout_s=20)
            assert answer.cluster_id == "c"
        await connection.close()


async def test_a_node_that_reads_nothing_gets_no_more_unanswered_requests() -> None:
    async with ScriptedNode() as node:
        async with Producer(
            node.address, acks=0, request_timeout_ms=300, retry_backoff_ms=10
        ) as producer:
            await producer.send_and_wait(TOPIC, b"before")
            node.is_deaf = True
            first = node.connection_count
            deliveries = [await producer.send(TOPIC, bytes(60_000)) for _ in range(300)]
            await eventually_async(lambda: node.connection_count > first, "it connects again")
            async with asyncio.timeout(30):
                node.is_deaf = False
                await asyncio.gather(*(one.wait() for one in deliveries))
                await producer.send_and_wait(TOPIC, b"after")
        assert node.count(PRODUCE) > 1


def test_a_value_that_a_request_has_no_room_for_is_refused() -> None:
    from kio.schema.offset_commit.v9.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )

    for offset, group in ((2**63, "g"), (0, "g" * 40_000)):
        one = build(OffsetCommitRequestPartition, partition_index=0, committed_offset=offset)
        topic = build(OffsetCommitRequestTopic, name="t", partitions=(one,))
        message = build(OffsetCommitRequest, group_id=group, topics=(topic,))
        with pytest.raises(InvalidRequest, match="offset_commit"):
            encode_request(OFFSET_COMMIT, 5, correlation_id=1, client_id=b"c", message=message)


async def test_a_function_for_tokens_that_fails_later_ends_no_task() -> None:
    """Without it the client could not reconnect, and would not say why."""
    from kio.schema.sasl_authenticate.v2.response import SaslAuthenticateResponse
    from tidelog.wire.requests import SASL_AUTHENTICATE, SASL_HANDSHAKE

    calls = []

    def token() -> str:
        calls.append(1)
        if 1 < len(calls) < 4:
            raise KeyError("vault")
        return "a.b.c"

    async with ScriptedNode() as node:
        node.set(SASL_HANDSHAKE, lambda _: of(SASL_HANDSHAKE, mechanisms=("OAUTHBEARER",)))
        node.set(SASL_AUTHENTICATE, lambda _: build(SaslAuthenticateResponse))
        producer = Producer(
            node.address, sasl=SaslToken(token), reconnect_backoff_ms=10, retry_backoff_ms=10
        )
        async with producer:
            await producer.send_and_wait(TOPIC, b"v")
            for line in producer._cluster._connections.lines.values():
                assert line.connection is not None
                line.connection.abort()
            producer._cluster.invalidate()
            async with asyncio.timeout(20):
                await producer.send_and_wait(TOPIC, b"v")
        assert len(calls) >= 4


async def test_a_function_for_tokens_that_fails_first_is_an_error_with_its_cause() -> None:
    from tidelog.wire.requests import SASL_HANDSHAKE

    def token() -> str:
        raise KeyError("vault")

    async with ScriptedNode() as node:
        node.set(SASL_HANDSHAKE, lambda _: of(SASL_HANDSHAKE, mechanisms=("OAUTHBEARER",)))
        producer = Producer(node.address, sasl=SaslToken(token))
        with pytest.raises(AuthenticationFailed, match="vault") as refused:
            await producer.start()
        assert isinstance(refused.value.__cause__, KeyError)
        await producer.close()


async def test_a_producer_that_gets_no_answer_says_so_in_its_deliveries() -> None:
    async with (
        ScriptedNode(produce=lambda _: None) as node,
        Producer(
            node.address, request_timeout_ms=300, delivery_timeout_ms=900, retry_backoff_ms=10
        ) as producer,
    ):
        with pytest.raises(DeliveryTimedOut) as late:
            await producer.send_and_wait(TOPIC, b"v")
        assert late.value.may_be_written


async def test_fetches_without_an_answer_leave_polls_their_timeout() -> None:
    async with ScriptedNode(fetch_by_name=lambda _: None) as node:
        consumer = await polled(node, 0.5)
        assert node.count(FETCH_BY_NAME) == 1
        await consumer.close()


async def test_fetches_that_bring_nothing_are_not_repeated_at_once() -> None:
    async with ScriptedNode(fetch_by_name=fetched) as node:
        consumer = await polled(node, 1)
        assert 1 < node.count(FETCH_BY_NAME) < 40
        node.set(FETCH_BY_NAME, lambda _: of(FETCH_BY_NAME))  # not even the partitions
        before = node.count(FETCH_BY_NAME)
        await consumer.poll(timeout_ms=1000)
        assert 1 < node.count(FETCH_BY_NAME) - before < 40
        await consumer.close()
