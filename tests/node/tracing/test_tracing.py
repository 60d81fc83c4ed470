"""A node's traces at a real receiver: control requests, work on the tier, reads from it; no others."""

from __future__ import annotations

import asyncio
import http.client
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tidelog_core.config import NodeConfig
from tidelog_node.tracing.otlp_tracer import QUEUE_SPANS_MAX, open_tracer

from tests.support.node_process import NodeProcess
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.peer import Peer
from tests.support.waiting import eventually
from tools.ports import free_port

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Traced(NamedTuple):
    node: NodeProcess
    receiver: OtlpReceiver

    def named(self, name: str) -> list[Span]:
        return [span for span in self.receiver.spans() if span.name == name]

    def first(self, name: str) -> Span:
        """The first span of a name, once it has come."""
        eventually(lambda: bool(self.named(name)), f"there is a span {name}")
        return self.named(name)[0]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with OtlpReceiver() as receiver:
        node = NodeProcess(
            tmp_path_factory.mktemp("traced") / "node",
            config={
                "tracing.otlp.endpoint": receiver.url,
                "tracing.otlp.headers": "x-key=k",
                "tracing.sampling.ratio": "1",
                "remote.task.interval.ms": "100",
                "log.retention.check.interval.ms": "100",
            },
            arguments=("--http-port", "0"),
        )
        with node:
            yield Traced(node, receiver)


def attributes(span: Span) -> dict[str, str | int]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_a_control_request_has_a_span_with_who_asked(traced: Traced) -> None:
    with closing(Peer("tidelog", traced.node.port, client_id=b"me")) as peer:
        peer.create_topic("made")
        peer.call("delete_topics", 5, topic_names=["missing"], timeout=1000)
    created, refused = traced.first("CreateTopics"), traced.first("DeleteTopics")
    found = attributes(created)
    assert found["rpc.system"] == "kafka"
    assert found["tidelog.client_id"] == "me"
    assert found["tidelog.principal"] == "User:ANONYMOUS"
    assert created.parent_span_id == b""
    assert created.status.code == Status.STATUS_CODE_UNSET
    assert refused.status.code == Status.STATUS_CODE_ERROR
    assert attributes(refused)["tidelog.errors"] == "unknown_topic_or_partition"


def test_copies_and_cold_reads_have_spans_with_the_calls_of_the_worker(traced: Traced) -> None:
    address = {"bootstrap.servers": traced.node.address}
    with closing(Peer("tidelog", traced.node.port)) as peer:
        peer.create_topic("cold", segment_bytes="2000", local_retention_bytes="1")
    producer = Producer({**address, "linger.ms": 0})
    for _ in range(60):
        producer.produce("cold", b"x" * 100)
        producer.flush(30)
    copy = traced.first("tier copy")
    assert attributes(copy)["tidelog.partition"] == "cold-0"
    eventually(
        lambda: any(
            span.parent_span_id == copy.span_id
            for span in traced.named("tier worker UploadRequest")
        )
    )
    consumer = Consumer({**address, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition("cold", 0, 0)])

    def reads_from_the_tier() -> bool:
        consumer.seek(TopicPartition("cold", 0, 0))
        consumer.poll(1)
        return bool(traced.named("cold read"))

    consumer.poll(10)
    eventually(reads_from_the_tier)
    consumer.close()
    cold = traced.named("cold read")
    calls = traced.named("tier worker ReadRequest")
    assert {one.parent_span_id for one in calls} & {one.span_id for one in cold}


def test_produce_and_fetch_have_none(traced: Traced) -> None:
    producer = Producer({"bootstrap.servers": traced.node.address})
    producer.produce("made", b"v")
    assert producer.flush(30) == 0
    with closing(Peer("tidelog", traced.node.port)) as peer:
        peer.call("list_groups", 4)
    traced.first("ListGroups")
    assert not {"Produce", "Fetch"} & {span.name for span in traced.receiver.spans()}


def test_a_request_over_http_is_a_part_of_the_trace_that_it_names(traced: Traced) -> None:
    host, _, port = traced.node.http_address.partition(":")
    for headers in ({}, {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}):
        connection = http.client.HTTPConnection(host, int(port), timeout=60)
        connection.request("GET", "/livez", headers=headers)
        assert connection.getresponse().status == 200
        connection.close()
    span = traced.first("GET /livez")
    assert span.trace_id.hex() == TRACE_ID
    assert span.parent_span_id.hex() == PARENT_ID
    assert len(traced.named("GET /livez")) == 1


def test_the_receiver_is_given_its_key(traced: Traced) -> None:
    eventually(lambda: bool(traced.receiver.asked))
    assert traced.receiver.asked[0].headers["x-key"] == "k"


async def test_a_receiver_that_is_away_keeps_nobody_waiting() -> None:
    """Not the one who begins a span, and not a node that stops."""
    config = NodeConfig(
        tracing_otlp_endpoint=f"http://127.0.0.1:{free_port()}", tracing_sampling_ratio=1.0
    )
    tracer = open_tracer(config, 1, version="1")
    assert tracer is not None
    began = time.thread_time()
    for _ in range(2 * QUEUE_SPANS_MAX):
        with tracer.span("s", {}):
            pass
    assert time.thread_time() - began < 2.0
    async with asyncio.timeout(60):
        await tracer.close()


def test_without_an_endpoint_no_library_of_traces_is_imported() -> None:
    program = (
        "import sys; import tidelog_node.wiring, tidelog_node.assembly.serving;"
        "from tidelog_core.config import NodeConfig;"
        "from tidelog_node.tracing.otlp_tracer import open_tracer;"
        "assert open_tracer(NodeConfig(), 1, version='1') is None;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_node_without_the_libraries_says_which_extra_it_needs(tmp_path: Path) -> None:
    """A module that cannot be imported, as where the extra is not installed."""
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ImportError('not installed')\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
        "from tidelog_core.config import NodeConfig;"
        "from tidelog_node.tracing.otlp_tracer import open_tracer;"
        "open_tracer(NodeConfig(tracing_otlp_endpoint='http://x:1'), 1, version='1')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert "pip install 'tidelog[tracing]'" in done.stderr


def test_an_answer_that_is_kept_in_bytes_has_a_span_too(traced: Traced) -> None:
    with closing(Peer("tidelog", traced.node.port)) as peer:
        said = {"client_software_name": "t", "client_software_version": "1"}
        assert peer.call("api_versions", 3, **said)["error_code"] == "none"
    assert traced.first("ApiVersions").status.code == Status.STATUS_CODE_UNSET
