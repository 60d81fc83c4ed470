"""A node whose disk is full: others lead while they have room, and it comes back by itself."""

from __future__ import annotations

import errno
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from tests.faults.disk_faults import DiskFaults
from tests.node.disk_trouble import lines, produced, values
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import replicated_cluster
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient


def test_a_leader_whose_disk_is_full_hands_over_and_says_so_once(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    with replicated_cluster(tmp_path, environment=faults.environment()) as cluster:
        cluster.create("t", min_insync_replicas="2")
        acked = cluster.produce("t", values(100))
        full = cluster.node_leading("t")
        before = len(lines(full, "WARNING", "ERROR"))
        faults.fail(errno.ENOSPC, ("write",), full.data_dir)
        acked |= cluster.produce("t", values(300, start=100))
        assert len(acked) == 400
        assert cluster.leader("t") != full.broker_id
        full.wait_logged("disk is full")
        said = lines(full, "WARNING", "ERROR")[before:]
        assert len(said) == 1, said
        assert "disk is full" in said[0]


@pytest.mark.slow
def test_a_leader_whose_disk_was_full_comes_back_by_itself(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    config = {"leader.imbalance.check.interval.seconds": "1"}
    with replicated_cluster(tmp_path, config=config, environment=faults.environment()) as cluster:
        cluster.create("t", partitions=6, min_insync_replicas="2")
        full = cluster.nodes[1]
        led = [n for n in range(6) if cluster.leader("t", n) == 1]
        assert led
        faults.fail(errno.ENOSPC, ("write",), full.data_dir)
        acked = cluster.produce("t", values(400))
        assert len(acked) == 400
        # A write to a partition that node 1 leads finds the disk full, and it gives up all.
        with WireClient(full.port) as client:
            for n in led:
                client.produce("t", batch_of(b"x"), partition=n)
        eventually(
            lambda: all(cluster.leader("t", n) not in {-1, 1} for n in range(6)), "others lead"
        )
        time.sleep(3)  # Three times the interval after which the preferred leader leads again.
        assert all(cluster.leader("t", n) != 1 for n in range(6))
        faults.heal()
        eventually(
            lambda: all(cluster.leader("t", n) == 1 for n in led), "it leads as it did before"
        )
        for n in range(6):
            cluster.wait_isr("t", {1, 2, 3}, n)
            cluster.wait_same_logs("t", n)
        assert cluster.consume("t", 400) == acked


@pytest.mark.slow  # test_leader_state asks what decides it
def test_a_follower_whose_disk_is_full_holds_nobody_up(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    config = {"replica.lag.time.max.ms": "60000"}
    with replicated_cluster(tmp_path, config=config, environment=faults.environment()) as cluster:
        cluster.create("t", partitions=20, min_insync_replicas="2")
        acked = cluster.produce("t", values(100))
        full = cluster.followers("t")[0]
        before = len(lines(full, "WARNING", "ERROR"))
        faults.fail(errno.ENOSPC, ("write",), full.data_dir)
        started = time.monotonic()
        acked |= cluster.produce("t", values(300, start=100))
        assert len(acked) == 400
        assert time.monotonic() - started < 30  # not replica.lag.time.max.ms
        cluster.wait_isr("t", {1, 2, 3} - {full.broker_id})
        eventually(lambda: len(lines(full, "WARNING", "ERROR")) > before, "it is logged")
        assert len(lines(full, "WARNING", "ERROR")[before:]) == 1
        faults.heal()
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        assert cluster.consume("t", 400) == acked


def test_the_only_node_refuses_records_while_its_disk_is_full(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    store = f"sqlite://{tmp_path}/metadata.db"
    node = NodeProcess(tmp_path / "node", metadata_store=store, environment=faults.environment())
    with node:
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(60)
        eventually(lambda: produced(node, "t") is ErrorCode.none, "the topic is there")
        before = len(lines(node, "WARNING", "ERROR"))
        with faults.failing(errno.ENOSPC, ("write",), node.data_dir):
            for _ in range(20):
                assert produced(node, "t") is ErrorCode.kafka_storage_error
            eventually(lambda: len(lines(node, "WARNING", "ERROR")) > before, "it is logged")
            assert len(lines(node, "WARNING", "ERROR")[before:]) == 1
        eventually(lambda: produced(node, "t") is ErrorCode.none, "records are taken again")
