"""What a node makes of logs that it finds damaged, lost, cut or no longer wanted."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4 import request as epoch_request
from tidelog_core.metadata.records import segment_collection, topic_key
from tidelog_core.records.batch import iter_headers

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.outside_stores import node_with_outside_stores
from tests.support.stored_items import overwrite_body, stored_items
from tests.support.wire_client import WireClient

BATCH_COUNT = 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node whose stores outlive its data directory."""
    config = {"remote.task.interval.ms": "100"}
    with node_with_outside_stores(tmp_path, config) as process:
        yield process


def create(node: NodeProcess, name: str, **configs: str) -> None:
    admin = AdminClient({"bootstrap.servers": node.address})
    config = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(60)


def fill(node: NodeProcess, topic: str, count: int = BATCH_COUNT) -> None:
    with WireClient(node.port) as client:
        for _ in range(count):
            assert client.produce(topic, batch_of(b"x" * 1000)).error_code is ErrorCode.none


def wait_for(node: NodeProcess, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, node.log[-3000:]
        time.sleep(0.05)


def wait_tiered(node: NodeProcess, count: int) -> None:
    """Wait until so many segments have been copied over all starts."""
    wait_for(node, lambda: node.log.count("segment copied") == count)


def end_of_epoch(client: WireClient, topic: str, epoch: int) -> tuple[int, int]:
    wanted = epoch_request.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=-1, leader_epoch=epoch
    )
    topics = (epoch_request.OffsetForLeaderTopic(topic=topic, partitions=(wanted,)),)
    answer = client.call(epoch_request.OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
    found = answer.topics[0].partitions[0]
    return found.leader_epoch, found.end_offset


def test_records_that_a_power_cut_took_are_not_replaced_unnoticed(node: NodeProcess) -> None:
    """Who has read them must learn that their offsets now stand for others (KIP-320)."""
    create(node, "t")
    fill(node, "t")
    node.kill()
    (path,) = (node.data_dir / "t-0").glob("*.log")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2 + 7])  # what was never flushed is gone
    node.start()
    with WireClient(node.port) as client:
        assert client.produce("t", batch_of(b"new")).base_offset == 5
        assert end_of_epoch(client, "t", 0) == (0, 5)
        written = iter_headers(client.fetch("t", 0).records)
        assert [header.partition_leader_epoch for _, header in written] == [0] * 5 + [1]


def test_every_start_begins_one_leader_epoch(node: NodeProcess) -> None:
    create(node, "t")
    fill(node, "t")
    for start_count in (1, 2):
        node.stop()
        node.start()
        fill(node, "t")
        with WireClient(node.port) as client:
            for epoch in range(start_count + 1):
                end_offset = (epoch + 1) * BATCH_COUNT
                assert end_of_epoch(client, "t", epoch) == (epoch, end_offset)


def test_a_lost_directory_of_one_partition_is_restored_from_the_tier(node: NodeProcess) -> None:
    """Offsets that the tier has must not be given to other records."""
    create(node, "t", segment_bytes="3000")
    fill(node, "t", 20)
    wait_tiered(node, 9)
    node.stop()
    shutil.rmtree(node.data_dir / "t-0")
    node.start()
    with WireClient(node.port) as client:
        assert client.produce("t", batch_of(b"new")).base_offset == 18
        # The tier's worker starts a little after the node.
        wait_for(node, lambda: client.fetch("t", 0).error_code is ErrorCode.none)
        read = client.fetch("t", 0)
        assert next(iter(iter_headers(read.records)))[1].base_offset == 0


def test_a_lost_log_whose_tier_cannot_be_read_is_offline_alone(node: NodeProcess) -> None:
    """Its offsets must not be given to other records; everything else is served."""
    for topic in ("t", "sound"):
        create(node, topic, segment_bytes="3000")
        fill(node, topic, 20)
    wait_tiered(node, 18)
    node.stop()
    shutil.rmtree(node.data_dir)  # the whole disk
    store = node.data_dir.parent / "metadata.db"
    items = stored_items(store)
    topic_id = UUID(json.loads(items[topic_key("t")][1])["topic_id"])
    damaged = [key for key in items if key.collection == segment_collection(topic_id, 0)][3]
    _, whole = items[damaged]
    overwrite_body(store, damaged)
    for _ in range(2):
        node.start()
        with WireClient(node.port) as client:
            answer = client.produce("t", batch_of(b"new"))
            assert answer.error_code is ErrorCode.kafka_storage_error
            assert client.produce("sound", batch_of(b"new")).base_offset >= 18
        assert not list((node.data_dir / "t-0").glob("*.log"))
        node.wait_logged(damaged.key)
        errors = [line for line in node.log.splitlines() if " ERROR " in line]
        assert any(
            "t-0" in line and damaged.collection in line and damaged.key in line for line in errors
        )
        node.stop()
    overwrite_body(store, damaged, whole)
    node.start()
    with WireClient(node.port) as client:
        assert client.produce("t", batch_of(b"new")).base_offset == 18


