"""Several nodes of one cluster under one parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tidelog_node.local_cluster.supervisor import _announcing

from tests.support.cluster_process import (
    CLUSTER_PROGRAM,
    NODE_COUNT,
    SECONDS_MAX,
    Cluster,
    running_cluster,
)
from tests.support.waiting import eventually
from tools.ports import free_ports
from tools.server_process import is_running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "cluster") as running:
        yield running


def test_three_nodes_serve_one_cluster_and_stop_together(cluster: Cluster) -> None:
    assert "tidelog cluster of 3 ready on" in cluster.line
    pids = cluster.node_pids()
    assert len(pids) == NODE_COUNT
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic("t", 6, 1)])["t"].result(60)
    metadata = admin.list_topics("t", timeout=60)
    assert sorted(metadata.brokers) == [1, 2, 3]
    leaders = {partition.leader for partition in metadata.topics["t"].partitions.values()}
    assert leaders == {1, 2, 3}
    producer = Producer({"bootstrap.servers": cluster.address})
    for partition in range(6):
        producer.produce("t", b"value", partition=partition)
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": cluster.address, "group.id": "g"})
    consumer.assign([TopicPartition("t", partition, 0) for partition in range(6)])
    found = set()
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < 6 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is not None and message.error() is None:
            found.add(message.partition())
    consumer.close()
    assert found == set(range(6))
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(SECONDS_MAX) == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_node_that_is_killed_is_started_again_while_the_others_serve(cluster: Cluster) -> None:
    assert cluster.line
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{cluster.port + 2}"})
    # librdkafka drops a request to a node that the next answer does not name.
    eventually(lambda: len(admin.list_topics(timeout=60).brokers) == NODE_COUNT)
    admin.create_topics([NewTopic("t", 3, 1)])["t"].result(60)
    pids = cluster.node_pids()
    os.kill(pids[1], signal.SIGKILL)
    deadline = time.monotonic() + SECONDS_MAX
    while "process ended, it is started again" not in cluster.log_path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    producer = Producer({"bootstrap.servers": f"127.0.0.1:{cluster.port + 2}"})
    for partition in range(3):
        producer.produce("t", b"value", partition=partition)
    assert producer.flush(SECONDS_MAX) == 0
    assert cluster.process.poll() is None
    after = cluster.node_pids()
    assert len(after) == NODE_COUNT
    assert set(pids) & set(after) == {pids[0], pids[2]}


def test_a_cluster_of_which_a_node_cannot_start_ends(tmp_path: Path) -> None:
    port = free_ports(NODE_COUNT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        ended = subprocess.run(
            [sys.executable, "-c", CLUSTER_PROGRAM, str(tmp_path / "cluster"), str(port)],
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert ended.returncode == 1
    assert b"process ended before it was ready, not started again" in ended.stderr


def test_nodes_stop_in_order_when_their_parent_is_killed(cluster: Cluster) -> None:
    assert cluster.line
    pids = cluster.node_pids()
    cluster.process.kill()
    cluster.process.wait()
    deadline = time.monotonic() + SECONDS_MAX
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    eventually(lambda: cluster.log_path.read_text().count("node stopped") == NODE_COUNT)


def test_a_console_is_announced_whenever_its_address_is_another_one() -> None:
    said: list[str] = []
    say = _announcing(said.append)
    for port in (1, 1, 2, 1):
        say(f"tidelog console ready on http://127.0.0.1:{port}")
    assert said == [f"http://127.0.0.1:{port}" for port in (1, 2, 1)]
