"""Kafka's own command line tools against a node."""

from __future__ import annotations

import re

import pytest

from tests.kafka.batches import good_batch
from tests.kafka.compare import Pair
from tests.kafka.test_groups import commit, stable
from tests.support.peer import Peer
from tools import kafka_broker

PACKAGE = "org.apache.kafka.tools"


def run(peer: Peer, tool: str, *arguments: str) -> str:
    """Run a tool against a broker; return what it printed, times of creation left out."""
    return kafka_broker.run_tool(
        f"{PACKAGE}.{tool}", "--bootstrap-server", f"127.0.0.1:{peer.port}", *arguments
    )


@pytest.mark.slow  # fifteen JVMs; the requests of the tools are compared by default
@pytest.mark.parametrize("name", ["tidelog", "kafka"])
def test_topics_settings_offsets_and_groups_by_the_tools(pair: Pair, name: str) -> None:
    """The same commands, and the same that is expected of them, for both brokers."""
    peer: Peer = getattr(pair, name)
    topic = ("--topic", "by-tool")
    run(peer, "TopicCommand", "--create", *topic, "--partitions", "2", "--config", "retention.ms=5")
    assert "by-tool" in run(peer, "TopicCommand", "--list").split()
    described = run(peer, "TopicCommand", "--describe", *topic)
    assert re.search(
        r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs:.*retention.ms=5", described
    )
    assert re.search(r"Partition: 1\s+Leader: 1\s+Replicas: 1\s+Isr: 1", described)
    run(peer, "TopicCommand", "--alter", *topic, "--partitions", "3")
    peer.await_topic("by-tool", partitions=3)

    entity = ("--entity-type", "topics", "--entity-name", "by-tool")
    config = "kafka.admin.ConfigCommand"
    address = ("--bootstrap-server", f"127.0.0.1:{peer.port}")
    kafka_broker.run_tool(config, *address, "--alter", *entity, "--add-config", "segment.ms=7")
    kafka_broker.run_tool(config, *address, "--alter", *entity, "--delete-config", "retention.ms")
    settings = kafka_broker.run_tool(config, *address, "--describe", *entity)
    assert "segment.ms=7" in settings
    assert "retention.ms" not in settings
    group = ("--entity-type", "groups", "--entity-name", "set-by-tool")
    session = "consumer.session.timeout.ms=50000"
    kafka_broker.run_tool(config, *address, "--alter", *group, "--add-config", session)
    settings = kafka_broker.run_tool(config, *address, "--describe", *group[:2])
    assert re.search(rf"configs for group set-by-tool are:\s+{session}", settings)

    assert peer.produce("by-tool", good_batch(b"a", b"b"), partition=1)["error_code"] == "none"
    offsets = run(peer, "GetOffsetShell", *topic).split()
    assert offsets == ["by-tool:0:0", "by-tool:1:2", "by-tool:2:0"]

    member = stable(peer, "tool-group")
    commit(peer, "tool-group", "by-tool", member=member, generation=1, partition=1, offset=1)
    groups = "consumer.group.ConsumerGroupCommand"
    assert "tool-group" in run(peer, groups, "--list").split()
    state = run(peer, groups, "--describe", "--group", "tool-group", "--state")
    assert re.search(r"tool-group\s+127\.0\.0\.1:\d+ +\(1\)\s+range\s+Stable\s+1", state)
    lag = run(peer, groups, "--describe", "--group", "tool-group", "--offsets")
    assert re.search(r"tool-group\s+by-tool\s+1\s+1\s+2\s+1", lag)

    logs = run(peer, "LogDirsCommand", "--describe", "--topic-list", "by-tool")
    assert re.search(r'"partition":"by-tool-1","size":[1-9]', logs)
    run(peer, "TopicCommand", "--delete", *topic)
    assert "by-tool" not in run(peer, "TopicCommand", "--list").split()
