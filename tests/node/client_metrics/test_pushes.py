"""Metrics of real clients reach a receiver; bombs and junk are refused, and cost little."""

from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import psutil
import pytest
from confluent_kafka import Producer
from kio.schema.push_telemetry.v0.request import PushTelemetryRequest
from tidelog_core.api_keys import ApiKey
from tidelog_core.config import NodeConfig
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.stores.sqlite import SqliteMetadataStore
from tidelog_core.records.codecs import CompressionType, compress
from tidelog_node.assembly.client_metrics import build_client_metrics
from tidelog_node.client_metrics.resource_attributes import FIELDS_MAX
from tidelog_node.client_metrics.subscriptions import (
    INTERVAL_MS_MAX,
    SubscribedMetrics,
    subscription_id,
)
from tidelog_node.wire.messages import build

from tests.support.client_metrics import ask, push, subscribe
from tests.support.http_pages import scrape
from tests.support.node_context import node_context
from tests.support.node_process import NodeProcess
from tests.support.otlp_receiver import OtlpReceiver, metrics_data
from tests.support.peer import Peer
from tests.support.request_contexts import a_session, context_of
from tests.support.waiting import eventually

BYTES_MAX = 1_048_576  # telemetry.max.bytes by default
CPU_SHARE_MAX = 0.6
MEMORY_GROWTH_BYTES_MAX = 64 * 1024 * 1024


class Pushing(NamedTuple):
    """A node that forwards, its receiver, and a client of it."""

    node: NodeProcess
    receiver: OtlpReceiver
    peer: Peer


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pushing]:
    with OtlpReceiver() as receiver:
        node = NodeProcess(
            tmp_path_factory.mktemp("pushing") / "node",
            config={
                "client.metrics.otlp.endpoint": receiver.url,
                "client.metrics.otlp.headers": "x-key=a%20secret",
            },
            arguments=("--http-port", "0"),
        )
        with node, closing(Peer("tidelog", node.port)) as peer:
            subscribe(peer, "all", metrics="*", interval_ms="100")
            yield Pushing(node, receiver, peer)


def test_a_producers_metrics_reach_the_receiver_with_who_it_is(pushing: Pushing) -> None:
    """librdkafka pushes unasked."""
    node, receiver = pushing.node, pushing.receiver
    producer = Producer({"bootstrap.servers": node.address, "client.id": "rd", "linger.ms": 0})
    producer.produce("by-rdkafka", b"v")
    assert producer.flush(30) == 0
    eventually(lambda: bool(receiver.metric_names(client_id="rd")))
    scraped = scrape(node.http_address)
    assert scraped.value("tidelog_client_metrics_instances") >= 1
    del producer
    assert any(
        "kafka.producer" in one
        for one in receiver.metric_names(
            client_id="rd",
            client_software_name="confluent-kafka-python",
            client_source_address="127.0.0.1",
            principal="User:ANONYMOUS",
            broker_id="1",
        )
    )
    assert receiver.asked[0].headers["x-key"] == "a secret"
    pushes = "tidelog_client_metrics_pushes_total"
    eventually(lambda: scrape(node.http_address).value(pushes, outcome="forwarded") > 0)


@pytest.mark.parametrize("codec", list(CompressionType), ids=lambda codec: codec.name)
def test_what_is_pushed_in_every_codec_arrives(pushing: Pushing, codec: CompressionType) -> None:
    name = f"by-{codec.name}"
    with closing(Peer("tidelog", pushing.node.port)) as client:
        data = compress(codec, metrics_data(name))
        answer = push(client, ask(client), data, compression_type=int(codec))
        assert answer["error_code"] == "none"
    eventually(lambda: name in pushing.receiver.metric_names(client_id="test"))


