"""A node loads what it uses: nothing heavy at its start, and by a thread what comes later."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.create_topics.v5 import request as create_topics
from kio.schema.init_producer_id.v4 import request as init_producer_id
from tidelog_core.errors import ErrorCode
from tidelog_core.message_schemas import load_request_schema
from tidelog_core.wire_messages import build

from tests.support.batches import batch_of
from tests.support.watched_node import WatchedNode
from tests.support.wire_client import (
    WireClient,
    api_versions_request,
    encode,
    frame,
    milliseconds,
)

HOT = {0, 1, 78}  # Produce, Fetch and ShareFetch have routes of their own
LIBRARIES = (
    *("aiohttp", "boto3", "botocore", "cryptography", "email", "google", "http.client", "jinja2"),
    *("joserfc", "jsonschema_rs", "numpy", "obstore", "opentelemetry", "prometheus_client"),
    *("pyarrow", "cramjam.cramjam", "encodings.idna", "importlib.metadata", "lz4.frame._frame"),
    # A node without TLS and other nodes does without OpenSSL.
    *("_hashlib", "_ssl", "asyncio.sslproto", "ctypes", "hashlib", "hmac", "secrets", "ssl"),
    *("ast", "inspect", "ipaddress", "re2._re2", "typing_extensions"),
)
PARTS = (
    *("assembly.coordinators", "assembly.logins", "audit.publisher", "authentication.login"),
    *("authentication.tls_clients", "authorization.guarded_routes", "client_metrics"),
    *("connections.kernel_tls_transport", "coordinator", "handlers.groups"),
    *("handlers.produce.schemas", "handlers.transactions", "inspection.schema_frames"),
    *("monitoring.exposition", "registry"),
    *("security.listener_tls", "tier.worker", "tracing.otlp_tracer", "transactions.coordinator"),
)
MODULES_MAX = 800  # 1,290 before parts were loaded when they are used


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WatchedNode]:
    with WatchedNode(tmp_path_factory.mktemp("watched") / "node") as node:
        yield node


def test_a_node_that_has_taken_a_record_has_loaded_nothing_else(tmp_path: Path) -> None:
    with WatchedNode(tmp_path / "node") as node:
        with WireClient(node.port) as client:
            create(client, "t")
            assert client.produce("t", batch_of(b"x")).error_code == 0
        modules = node.executed().modules
        heavy = [*LIBRARIES, *(f"tidelog_node.{part}" for part in PARTS)]
        found = {name for name in heavy for one in modules if f"{one}.".startswith(f"{name}.")}
        assert not found
        assert len(modules) < MODULES_MAX, len(modules)


def test_every_api_answers_its_first_request_and_no_module_is_executed_by_the_loop(
    node: WatchedNode,
) -> None:
    with WireClient(node.port) as client:
        create(client, "apis")
        told = client.call(api_versions_request()).api_keys
    node.executed()
    for one in told:
        if one.api_key in HOT:
            continue
        request: Any = load_request_schema(one.api_key, one.max_version)
        body, tags = encode(request, build(request)), b"\x00" if request.__flexible__ else b""
        with WireClient(node.port) as client:
            client.send(frame(one.api_key, one.max_version, 7, body, tags=tags))
            assert client.receive()[:4] == b"\0\0\0\7", one.api_key
    assert not own_of(node.executed().by_loop)
    assert "request failed" not in node.log


def test_groups_and_transactions_begin_with_their_first_requests(node: WatchedNode) -> None:
    node.executed()
    produce(node, "groups", **{"transactional.id": "t"})
    assert read(node, "groups") == b"x"
    told = node.executed()
    assert "tidelog_node.assembly.coordinators" in told.modules
    assert not own_of(told.by_loop)


def test_schemas_are_looked_up_by_what_a_thread_has_imported(node: WatchedNode) -> None:
    assert "tidelog_node.handlers.produce.schemas" not in node.executed().modules
    admin = AdminClient({"bootstrap.servers": node.address})
    topic = NewTopic("checked", 1, 1, config={"confluent.value.schema.validation": "true"})
    admin.create_topics([topic])["checked"].result(60)
    with WireClient(node.port) as client:
        assert client.produce("checked", batch_of(b"x")).error_code == ErrorCode.invalid_record
    told = node.executed()
    assert "tidelog_node.handlers.produce.schemas" in told.modules
    assert not own_of(told.by_loop)


def test_diskless_partitions_begin_with_the_first_topic(tmp_path: Path) -> None:
    with WatchedNode(tmp_path / "node") as node:
        assert "tidelog_node.assembly.diskless" not in node.executed().modules
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic("chained", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["chained"].result(60)
        produce(node, "chained")
        told = node.executed()
        assert "tidelog_node.assembly.diskless" in told.modules
        assert not own_of(told.by_loop)
        assert node.stop() == 0


def test_a_node_that_starts_after_the_last_diskless_topic_seals_what_is_left(
    tmp_path: Path,
) -> None:
    """Chains that nobody seals are kept for ever. The topic's tombstone is there for a day."""
    with WatchedNode(tmp_path / "node") as node:
        admin = AdminClient({"bootstrap.servers": node.address})
        topic = NewTopic("chained", 1, 1, config={"diskless.enable": "true"})
        admin.create_topics([topic])["chained"].result(60)
        admin.delete_topics(["chained"])["chained"].result(60)
        assert node.stop() == 0
    with WatchedNode(tmp_path / "node") as node:
        assert "tidelog_node.assembly.diskless" in node.executed().modules


def test_a_node_that_has_begun_to_coordinate_stops_in_order(tmp_path: Path) -> None:
    with WatchedNode(tmp_path / "node") as node:
        with WireClient(node.port) as client:
            request = build(
                init_producer_id.InitProducerIdRequest,
                transactional_id=None,
                transaction_timeout=milliseconds(60_000),
            )
            assert client.call(request).error_code == 0
        assert "tidelog_node.assembly.coordinators" in node.executed().modules
        assert node.stop() == 0
        node.wait_logged("node stopped")


@pytest.mark.slow
def test_a_node_that_starts_with_diskless_topics_has_what_they_need(tmp_path: Path) -> None:
    with WatchedNode(tmp_path / "node", config={"log.diskless.enable": "true"}) as node:
        produce(node, "chained")
        node.kill()
        node.config.clear()
        node.start()
        assert "tidelog_node.assembly.diskless" in node.executed().modules
        assert read(node, "chained") == b"x"


def produce(node: WatchedNode, topic: str, **settings: str) -> None:
    producer = Producer({"bootstrap.servers": node.address, "acks": "all", **settings})
    if settings:
        producer.init_transactions(60)
        producer.begin_transaction()
    producer.produce(topic, b"x")
    if settings:
        producer.commit_transaction(60)
    assert producer.flush(60) == 0


def read(node: WatchedNode, topic: str) -> bytes | None:
    """Return the value of the topic's first record, read by a group."""
    group = {"group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": node.address, **group})
    consumer.subscribe([topic])
    try:
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def own_of(files: Iterable[str]) -> list[str]:
    """Return the files of the node: the loop makes classes of messages in a few ms each."""
    return [file for file in files if "/tidelog" in file]


def create(client: WireClient, name: str) -> None:
    topic = build(create_topics.CreatableTopic, name=name, num_partitions=1, replication_factor=1)
    request = build(
        create_topics.CreateTopicsRequest, topics=(topic,), timeout=milliseconds(30_000)
    )
    assert client.call(request).topics[0].error_code == 0
