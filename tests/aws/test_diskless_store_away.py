"""A node whose object store refuses for long: producers of diskless topics wait, all others do not."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from tests.aws.buckets import make_bucket
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.store_proxy import S3, STORE_PASSES, StoreBehaviour, StoreProxy
from tests.support.waiting import eventually_async
from tests.support.wire_client import frame, produce_body

BUCKET = "tidelog-store-away"
LIMIT_BYTES = 1 << 20  # the least that diskless.buffer.max.bytes may be
VALUE_BYTES = 50_000
CONNECTION_COUNT = 20
REQUESTS_OF_CONNECTION = 60  # 60 MB in all
REFUSES = StoreBehaviour(throttled_part=1.0, methods=frozenset({"PUT"}))

Scenario = Callable[[NodeProcess, StoreProxy], Awaitable[None]]


class Flood:
    """Connections that send without waiting, and count what they are answered."""

    def __init__(self, port: int, topic: str) -> None:
        body = produce_body(topic, batch_of(b"x" * VALUE_BYTES), acks=-1, timeout_ms=120_000)
        self._port = port
        self._frame = frame(0, 8, 7, body, tags=b"")
        self._error_at = 4 + 4 + 2 + len(topic) + 4 + 4
        self.sent_bytes = 0
        self.errors: list[int] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(CONNECTION_COUNT)))

    async def _one(self) -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)  # else it holds megabytes
        raw.setblocking(False)
        await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", self._port))
        reader, writer = await asyncio.open_connection(sock=raw)

        async def send() -> None:
            for _ in range(REQUESTS_OF_CONNECTION):
                writer.write(self._frame)
                await writer.drain()
                self.sent_bytes += len(self._frame)

        sending = asyncio.create_task(send())
        for _ in range(REQUESTS_OF_CONNECTION):
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            answer = await reader.readexactly(size)
            self.errors.append(struct.unpack_from(">h", answer, self._error_at)[0])
        await sending
        writer.close()


def metric(node: NodeProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{node.http_address}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"{name} is not served")


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


async def settled(value: Callable[[], int], seconds: float) -> int:
    """Return the value once it has not changed for so long."""
    last, since = value(), 0.0
    while since < seconds:
        await asyncio.sleep(0.1)
        now = value()
        last, since = now, since + 0.1 if now == last else 0.0
    return last


def play(endpoint: str, folder: Path, scenario: Scenario, **config: str) -> None:
    """Run the scenario with a node whose store is behind a proxy."""
    make_bucket(endpoint, BUCKET)

    async def main() -> None:
        async with StoreProxy(endpoint, random.Random(1), S3) as proxy:
            node = NodeProcess(
                folder / "node",
                object_store=f"s3://{BUCKET}/{uuid4().hex}",
                config=config,
                environment={"AWS_ENDPOINT_URL": proxy.url},
                arguments=("--http-port", "0"),
            )
            await asyncio.to_thread(node.start)
            try:
                await scenario(node, proxy)
            finally:
                await asyncio.to_thread(node.stop)

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.usefixtures("aws_credentials")
def test_a_store_that_refuses_for_long_fills_nothing_but_its_buffer(
    ministack_endpoint: str, tmp_path: Path
) -> None:
    limit = {"diskless.buffer.max.bytes": str(LIMIT_BYTES)}
    play(ministack_endpoint, tmp_path, flood_it, **limit)


async def flood_it(node: NodeProcess, proxy: StoreProxy) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    topics = [
        NewTopic("diskless", 1, 1, config={"diskless.enable": "true"}),
        NewTopic("plain", 1, 1),
    ]
    for made in admin.create_topics(topics).values():
        await asyncio.to_thread(made.result, 60)
    await eventually_async(lambda: is_led(node, "diskless"))
    proxy.behave(REFUSES)
    flood = Flood(node.port, "diskless")
    running = asyncio.create_task(flood.run())
    sent_bytes = await settled(lambda: flood.sent_bytes, 2.0)
    assert flood.errors == []
    assert sent_bytes < CONNECTION_COUNT * REQUESTS_OF_CONNECTION * VALUE_BYTES / 2
    buffered_bytes = await asyncio.to_thread(metric, node, "tidelog_diskless_buffered_bytes")
    # One request of each connection may have been read when the buffer was full.
    assert LIMIT_BYTES <= buffered_bytes <= LIMIT_BYTES + (CONNECTION_COUNT + 1) * VALUE_BYTES * 1.1
    resident = resident_bytes(node.pid)
    assert await is_led(node, "plain")  # others are served
    await asyncio.sleep(3)
    assert flood.sent_bytes == sent_bytes
    assert (
        await asyncio.to_thread(metric, node, "tidelog_diskless_buffered_bytes") == buffered_bytes
    )
    assert resident_bytes(node.pid) - resident < 8 << 20
    assert proxy.counts["throttled"] > 5
    proxy.behave(STORE_PASSES)
    async with asyncio.timeout(120):
        await running
    assert flood.errors == [0] * CONNECTION_COUNT * REQUESTS_OF_CONNECTION
    assert await asyncio.to_thread(metric, node, "tidelog_diskless_buffered_bytes") == 0
    assert node.log.count("Traceback") == 0


@pytest.mark.slow
@pytest.mark.usefixtures("aws_credentials")
def test_a_node_whose_store_ignores_conditions_refuses_diskless_topics_alone(
    ministack_endpoint: str, tmp_path: Path
) -> None:
    async def scenario(node: NodeProcess, proxy: StoreProxy) -> None:
        proxy.behave(StoreBehaviour(overwrites=True))
        admin = AdminClient({"bootstrap.servers": node.address})
        diskless = NewTopic("diskless", 1, 1, config={"diskless.enable": "true"})
        for _ in range(2):
            made = admin.create_topics([diskless, NewTopic("plain", 1, 1)])
            with pytest.raises(KafkaException, match="If-None-Match") as refused:
                await asyncio.to_thread(made["diskless"].result, 60)
            assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
            assert f"s3://{BUCKET}/" in str(refused.value)
        await eventually_async(lambda: is_led(node, "plain"))
        assert "diskless" not in admin.list_topics(timeout=30).topics

    play(ministack_endpoint, tmp_path, scenario)


async def is_led(node: NodeProcess, topic: str) -> bool:
    """Whether a record is acknowledged."""
    one = Flood(node.port, topic)
    reader, writer = await asyncio.open_connection("127.0.0.1", node.port)
    writer.write(one._frame)
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    answer = await reader.readexactly(size)
    writer.close()
    return bool(struct.unpack_from(">h", answer, one._error_at)[0] == 0)
