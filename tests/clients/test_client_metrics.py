"""Kafka's Java client pushes its metrics through a node to a receiver (KIP-714)."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.client_metrics import subscribe
from tests.support.drivers.java import java_driver
from tests.support.drivers.lines import Message, to_line
from tests.support.node_process import NodeProcess
from tests.support.otlp_receiver import OtlpReceiver
from tests.support.peer import Peer
from tests.support.waiting import eventually

PREFIXES = ("org.apache.kafka.producer.record.", "org.apache.kafka.producer.batch.")


@pytest.mark.slow  # a JVM; librdkafka pushes by default, tests/node/client_metrics/test_pushes.py
def test_a_java_producer_pushes_what_it_is_asked_for(tmp_path: Path) -> None:
    driver = java_driver()
    if not driver.command:
        pytest.skip("Java or its client is not installed: run `make tools`")
    properties = tmp_path / "client.properties"
    properties.write_text("client.id=java-one\n")
    with OtlpReceiver() as receiver:
        config = {"client.metrics.otlp.endpoint": receiver.url}
        with NodeProcess(tmp_path / "node", config=config) as node:
            with closing(Peer("tidelog", node.port)) as peer:
                subscribe(
                    peer,
                    "java",
                    metrics=",".join(PREFIXES),
                    interval_ms="100",
                    match="client_software_name=apache-kafka-java,client_id=java-.*",
                )
            wanted = {"client_id": "java-one", "client_software_name": "apache-kafka-java"}
            with subprocess.Popen(
                [*driver.command, "produce", node.address, "by-java", "none", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "CLIENT_PROPERTIES": str(properties)},
                text=True,
            ) as producer:
                assert producer.stdin is not None
                producer.stdin.write(to_line(Message(b"v")) + "\n")
                producer.stdin.flush()
                eventually(lambda: bool(receiver.metric_names(**wanted)))
            assert producer.returncode == 0
        names = receiver.metric_names(**wanted)
        assert names == receiver.metric_names()
        assert all(one.startswith(PREFIXES) for one in names), names