def test_a_log_behind_its_tier_takes_no_records(node: NodeProcess) -> None:
    create(node, "t", segment_bytes="3000")
    fill(node, "t", 6)
    wait_tiered(node, 2)
    node.stop()
    old = node.data_dir.parent / "old"
    shutil.copytree(node.data_dir / "t-0", old)
    node.start()
    fill(node, "t", 14)
    wait_tiered(node, 9)
    node.stop()
    shutil.rmtree(node.data_dir / "t-0")
    old.rename(node.data_dir / "t-0")  # someone restores a backup
    node.start()
    wait_for(node, lambda: "is tiered up to 18" in node.log)
    with WireClient(node.port) as client:
        answer = client.produce("t", batch_of(b"new"))
        assert answer.error_code is ErrorCode.kafka_storage_error
        # Who waits for more is told as well.
        assert client.fetch("t", 6, max_wait_ms=5000).error_code is ErrorCode.kafka_storage_error


def test_what_was_sealed_just_before_a_kill_is_tiered_without_another_record(
    node: NodeProcess,
) -> None:
    create(node, "t", segment_bytes="3000")
    fill(node, "t")
    node.kill()  # before the next sweep can flush what was sealed
    assert "segment copied" not in node.log
    node.start()
    wait_tiered(node, 4)


def test_a_damaged_log_is_not_looked_through_for_every_request(node: NodeProcess) -> None:
    create(node, "t", flush_messages="1")
    fill(node, "t")
    node.kill()
    (path,) = (node.data_dir / "t-0").glob("*.log")
    damaged = bytearray(path.read_bytes())
    damaged[1500] ^= 0xFF
    damaged[3] ^= 0xFF
    path.write_bytes(damaged)
    node.start()
    node.wait_logged("could not be recovered")
    path.unlink()  # whoever looked again would find something else to say
    with WireClient(node.port) as client:
        for _ in range(3):
            assert client.fetch("t", 0).error_code is ErrorCode.kafka_storage_error
            answer = client.produce("t", batch_of(b"x"))
            assert answer.error_code is ErrorCode.kafka_storage_error
    path.write_bytes(damaged)
    node.stop()
    assert not (node.data_dir / "clean-shutdown").exists()
    node.start()
    # A topic whose log cannot even be opened can be deleted, and made again.
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics(["t"])["t"].result(60)
    wait_for(node, lambda: not list(node.data_dir.glob("t-0*")))
    create(node, "t")
    fill(node, "t", 1)


def test_a_topic_deleted_while_the_node_is_away_leaves_no_files(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/metadata.db"
    objects = f"file://{tmp_path}/objects"
    nodes = [
        NodeProcess(tmp_path / f"node-{n}", broker_id=n, metadata_store=store, object_store=objects)
        for n in (1, 2)
    ]
    for node in nodes:
        node.start()
    try:
        address = {"bootstrap.servers": nodes[0].address}
        admin = AdminClient(address)
        admin.create_topics([NewTopic("t", 2, 1)])["t"].result(60)
        producer = Producer(address)
        for partition in (0, 1):
            producer.produce("t", b"x", partition=partition)
        assert producer.flush(60) == 0
        (held,) = nodes[1].data_dir.glob("t-*")
        nodes[1].stop()
        # The first one may have taken that node for the controller, and would wait for it.
        admin = AdminClient(address)
        admin.delete_topics(["t"])["t"].result(60)
        nodes[1].start()
        wait_for(nodes[1], lambda: not list(nodes[1].data_dir.glob("t-*")))
        # Of a topic that nobody remembers nothing is thrown away.
        nodes[1].stop()
        held.mkdir()
        (held / "topic-6c1d2f70-4f3e-4d0a-9c56-0d6f0e7a1b11").touch()
        nodes[1].start()
        assert [path.name for path in nodes[1].data_dir.glob("t-*")] == [
            f"{held.name}.6c1d2f70-4f3e-4d0a-9c56-0d6f0e7a1b11-stray"
        ]
    finally:
        for node in nodes:
            if node.process is not None:
                node.stop()