def many_members() -> bytes:
    member = gzip.compress(bytes(10_000_000))
    return member * (BYTES_MAX // len(member))


BOMBS: dict[CompressionType, Callable[[], bytes]] = {
    CompressionType.GZIP: many_members,
    CompressionType.ZSTD: lambda: compress(CompressionType.ZSTD, bytes(100_000_000)),
    CompressionType.LZ4: lambda: compress(CompressionType.LZ4, bytes(100_000_000)),
    CompressionType.SNAPPY: lambda: compress(CompressionType.SNAPPY, bytes(20_000_000)),
}


@pytest.mark.parametrize("codec", list(BOMBS), ids=lambda codec: codec.name)
def test_bombs_are_refused_and_take_no_memory(pushing: Pushing, codec: CompressionType) -> None:
    """Each is small, and would be a hundred megabytes or more, or 20 for Snappy."""
    bomb = BOMBS[codec]()
    assert len(bomb) <= BYTES_MAX
    process = psutil.Process(pushing.node.pid)
    before = process.memory_info().rss
    for _ in range(3):
        with closing(Peer("tidelog", pushing.node.port)) as client:
            answer = push(client, ask(client), bomb, compression_type=int(codec))
            assert answer["error_code"] == "telemetry_too_large"
    assert process.memory_info().rss - before < MEMORY_GROWTH_BYTES_MAX


def test_a_push_that_grows_by_who_sent_it_is_bounded_too(pushing: Pushing) -> None:
    with closing(Peer("tidelog", pushing.node.port, client_id=b"x" * 200)) as client:
        answer = push(client, ask(client), b"\x0a\x00" * (FIELDS_MAX - 1))
        assert answer["error_code"] == "telemetry_too_large"


def test_what_is_no_message_is_refused_and_forwarded_to_nobody(pushing: Pushing) -> None:
    for metrics in (b"junk", b"\x0a\xff\xff\xff\xff\x0f", metrics_data("cut")[:-1]):
        with closing(Peer("tidelog", pushing.node.port)) as client:
            assert push(client, ask(client), metrics)["error_code"] == "invalid_record"
    assert "cut" not in pushing.receiver.metric_names()


def test_a_client_that_invents_ids_does_not_grow_the_node(pushing: Pushing) -> None:
    """With names as long as a client may have."""
    process = psutil.Process(pushing.node.pid)
    client_id = b"x" * 32_000
    before = process.memory_info().rss
    with closing(Peer("tidelog", pushing.node.port, client_id=client_id)) as client:
        for _ in range(500):
            assert ask(client)["error_code"] == "none"
    assert process.memory_info().rss - before < 500 * len(client_id)


async def test_without_a_receiver_clients_are_not_offered_to_push(tmp_path: Path) -> None:
    """As Kafka without a plugin: ApiVersions does not have the two APIs."""
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        for endpoint, count in (("", 0), ("http://127.0.0.1:1", 2)):
            config = NodeConfig(client_metrics_otlp_endpoint=endpoint)
            node = node_context(store, ClusterView(store), static_config=config)
            built = build_client_metrics(stack, node)
            assert len(built.routes) == count
            assert (built.forwarder is not None) == bool(endpoint)


async def test_pushes_leave_most_of_the_node_to_others(tmp_path: Path) -> None:
    """A client may invent ids, so what an id may do in an interval bounds nothing."""
    store = SqliteMetadataStore(tmp_path / "metadata.db")
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        config = NodeConfig(client_metrics_otlp_endpoint="http://127.0.0.1:1")
        built = build_client_metrics(
            stack, node_context(store, ClusterView(store), static_config=config)
        )
        (route,) = [one for one in built.routes if one.api_key == ApiKey.PUSH_TELEMETRY]

        async def push_as(number: int) -> str:
            instance_id = UUID(int=number)
            request = build(
                PushTelemetryRequest,
                client_instance_id=instance_id,
                subscription_id=subscription_id(
                    SubscribedMetrics((), INTERVAL_MS_MAX), instance_id
                ),
                metrics=b"\x10\x01" * (FIELDS_MAX // 2),
            )
            answer = await route.handle(request, context_of(0, session=a_session(number)))
            return str(answer.error_code.name)

        shares = []
        for first in (2, 5, 8):
            began, worked = time.monotonic(), time.process_time()
            answers = await asyncio.gather(*map(push_as, range(first, first + 3)))
            shares.append((time.process_time() - worked) / (time.monotonic() - began))
            assert answers == ["none"] * 3
    # What else this process does counts too, such as threads that other tests have left.
    assert min(shares) < CPU_SHARE_MAX
