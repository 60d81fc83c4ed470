"""A node that compacts its logs, as real clients see it."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tidelog import Consumer as SdkConsumer
from tidelog_core.model import TopicPartition

from tests.support.compacted_topics import (
    active_base_offset,
    assert_compacted,
    cleaned_up_to,
    consume,
    create,
    directory_of,
    produce,
    records_on_disk,
    wait_compacted,
)
from tests.support.drivers.java import java_driver
from tests.support.drivers.process import wait_until
from tests.support.node_process import NodeProcess
from tests.support.waiting import eventually
from tools.server_process import children_running, is_running

CONFIG = {
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.threads": "2",
    "log.retention.check.interval.ms": "500",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One node for the whole file."""
    with NodeProcess(tmp_path_factory.mktemp("compaction") / "node", config=CONFIG) as process:
        yield process


def test_consumers_get_the_newest_record_of_every_key_at_its_own_offset(node: NodeProcess) -> None:
    create(node, "keys")
    newest = produce(node.address, "keys", 2_000)
    active_base = wait_compacted(node, "keys")
    records = consume(node.address, "keys")
    assert len(records) < 1_000
    assert_compacted(records, newest, active_base)
    # A position in a gap is as good as any.
    assert consume(node.address, "keys", offset=7) == records
    newest = produce(node.address, "keys", 1_000, first=2_000)
    active_base = wait_compacted(node, "keys")
    assert_compacted(consume(node.address, "keys"), newest, active_base)


async def test_our_sdk_reads_across_gaps(node: NodeProcess) -> None:
    create(node, "sdk")
    newest = produce(node.address, "sdk", 1_000)
    active_base = wait_compacted(node, "sdk")
    end_offset = max(offset for offset, _ in newest.values()) + 1

    found: list[tuple[bytes | None, tuple[int, bytes | None]]] = []
    async with SdkConsumer(node.address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("sdk", 0)])
        while not found or found[-1][1][0] < end_offset - 1:
            records = await consumer.poll(timeout_ms=5_000)
            found += [(record.key, (record.offset, record.value)) for record in records]
    assert_compacted(found, newest, active_base)


@pytest.mark.slow  # a JVM; the tests above have librdkafka and the SDK
def test_the_java_client_reads_across_gaps(node: NodeProcess) -> None:
    driver = java_driver()
    if not driver.command:
        pytest.skip("needs Java and Kafka's client")
    create(node, "java")
    newest = produce(node.address, "java", 1_000)
    active_base = wait_compacted(node, "java")
    end_offset = max(offset for offset, _ in newest.values()) + 1
    with driver.member(node.address, "java", f"group-{uuid.uuid4().hex}") as member:
        wait_until(
            [member],
            lambda: bool(member.records) and member.records[-1][0] == end_offset - 1,
            what="the end",
        )
        member.close()
    records = [(message.key, (offset, message.value)) for offset, message in member.records]
    assert_compacted(records, newest, active_base)


def test_tombstones_go_and_take_their_keys_with_them(node: NodeProcess) -> None:
    create(node, "tombstones", delete_retention_ms="0")
    produce(node.address, "tombstones", 500, keys=5)
    producer = Producer({"bootstrap.servers": node.address})
    producer.produce("tombstones", None, b"key-0", partition=0)
    assert producer.flush(60) == 0
    produce(node.address, "tombstones", 500, keys=1, first=1_000_000)
    produce(node.address, "tombstones", 500, keys=4)
    directory = directory_of(node, "tombstones")

    def has_no_tombstone() -> bool:
        return all(record.value is not None for record in records_on_disk(directory))

    # The first round that meets it gives it its time, the next drops it.
    number = 0

    def is_gone() -> bool:
        nonlocal number
        number += 400
        produce(node.address, "tombstones", 400, keys=4, first=10_000_000 + number)
        wait_compacted(node, "tombstones")
        return has_no_tombstone()

    eventually(is_gone, lambda: f"the tombstone stays:\n{node.log[-3000:]}")


def test_readers_of_committed_records_get_the_newest_committed_one(node: NodeProcess) -> None:
    create(node, "transactions")
    producer = Producer(
        {"bootstrap.servers": node.address, "transactional.id": "compacting", "linger.ms": 5}
    )
    producer.init_transactions(20)
    expected: dict[bytes, bytes] = {}
    for round_index in range(30):
        is_committed = round_index % 3 != 1
        producer.begin_transaction()
        for number in range(30):
            key, value = b"key-%d" % (number % 7), b"%d-%d-" % (round_index, number) + b"x" * 90
            producer.produce("transactions", value, key, partition=0)
            if is_committed:
                expected[key] = value
        assert producer.flush(60) == 0  # An abort drops what has not been sent.
        if is_committed:
            producer.commit_transaction(20)
        else:
            producer.abort_transaction(20)
    wait_compacted(node, "transactions")
    committed = {"isolation.level": "read_committed"}
    records = consume(node.address, "transactions", **committed)
    assert {key: value for key, (_, value) in records} == expected
    directory = directory_of(node, "transactions")
    below = [r for r in records_on_disk(directory) if r.offset < active_base_offset(directory)]
    assert len(below) == len({record.key for record in below})
    assert not any(record.value is None for record in below)


