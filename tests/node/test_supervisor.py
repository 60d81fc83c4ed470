"""Several nodes of one cluster under one parent."""

from __future__ import annotations

import os
import select
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
from tidelog_core.errors import InvalidConfig
from tidelog_node.supervisor import ClusterSettings

NODE_COUNT = 3
SECONDS_MAX = 40.0
PROGRAM = """
import sys
from pathlib import Path
from tidelog_node.supervisor import ClusterSettings, run_cluster
settings = ClusterSettings(data_dir=Path(sys.argv[1]), port=int(sys.argv[2]), node_count=3)
sys.exit(run_cluster(settings, announce=lambda line: print(line, flush=True)))
"""


def free_ports(count: int) -> int:
    """Return the first of so many free ports in a row."""
    for port in range(20_000 + os.getpid() % 5000, 30_000, count):
        try:
            for number in range(port, port + count):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", number))
        except OSError:
            continue
        return port
    raise RuntimeError("no free ports")


class Cluster:
    """The parent process and where its nodes listen."""

    def __init__(self, data_dir: Path) -> None:
        self.port = free_ports(NODE_COUNT)
        self.log_path = data_dir.with_suffix(".log")
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(data_dir), str(self.port)],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], SECONDS_MAX)
        self.line = self.process.stdout.readline().decode() if ready else ""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def node_pids(self) -> list[int]:
        return self.pids_of("tidelog_node")

    def pids_of(self, module: str) -> list[int]:
        """Return the children that run the module."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        pids = map(int, children.read_text().split())
        return [
            pid
            for pid in pids
            if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    running = Cluster(tmp_path / "cluster")
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(SECONDS_MAX)
        assert running.process.stdout is not None
        running.process.stdout.close()


def test_three_nodes_serve_one_cluster_and_stop_together(cluster: Cluster) -> None:
    assert "tidelog cluster of 3 ready on" in cluster.line
    pids = cluster.node_pids()
    assert len(pids) == NODE_COUNT
    admin = AdminClient({"bootstrap.servers": cluster.address})
    admin.create_topics([NewTopic("t", 6, 1)])["t"].result(10)
    metadata = admin.list_topics("t", timeout=10)
    assert sorted(metadata.brokers) == [1, 2, 3]
    leaders = {partition.leader for partition in metadata.topics["t"].partitions.values()}
    assert leaders == {1, 2, 3}
    producer = Producer({"bootstrap.servers": cluster.address})
    for partition in range(6):
        producer.produce("t", b"value", partition=partition)
    assert producer.flush(20) == 0
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
    admin.create_topics([NewTopic("t", 3, 1)])["t"].result(10)
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
            [sys.executable, "-c", PROGRAM, str(tmp_path / "cluster"), str(port)],
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    assert ended.returncode == 1
    assert b"process ended, the cluster stops" in ended.stderr


def test_nodes_stop_in_order_when_their_parent_is_killed(cluster: Cluster) -> None:
    assert cluster.line
    pids = cluster.node_pids()
    cluster.process.kill()
    cluster.process.wait()
    deadline = time.monotonic() + SECONDS_MAX
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.log_path.read_text().count("node stopped") == NODE_COUNT


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_wrong_settings_are_all_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig) as raised:
        ClusterSettings(data_dir=tmp_path, node_count=0, port=70_000)
    assert len(raised.value.problems) == 2
