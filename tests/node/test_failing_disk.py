"""A disk that gives EIO: the log goes offline at once, others lead, and it comes back by itself."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode

from tests.faults.disk_faults import DiskFaults
from tests.node.disk_trouble import lines, produced, values
from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import replicated_cluster
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

ROUNDS = 8


def fetched(node: NodeProcess, topic: str) -> tuple[ErrorCode, int]:
    """Return the answer's error code and the high watermark."""
    with WireClient(node.port) as client:
        answer = client.fetch(topic, 0)
        return answer.error_code, answer.high_watermark


def alone(folder: Path, faults: DiskFaults) -> NodeProcess:
    """Return a node whose metadata store is on another disk."""
    return NodeProcess(
        folder / "node",
        metadata_store=f"sqlite://{folder}/metadata.db",
        environment=faults.environment(),
    )


def create(node: NodeProcess, topic: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(60)
    eventually(lambda: produced(node, topic) is ErrorCode.none, "the topic is there")


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_the_only_node_opens_a_failed_log_again_once_the_disk_works(
    call: str, tmp_path: Path
) -> None:
    faults = DiskFaults(tmp_path / "faults")
    with alone(tmp_path, faults) as node:
        create(node, "sound")
        create(node, "t", **({"flush.messages": "1"} if call == "fsync" else {}))
        for _ in range(5):
            assert produced(node, "t") is ErrorCode.none
        before = len(lines(node, "WARNING", "ERROR"))
        with faults.failing(errno.EIO, (call, "truncate"), node.data_dir / "t-0"):
            for _ in range(20):
                assert produced(node, "t") is ErrorCode.kafka_storage_error
            assert fetched(node, "t")[0] is ErrorCode.kafka_storage_error
            # One bad log does not take the node.
            assert produced(node, "sound") is ErrorCode.none
            node.wait_logged("it is opened again once the disk works")
            said = lines(node, "WARNING", "ERROR")[before:]
            assert len(said) == 1, said
            assert "it is opened again once the disk works" in said[0]
        eventually(lambda: produced(node, "t") is ErrorCode.none, "it is online again")
        error, high_watermark = fetched(node, "t")
        assert (error, high_watermark >= 7) == (ErrorCode.none, True)
        node.wait_logged("logs are online again")


def test_records_that_the_disk_does_not_give_are_named_in_the_log(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    with alone(tmp_path, faults) as node:
        create(node, "t")
        with WireClient(node.port) as client:  # so much that it goes out with sendfile
            assert client.produce("t", batch_of(bytes(100_000))).error_code is ErrorCode.none
        (segment,) = (node.data_dir / "t-0").glob("*.log")
        with faults.failing(errno.EIO, ("read",), node.data_dir / "t-0"):
            with pytest.raises(EOFError):
                fetched(node, "t")
            node.wait_logged("records cannot be sent")
        (said,) = [line for line in lines(node, "ERROR") if "records cannot be sent" in line]
        assert str(segment) in said
        assert os.strerror(errno.EIO) in said
        assert fetched(node, "t")[0] is ErrorCode.none


def test_a_log_that_has_lost_acknowledged_records_stays_offline(tmp_path: Path) -> None:
    """As when the pages of a failed fsync have left the page cache."""
    faults = DiskFaults(tmp_path / "faults")
    node = alone(tmp_path, faults)
    with node:
        create(node, "t")
        for _ in range(5):
            assert produced(node, "t") is ErrorCode.none
        (segment,) = (node.data_dir / "t-0").glob("*.log")
        batch_size_bytes = segment.stat().st_size // 6
        with faults.failing(errno.EIO, ("write",), node.data_dir / "t-0"):
            assert produced(node, "t") is ErrorCode.kafka_storage_error
            os.truncate(segment, 4 * batch_size_bytes)
        eventually(lambda: "restart the node to go on without" in node.log, "it says what to do")
        node.wait_logged("acknowledged records from 4 to 5")
        assert produced(node, "t") is ErrorCode.kafka_storage_error
        node.stop()
        node.start()
        assert fetched(node, "t") == (ErrorCode.none, 4)
        assert produced(node, "t") is ErrorCode.none


@pytest.mark.slow
def test_a_leader_with_a_failing_disk_is_replaced_and_comes_back(tmp_path: Path) -> None:
    faults = DiskFaults(tmp_path / "faults")
    with replicated_cluster(tmp_path, environment=faults.environment()) as cluster:
        cluster.create("t", min_insync_replicas="2")
        acked = cluster.produce("t", values(100))
        failing = cluster.node_leading("t")
        faults.fail(errno.EIO, ("write", "fsync", "truncate"), failing.data_dir)
        acked |= cluster.produce("t", values(200, start=100))
        assert len(acked) == 300
        cluster.wait_isr("t", {1, 2, 3} - {failing.broker_id})
        assert len(lines(failing, "ERROR")) <= 2, lines(failing, "ERROR")
        assert has_failed_directory(failing)
        faults.heal()
        cluster.wait_isr("t", {1, 2, 3})
        acked |= cluster.produce("t", values(100, start=300))
        cluster.wait_same_logs("t")
        assert not has_failed_directory(failing)
        assert cluster.consume("t", 400) == acked


def has_failed_directory(node: NodeProcess) -> bool:
    with WireClient(node.port) as client:
        (directory,) = client.call(DescribeLogDirsRequest(topics=None)).results
        return directory.error_code is ErrorCode.kafka_storage_error


@pytest.mark.slow
def test_random_trouble_of_disks_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Full and failing disks, one or two at a time, under a producer that goes on all the while."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    faults = DiskFaults(tmp_path / "faults")
    config = {"flush.messages": "20", "segment.bytes": "50000", "remote.storage.enable": "false"}
    topic = {name.replace(".", "_"): value for name, value in config.items()}
    with replicated_cluster(tmp_path, environment=faults.environment()) as cluster:
        cluster.create("t", min_insync_replicas="2", **topic)
        stop, acked = threading.Event(), {}

        def produce() -> None:
            number = 0
            while not stop.is_set():
                acked.update(cluster.produce("t", values(50, start=number)))
                number += 50

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            for _ in range(ROUNDS):
                for node in chance.sample(cluster.running, chance.randrange(1, 3)):
                    number = chance.choice((errno.ENOSPC, errno.EIO))
                    calls = chance.choice((("write",), ("fsync",), ("write", "fsync", "truncate")))
                    faults.fail(number, calls, node.data_dir)
                time.sleep(chance.uniform(1, 4))
                faults.heal()
                time.sleep(chance.uniform(0, 4))
        finally:
            faults.heal()
            stop.set()
            producing.join(60)
        cluster.wait_isr("t", {1, 2, 3})
        cluster.wait_same_logs("t")
        assert len(acked) > 500
        found = cluster.consume("t", max(acked) + 1)
        assert {offset: found[offset] for offset in acked} == acked