def test_a_topic_may_be_compacted_and_lose_its_oldest_records(node: NodeProcess) -> None:
    create(node, "both", cleanup_policy="compact,delete", retention_bytes="60000")
    newest = produce(node.address, "both", 1_500, keys=1_500)
    directory = directory_of(node, "both")
    eventually(
        lambda: segment_bytes(directory) < 90_000,
        lambda: f"nothing is deleted:\n{node.log[-3000:]}",
    )
    records = consume(node.address, "both", **{"auto.offset.reset": "earliest"})
    assert 100 < len(records) < 1_000
    assert records == [(key, newest[key]) for key, _ in records]
    newest = produce(node.address, "both", 400, keys=10)
    active_base = wait_compacted(node, "both")
    records = consume(node.address, "both", **{"auto.offset.reset": "earliest"})
    assert_compacted(records, {**dict(records), **newest}, active_base)


def segment_bytes(directory: Path) -> int:
    """Return the size of the segment files. One that is replaced meanwhile is left out."""
    size_bytes = 0
    for path in directory.glob("*.log"):
        with suppress(FileNotFoundError):
            size_bytes += path.stat().st_size
    return size_bytes


def test_a_damaged_log_is_left_as_it_is_and_its_segment_named(tmp_path: Path) -> None:
    # The scrubber must not be the one that finds it.
    idle = {**CONFIG, "log.cleaner.enable": "false", "log.scrub.bytes.per.second": "0"}
    with NodeProcess(tmp_path / "node", config=idle) as node:
        create(node, "damaged")
        produce(node.address, "damaged", 600)
        node.stop()
        directory = directory_of(node, "damaged")
        sealed = sorted(directory.glob("*.log"))[:-1]
        assert len(sealed) > 1
        assert cleaned_up_to(directory) == 0
        content = bytearray(sealed[1].read_bytes())
        content[200] ^= 1
        sealed[1].write_bytes(content)
        before = [path.read_bytes() for path in sealed]
        del node.config["log.cleaner.enable"]
        node.start()
        eventually(
            lambda: f"{sealed[1]} is damaged at position 0" in node.log,
            lambda: f"it is not noticed:\n{node.log[-3000:]}",
        )
        assert [path.read_bytes() for path in sealed] == before


def test_a_topic_that_is_deleted_while_it_is_compacted_is_gone(tmp_path: Path) -> None:
    slow = {**CONFIG, "log.cleaner.io.max.bytes.per.second": "20000"}
    with NodeProcess(tmp_path / "node", config=slow) as node:
        create(node, "doomed")
        produce(node.address, "doomed", 2_000)
        directory = directory_of(node, "doomed")
        eventually(lambda: len(rewriters_of(node)) == 1, lambda: f"idle:\n{node.log[-3000:]}")
        admin = AdminClient({"bootstrap.servers": node.address})
        admin.delete_topics(["doomed"])["doomed"].result(60)
        eventually(lambda: not directory.exists(), lambda: "the directory stays")
        eventually(lambda: not rewriters_of(node), lambda: "the process goes on")
        create(node, "doomed")
        newest = produce(node.address, "doomed", 100)
        assert dict(consume(node.address, "doomed")) == newest
        assert "ERROR" not in node.log


def test_a_node_that_is_killed_while_it_compacts_finds_everything_again(tmp_path: Path) -> None:
    slow = {**CONFIG, "log.cleaner.io.max.bytes.per.second": "400000"}
    node = NodeProcess(tmp_path / "node", config=slow).start()
    try:
        create(node, "killed")
        newest = produce(node.address, "killed", 4_000)
        directory = directory_of(node, "killed")
        segment_count = len(list(directory.glob("*.log")))
        eventually(
            lambda: len(rewriters_of(node)) == 1 and bool(list(directory.glob("cleaned/*.log"))),
            lambda: f"idle:\n{node.log[-3000:]}",
        )
        orphan = rewriters_of(node)[0]
        node.kill()
        wait_gone(orphan)
        node.start()
        records = consume(node.address, "killed")
        assert dict(records) == newest
        node.stop()
        node.config.pop("log.cleaner.io.max.bytes.per.second")
        node.start()
        active_base = wait_compacted(node, "killed")
        assert_compacted(consume(node.address, "killed"), newest, active_base)
        assert len(list(directory.glob("*.log"))) < segment_count
        node.stop()
        node.start()
        assert_compacted(consume(node.address, "killed"), newest, active_base)
        assert cleaned_up_to(directory) == active_base
    finally:
        if node.process is not None:
            node.stop()


def rewriters_of(node: NodeProcess) -> list[int]:
    """Return the processes in which the node compacts."""
    return children_running(node.pid, "tidelog_node.compaction.rewriter")


def wait_gone(pid: int) -> None:
    eventually(lambda: not is_running(pid), lambda: "the process goes on")
