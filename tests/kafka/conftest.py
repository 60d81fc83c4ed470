"""One broker of each kind for the whole session."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kafka.compare import Pair
from tests.support.node_process import NodeProcess
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.peer import Peer
from tools import kafka_broker, kafka_java
from tools.places import ToolAbsent

# The settings of both. Internal topics with few partitions load sooner.
CONFIG = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.max.size": "3",
    "group.consumer.max.size": "3",
    "group.share.max.size": "3",
    "telemetry.max.bytes": "10000",
}
# Kafka 4.1 has share groups, disabled by default.
FEATURES = {"share.version": 1}


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Give both brokers, empty when the session began."""
    root = tmp_path_factory.mktemp("compared")
    with ExitStack() as stack:
        try:
            receiver = Path(__file__).with_name("TelemetryReceiver.java")
            port = stack.enter_context(
                kafka_broker.serve(
                    root / "kafka",
                    {**CONFIG, "metric.reporters": receiver.stem},
                    features=FEATURES,
                    classes=kafka_java.compiled(receiver),
                )
            )
        except ToolAbsent as absent:
            pytest.skip(str(absent))
        otlp = stack.enter_context(OtlpReceiver())
        config = {**CONFIG, "client.metrics.otlp.endpoint": otlp.url}
        node = stack.enter_context(NodeProcess(root / "tidelog", config=config))
        peers = Pair(Peer("kafka", port), Peer("tidelog", node.port))
        yield peers
        peers.close()
